/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The flow cache: two halves, one being filled while the daemon reads the other.
 *
 * A packet is added, in this order, to
 *   1. its flow in the first-level table: sets of four slots, partitioned by CPU, so that no other CPU and, with bottom
 *      halves off, nothing else on this CPU writes there: plain additions, no locks;
 *   2. its flow in the second-level hash, shared by the CPUs, when the set is full;
 *   3. the cells of both addresses' prefixes, when that is full too: totals stay exact, only the flow's detail is missing.
 * Entries are never removed here. The daemon empties a half after it has committed it and before it is filled again.
 */
#ifndef NETAMS_CACHE_H
#define NETAMS_CACHE_H

#include "verdict.h"

/* Set by the daemon before the program is loaded; the verifier sees constants. */
const volatile __u32 cfg_cpus = 1;	  /* possible CPUs */
const volatile __u32 cfg_sets = 1;	  /* first-level sets a CPU and a half, a power of two */
const volatile __u32 cfg_classes = 1; /* overflow cells a CPU and a half */
const volatile __u32 cfg_mark = 1;	  /* tc_index of a packet that has been counted in a flow */
const volatile __u32 cfg_mark_other = 2;  /* tc_index of one that was not IP: what it carries may be, further up */
const volatile __u32 cfg_handover = 0;	  /* bit of skb->mark, see NETAMS_HANDOVER */
const volatile __u32 cfg_tunnels = 0;	  /* OUTER_ALONE, INNER_TOO, BY_INNER */
const volatile __u32 cfg_stamp_shift = 16; /* lowest bit of skb->mark that segment sizes go to */
const volatile __u64 cfg_seed[8] = {}; /* random odd multipliers */

#define OUTER_ALONE 0 /* inner flows of tunnels are not accounted */
#define INNER_TOO 1   /* they are, and units are charged by the outer ones */
#define BY_INNER 2    /* units are charged by the inner flow of a packet that has one */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct control);
} control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* halves * cpus */
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* halves * cpus * sets */
	__type(key, __u32);
	__type(value, struct flow_set);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow_key);
	__type(value, struct spill_value);
} spill SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* halves * cpus * classes */
	__type(key, __u32);
	__type(value, struct overflow_cell);
} overflow SEC(".maps");

/* Flows of the latest first fragments; the oldest make room for new ones. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct fragment_key);
	__type(value, struct flow_key);
} fragments SEC(".maps");

#define TC_ACT_UNSPEC (-1) /* the next program decides */
#define TC_ACT_SHOT 2

enum hook {
	ENTER, /* ingress of a device that packets reach first: counts everything */
	UPPER, /* ingress of a device on top of another one, and loopback: counts what was not counted below */
	LEAVE, /* egress: counts what did not enter through a hook */
};

/*
 * Jiffies: as fine as the coarse clock, which advances with them, and no call: the verifier puts a load in its place.
 * A call costs as much as the rest of the program where returns are mitigated.
 */
static __always_inline __u32 stamp(void)
{
	return bpf_jiffies64();
}

/*
 * The segment size of a super-packet into its mark, since netfilter's queues tell the mark and not the size; out of it again
 * where the packet leaves without having been queued.
 */
static __always_inline void stamp_size(struct __sk_buff *skb, const bool in)
{
	__u32 size = skb->gso_size, stamp = in ? (size & 0xffff) << cfg_stamp_shift : 0;

	if (unlikely(size))
		skb->mark = (skb->mark & ~(0xffffu << cfg_stamp_shift)) | stamp;
}

/*
 * During a handover: whether the other source has counted this packet, which the bit in its mark says. On its way up a
 * packet that has been counted, by whomever, keeps or gets the bit, since the other source is still to meet it; on its way
 * out it loses it.
 */
static __always_inline bool counted_elsewhere(struct __sk_buff *skb, const enum hook hook)
{
	bool counted = skb->mark & cfg_handover, here = skb->tc_index == cfg_mark;

	if (hook == LEAVE)
		skb->mark &= ~cfg_handover;
	else if (here)
		skb->mark |= cfg_handover;
	if (!counted || here)
		return false;
	skb->tc_index = cfg_mark;
	return true;
}

