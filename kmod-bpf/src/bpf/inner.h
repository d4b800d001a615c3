/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Accounts the innermost packet of a tunnel, beside the outermost one: a layer of its own.
 */
#ifndef NETAMS_INNER_H
#define NETAMS_INNER_H

#include "cache.h"
#include "tunnel.h"

/*
 * Adds the packet inside one whose upper-layer header is at `l4`; says whether there is one. `partition` is half * cpus + cpu;
 * the other arguments are those of parse_inner. A function of its own, of numbers only: verified once.
 */
__noinline int account_inner(struct __sk_buff *skb, __u32 l4_proto, __u32 vlans, __u32 segs, __u32 partition)
{
	struct counters *count = bpf_map_lookup_elem(&counters, &partition);
	struct flow_key key;
	struct packet p;

	if (!count || !parse_inner(skb, l4_proto >> 8, l4_proto, vlans, segs, &p))
		return 0;
	make_key(&p, NETAMS_USED + (partition >= cfg_cpus), &key);
	if (p.fragment != WHOLE)
		join_fragments(&key, p.fragment_id, p.fragment_proto, p.fragment | INNER_LAYER);
	account_in(&key, p.segs, p.bytes, partition, count, true);
	return 1;
}

#endif
