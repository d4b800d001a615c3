/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hard quotas: a packet that finds no room in one of those it is charged to does not pass, and neither does any later one
 * until the daemon begins another turn.
 *
 * The daemon says how much room there is: the limit, less what the store has, plus what of `used` the store has. It is one
 * word, so that a packet never meets half of a change. A lock and not atomic additions: those that tell the former value
 * came with Linux 5.12.
 */
#ifndef NETAMS_QUOTA_H
#define NETAMS_QUOTA_H

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quota_rule);
} quota_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quota_room);
} quota_rooms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quota_use);
} quota_uses SEC(".maps");

/* Adds a quota that the subject is charged to, once for each side: a unit may have its address in several scopes. */
__noinline int add_quota(__u32 quota)
{
	struct subject *s = this_subject();
	__u32 n;

	if (!s)
		return 0;
	n = s->charged;
	for (int i = 0; i < MAX_FLOW_QUOTAS; i++) {
		if (i >= s->of_source && i < n && s->quotas[i] == quota + 1)
			return 0;
	}
	if (n >= MAX_FLOW_QUOTAS)
		return 0;
	s->quotas[n] = quota + 1;
	s->charged = n + 1;
	return 0;
}

/* Finds the quotas of a unit that the subject is charged to. */
__noinline int unit_quotas(__u32 unit, __u32 side)
{
	struct unit_rules *u = bpf_map_lookup_elem(&units, &unit);
	struct quota_rule *r;
	__u32 at, number;
	__u64 *w;

	if (!u || !u->quotas)
		return 0;
	at = u->quotas;
	for (int i = 0; i < MAX_UNIT_QUOTAS; i++, at++) {
		w = bpf_map_lookup_elem(&words, &at);
		if (!w)
			break;
		number = *w & WORD_NUMBER;
		r = bpf_map_lookup_elem(&quota_rules, &number);
		if (r && r->sides >> (side & 1) & 1 && (r->first == EVERY_PACKET || policy_holds(r->first, side)))
			add_quota(r->quota);
		if (*w & WORD_LAST)
			break;
	}
	return 0;
}

__noinline int side_quotas(__u32 side)
{
	struct subject *s = this_subject();
	__u32 at;
	__u64 *w;

	if (!s)
		return 0;
	for (int scope = 0; scope < SCOPE_COMBINATIONS; scope++) {
		at = s->units[side & 1][scope];
		for (int i = 0; i < MAX_UNITS && at; i++, at++) {
			w = bpf_map_lookup_elem(&words, &at);
			if (!w)
				break;
			unit_quotas(*w & WORD_NUMBER, side);
			if (*w & WORD_LAST)
				break;
		}
	}
	return 0;
}

/* Charges bytes to a quota, or takes them back; whether there was room. */
__noinline int charge_one(__u32 quota, __u64 bytes, __u32 half, __u32 back)
{
	struct quota_room *r = bpf_map_lookup_elem(&quota_rooms, &quota);
	struct quota_use *u = bpf_map_lookup_elem(&quota_uses, &quota);
	__u64 room;
	__u32 turn;
	int ok = 1;

	if (!r || !u)
		return 1;
	room = *(volatile __u64 *)&r->room;
	turn = *(volatile __u64 *)&r->turn;
	bpf_spin_lock(&u->lock);
	if (back) {
		u->used[half & 1] -= bytes;
	} else if (u->over == turn) {
		ok = 0;
	} else if (u->used[0] + u->used[1] + bytes > room) {
		u->over = turn;
		ok = 0;
	} else {
		u->used[half & 1] += bytes;
	}
	bpf_spin_unlock(&u->lock);
	return ok;
}

/* Charges a packet to all of its quotas or, if one has no room, to none. */
static __noinline int charge(const __u16 *quotas, __u64 bytes, __u32 half)
{
	int charged = 0, ok = 1;

	if (!quotas)
		return 1;
	for (int i = 0; i < MAX_FLOW_QUOTAS; i++) {
		if (!quotas[i])
			break;
		if (!charge_one(quotas[i] - 1, bytes, half, 0)) {
			ok = 0;
			break;
		}
		charged++;
	}
	if (ok)
		return 1;
	for (int i = 0; i < MAX_FLOW_QUOTAS; i++) {
		if (i >= charged)
			break;
		charge_one(quotas[i] - 1, bytes, half, 1);
	}
	return 0;
}

/* The same with the quotas of the subject, which passes otherwise. */
static __noinline int charge_subject(__u64 bytes, __u32 half)
{
	struct subject *s = this_subject();

	if (!s)
		return 1;
	side_quotas(SIDE_SOURCE);
	s->of_source = s->charged;
	side_quotas(SIDE_DESTINATION);
	if (s->charged < MAX_FLOW_QUOTAS)
		s->quotas[s->charged] = 0;
	return charge(s->quotas, bytes, half);
}

#endif