/* Multilinear, then folded twice: the low bits choose the set, the highest ones where to begin in it. */
static __always_inline __u64 hash_key(const struct flow_key *key)
{
	const word *w = (const word *)key;
	__u64 h = w[0] * cfg_seed[0] + w[1] * cfg_seed[1] + w[2] * cfg_seed[2] + w[3] * cfg_seed[3] +
		  w[4] * cfg_seed[4] + w[5] * cfg_seed[5];

	h ^= h >> 32;
	h *= cfg_seed[6];
	h ^= h >> 29;
	return h;
}

/* Whether a slot is a flow's; unless `judged` the slot has the verdict. */
static __always_inline bool same_key(const struct flow_key *slot, const struct flow_key *key, bool judged)
{
	const word *x = (const word *)slot, *y = (const word *)key;
	word last = x[5];

	if (cfg_enforce && !judged)
		last &= ~((word)NETAMS_DROPPED << 48);
	return last == y[5] && x[1] == y[1] && x[3] == y[3] && x[4] == y[4] && x[0] == y[0] && x[2] == y[2];
}

#define INNER_LAYER 4 /* beside enum fragment: each layer remembers its own */

/* Remembers a first fragment's flow, and gives a later fragment that of its first one, or flags it. */
static __noinline int join_fragments(struct flow_key *key, __u32 id, __u32 proto, __u32 kind)
{
	struct fragment_key fragment = { 0 };
	struct flow_key *first;
	__u8 used;

	if (!key)
		return 0;
	used = key->used;
	__builtin_memcpy(fragment.src, key->src, 16);
	__builtin_memcpy(fragment.dst, key->dst, 16);
	fragment.id = id;
	fragment.proto = proto;
	fragment.version = key->version;
	fragment.layer = !!(kind & INNER_LAYER);
	if ((kind & ~INNER_LAYER) == FIRST_FRAGMENT) {
		bpf_map_update_elem(&fragments, &fragment, key, BPF_ANY);
		return 0;
	}
	first = bpf_map_lookup_elem(&fragments, &fragment);
	if (first) {
		*key = *first;
		key->used = used;
	} else {
		key->flags |= NETAMS_FRAGMENT;
	}
	return 0;
}

/* To the cell of the longest prefix, in each scope that units have and the packet is in. */
static __noinline int add_overflow(const struct flow_key *flow, __u64 bytes, __u64 segs_source, __u32 partition)
{
	__u32 segs = segs_source >> 1, *class, index;
	bool source = segs_source & 1;
	struct overflow_cell *cell;

	if (!flow)
		return 0;
#pragma unroll
	for (int scope = 0; scope < SCOPE_COMBINATIONS; scope++) {
		class = class_in(flow, source, scope);
		if (!class)
			continue;
		index = partition * cfg_classes + *class;
		cell = bpf_map_lookup_elem(&overflow, &index);
		if (!cell)
			continue;
		if (source) {
			cell->out_packets += segs;
			cell->out_bytes += bytes;
		} else {
			cell->in_packets += segs;
			cell->in_bytes += bytes;
		}
	}
	return 0;
}

static __noinline bool add_spill(struct flow_key *key, __u32 segs, __u64 bytes, __u32 now)
{
	struct spill_value *value, fresh = { 0 };

	if (!key)
		return false;
	value = bpf_map_lookup_elem(&spill, key);
	if (!value) {
		fresh.packets = segs;
		fresh.bytes = bytes;
		fresh.first = now;
		fresh.last = now;
		if (!bpf_map_update_elem(&spill, key, &fresh, BPF_NOEXIST))
			return true;
		/* Full, or another CPU was first. */
		value = bpf_map_lookup_elem(&spill, key);
		if (!value)
			return false;
	}
	__sync_fetch_and_add(&value->packets, segs);
	__sync_fetch_and_add(&value->bytes, bytes);
	value->last = now;
	return true;
}

