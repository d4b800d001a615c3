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

/* Makes what parse_inner has said the subject of a verdict; its bytes. */
__noinline __u64 inner_subject(__u32 half)
{
	struct subject *s = this_subject();
	struct inner *in = this_inner();
	struct flow_key key;

	if (!in || !s)
		return 0;
	inner_key(in, half & 1, &key);
	s->key = key;
	return in->p.bytes;
}

/* Judges what parse_inner has said and charges it to its quotas; whether it passes. */
static __always_inline bool admit_inner(__u32 half)
{
	__u64 bytes = inner_subject(half);

	return verdict() == VERDICT_PASS && (!cfg_quotas || charge_subject(bytes, half));
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
