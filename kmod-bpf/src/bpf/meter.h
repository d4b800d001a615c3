/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What happens to each packet at a hook; see netams.bpf.c. A template: METER is the name of the function, ACCOUNT what adds
 * a parsed packet to its flow. The benchmark makes a second one of it with another table.
 */
static __always_inline int METER(struct __sk_buff *skb, const bool ethernet, const enum hook hook)
{
	__u32 zero = 0, half, partition;
	struct control *ctl = bpf_map_lookup_elem(&control, &zero);
	struct counters *count;
	struct packet p;

	if (!ctl)
		return TC_ACT_UNSPEC;
	half = *(volatile __u64 *)&ctl->epoch & 1;
	partition = half * cfg_cpus + bpf_get_smp_processor_id();
	count = bpf_map_lookup_elem(&counters, &partition);
	if (!count)
		return TC_ACT_UNSPEC;

	if (hook != ENTER && skb->tc_index == cfg_mark) {
		__u32 segs = skb->gso_size && skb->gso_segs ? skb->gso_segs : 1;

		if (hook == LEAVE)
			count->packets_out += segs;
		else
			count->packets_in += segs;
		count->already_counted += segs;
		return TC_ACT_UNSPEC;
	}
	skb->tc_index = cfg_mark;

	switch (parse(skb, ethernet, &p)) {
	case PARSED_IP:
		if (p.fragment != WHOLE) {
			join_fragments(&p);
			count->fragments += p.key.fragment;
		}
		if (p.headers_unknown)
			count->gso_headers_unknown++;
		ACCOUNT(&p, partition, half, count);
		break;
	case PARSED_NON_IP:
		p.segs = p.segs ?: 1;
		count->non_ip += p.segs;
		break;
	case PARSED_MALFORMED:
		p.segs = p.segs ?: 1;
		count->malformed += p.segs;
		break;
	}
	if (hook == LEAVE)
		count->packets_out += p.segs;
	else
		count->packets_in += p.segs;
	return TC_ACT_UNSPEC;
}
