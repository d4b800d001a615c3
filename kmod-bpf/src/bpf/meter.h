/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What happens to each packet at a hook; see netams.bpf.c. A template: METER is the name of the function, ACCOUNT what adds
 * a parsed packet to its flow. The benchmark makes a second one of it with another table.
 */
static __always_inline int METER(struct __sk_buff *skb, const bool ethernet, const enum hook hook)
{
	__u32 zero = 0, half, partition, flags;
	struct control *ctl = bpf_map_lookup_elem(&control, &zero);
	struct counters *count;
	enum parsed parsed;
	struct flow_key key;
	struct packet p;
	bool pass = true, judged = false;

	if (unlikely(!ctl))
		return TC_ACT_UNSPEC;
	flags = *(volatile __u32 *)&ctl->flags;
	if (unlikely(flags)) {
		if (flags & NETAMS_STAMP)
			stamp_size(skb, hook != LEAVE);
		if (flags & NETAMS_HANDOVER && hook != ENTER && counted_elsewhere(skb, hook))
			return TC_ACT_UNSPEC;
		if (flags & NETAMS_PAUSED)
			return TC_ACT_UNSPEC;
	}
	half = *(volatile __u64 *)&ctl->epoch & 1;
	partition = half * cfg_cpus + bpf_get_smp_processor_id();
	count = bpf_map_lookup_elem(&counters, &partition);
	if (unlikely(!count))
		return TC_ACT_UNSPEC;

	if (hook != ENTER && skb->tc_index == cfg_mark && !skb->gso_size) {
		/* The usual way out: counted where it entered, and one packet without a look at its headers. */
		p.segs = 1;
		goto again;
	}
	parsed = parse(skb, ethernet, &p);
	if (hook != ENTER && (skb->tc_index == cfg_mark || (skb->tc_index == cfg_mark_other && parsed != PARSED_IP)))
		goto again;

	switch (parsed) {
	case PARSED_IP:
		skb->tc_index = cfg_mark;
		if (unlikely(flags & NETAMS_HANDOVER) && hook != LEAVE)
			skb->mark |= cfg_handover;
		make_key(&p, NETAMS_USED + half, &key);
		if (unlikely(p.fragment != WHOLE)) {
			join_fragments(&key, p.fragment_id, p.fragment_proto, p.fragment);
			count->fragments += key.flags & NETAMS_FRAGMENT;
		}
		if (cfg_tunnels != OUTER_ALONE && p.l4 && may_tunnel(p.proto, p.ports) &&
		    find_inner(skb, p.l4 << 8 | p.proto, p.vlan | (__u32)p.vlan_inner << 16) &&
		    parse_inner(skb, p.segs)) {
			key.flags |= NETAMS_CARRIER;
			if (cfg_enforce) {
				judged = true;
				if (cfg_tunnels != BY_INNER)
					admit(&key, p.bytes, half);
				else if (!admit_inner(half))
					key.flags |= NETAMS_DROPPED;
			}
			if (!(key.flags & NETAMS_DROPPED))
				account_inner(partition);
		}
		if (cfg_enforce && unlikely(flags & NETAMS_REJUDGE) && !judged) {
			admit(&key, p.bytes, half);
			judged = true;
		}
		if (unlikely(p.headers_unknown))
			count->gso_headers_unknown++;
		pass = ACCOUNT(&key, p.segs, p.bytes, partition, count, judged);
		break;
	case PARSED_NON_IP:
		skb->tc_index = cfg_mark_other;
		count->non_ip += p.segs;
		break;
	case PARSED_MALFORMED:
		skb->tc_index = cfg_mark_other;
		count->malformed += p.segs;
		break;
	}
	if (hook == LEAVE)
		count->packets_out += p.segs;
	else
		count->packets_in += p.segs;
	if (cfg_enforce && !pass) {
		count->dropped += p.segs;
		return TC_ACT_SHOT;
	}
	return TC_ACT_UNSPEC;

again:
	if (hook == LEAVE)
		count->packets_out += p.segs;
	else
		count->packets_in += p.segs;
	count->already_counted += p.segs;
	return TC_ACT_UNSPEC;
}
