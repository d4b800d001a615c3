/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Accounts the innermost packet of a tunnel, beside the outermost one: a layer of its own.
 */
#ifndef NETAMS_INNER_H
#define NETAMS_INNER_H

#include "cache.h"
#include "tunnel.h"

static __always_inline void inner_key(const struct inner *in, __u32 half, struct flow_key *key)
{
	make_key(&in->p, NETAMS_USED + half, key);
	if (in->p.fragment != WHOLE)
		join_fragments(key, in->p.fragment_id, in->p.fragment_proto, in->p.fragment | INNER_LAYER);
}

/* Makes what parse_inner has said the subject of a verdict. */
__noinline int judge_inner_next(__u32 half)
{
	struct subject *s = this_subject();
	struct inner *in = this_inner();
	struct flow_key key;

	if (!in || !s)
		return 0;
	inner_key(in, half & 1, &key);
	s->key = key;
	return 1;
}

/* Adds what parse_inner has said to its flow; `partition` is half * cpus + cpu. */
__noinline int account_inner(__u32 partition)
{
	struct counters *count = bpf_map_lookup_elem(&counters, &partition);
	struct inner *in = this_inner();
	struct flow_key key;

	if (!count || !in)
		return 0;
	inner_key(in, partition >= cfg_cpus, &key);
	account_in(&key, in->p.segs, in->p.bytes, partition, count, true, true);
	return 1;
}

#endif
