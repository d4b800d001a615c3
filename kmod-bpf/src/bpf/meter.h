/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What happens to each packet at a hook; see netams.bpf.c. A template: METER is the name of the function, ACCOUNT what adds
 * a parsed packet to its flow. The benchmark makes a second one of it with another table.
 */
static __always_inline int METER(struct __sk_buff *skb, const bool ethernet, const enum hook hook)
{
	__u32 zero = 0, half, partition, seen;
	struct control *ctl = bpf_map_lookup_elem(&control, &zero);
	struct counters *count;
	enum parsed parsed;
	struct packet p;

	if (!ctl)
		return TC_ACT_UNSPEC;
	half = *(volatile __u64 *)&ctl->epoch & 1;
	partition = half * cfg_cpus + bpf_get_smp_processor_id();
	count = bpf_map_lookup_elem(&counters, &partition);
	if (!count)
		return TC_ACT_UNSPEC;

	seen = hook == ENTER ? 0 : skb->tc_index;
	p.segs = 1;
	if (seen == cfg_mark && !skb->gso_size) {
		/* The usual way out: counted where it entered, one packet. */
		parsed = PARSED_IP;
	} else {
		parsed = parse(skb, ethernet, &p);
		p.segs = p.segs ?: 1;
	}
	if (hook == LEAVE)
		count->packets_out += p.segs;
	else
		count->packets_in += p.segs;
	if (seen == cfg_mark || (seen == cfg_mark_other && parsed != PARSED_IP)) {
		count->already_counted += p.segs;
		return TC_ACT_UNSPEC;
	}
	skb->tc_index = parsed == PARSED_IP ? cfg_mark : cfg_mark_other;

	if (parsed == PARSED_NON_IP) {
		count->non_ip += p.segs;
	} else if (parsed == PARSED_MALFORMED) {
		count->malformed += p.segs;
	} else {
		if (p.fragment != WHOLE) {
			join_fragments(&p);
			count->fragments += p.key.fragment;
		}
		if (p.headers_unknown)
			count->gso_headers_unknown++;
		ACCOUNT(&p, partition, half, count);
	}
	return TC_ACT_UNSPEC;
}