static __noinline bool account_judged(struct flow_key *key, __u32 segs, __u64 bytes, __u32 partition,
				      struct counters *count);

/*
 * Adds wire packets and bytes to a flow, and says whether they pass. `partition` is half * cpus + cpu.
 * The search begins at a slot that the hash names, where most flows are; slots are never freed while a half is filled, so
 * the first free one ends it. Where verdicts are enforced, the first packet of a flow in an epoch is judged and the others
 * go by its slot, and by the quotas that are there; if `judged`, the key has the verdict already.
 */
static __always_inline bool account_in(struct flow_key *key, __u32 segs, __u64 bytes, __u32 partition,
				       struct counters *count, const bool inner, bool judged)
{
	__u32 index, way, now = stamp(), half = partition >= cfg_cpus;
	__u64 h = hash_key(key);
	struct flow_set *set;
	struct subject *s;

	way = h >> 62;
	index = partition * cfg_sets + ((__u32)h & (cfg_sets - 1));
	set = bpf_map_lookup_elem(&flows, &index);
	if (unlikely(!set)) {
		count->no_slot += segs;
		return true;
	}
#pragma unroll
	for (int i = 0; i < NETAMS_WAYS; i++, way++) {
		struct flow_slot *slot = &set->slot[way & (NETAMS_WAYS - 1)];
		__u16 *quotas = set->quotas[way & (NETAMS_WAYS - 1)];

		if (likely(same_key(&slot->key, key, judged))) {
			__u32 packets = slot->packets + segs;

			if (unlikely(packets < segs))
				break;
			if (cfg_quotas && !judged && *quotas && !(slot->key.flags & NETAMS_DROPPED) &&
			    !charge(quotas, bytes, half)) {
				key->flags |= NETAMS_DROPPED;
				return account_judged(key, segs, bytes, partition, count);
			}
			slot->packets = packets;
			slot->bytes += bytes;
			slot->last = now;
			return !cfg_enforce || !(slot->key.flags & NETAMS_DROPPED);
		}
		if (!slot->key.used) {
			if (cfg_enforce && !judged)
				admit(key, bytes, half);
			if (cfg_quotas) {
				s = this_subject();
				if (s && !judged && !(key->flags & NETAMS_DROPPED))
					__builtin_memcpy(quotas, s->quotas, sizeof(set->quotas[0]));
				else
					*quotas = 0;
			}
			slot->key = *key;
			slot->packets = segs;
			slot->bytes = bytes;
			slot->last = now;
			set->first[way & (NETAMS_WAYS - 1)] = now ?: 1;
			return !cfg_enforce || !(key->flags & NETAMS_DROPPED);
		}
	}
	if (cfg_enforce && !judged)
		admit(key, bytes, half);
	if (add_spill(key, segs, bytes, now)) {
		count->spilled += segs;
		return !cfg_enforce || !(key->flags & NETAMS_DROPPED);
	}
	if (cfg_enforce && key->flags & NETAMS_DROPPED)
		return false;
	if (inner) {
		count->inner_overflow_packets += segs;
		count->inner_overflow_bytes += bytes;
	} else {
		count->overflow_packets += segs;
		count->overflow_bytes += bytes;
	}
	/* Units are charged by one of the layers. */
	if (inner ? cfg_tunnels != BY_INNER : cfg_tunnels == BY_INNER && key->flags & NETAMS_CARRIER)
		return true;
	add_overflow(key, bytes, (__u64)segs << 1 | 1, partition);
	add_overflow(key, bytes, (__u64)segs << 1, partition);
	return true;
}

/* Where there is no room for the flow of what is dropped, it is in `dropped` alone. */
static __noinline bool account_judged(struct flow_key *key, __u32 segs, __u64 bytes, __u32 partition,
				      struct counters *count)
{
	if (!key || !count)
		return false;
	return account_in(key, segs, bytes, partition, count, false, true);
}

static __always_inline bool account(struct flow_key *key, __u32 segs, __u64 bytes, __u32 partition,
				    struct counters *count, bool judged)
{
	return account_in(key, segs, bytes, partition, count, false, judged);
}

#endif
