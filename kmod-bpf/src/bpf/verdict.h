/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whether a packet may pass: the same rules, and the same answers, as netamsd/src/policy/program.rs.
 *
 * Both sides must pass. A side passes if no unit that its address belongs to is blocked or over its quota, and every one
 * that has a list of policies has one in it that holds. If none has a list, or the address belongs to no unit, unit 0 says
 * what happens.
 *
 * Functions of numbers are verified once, and not again wherever they are called; what they are about is handed on by a map.
 */
#ifndef NETAMS_VERDICT_H
#define NETAMS_VERDICT_H

#include "parse.h"

const volatile __u32 cfg_enforce = 0; /* whether verdicts are */
const volatile __u32 cfg_quotas = 0;  /* how many hard quotas there are */
const volatile __u32 cfg_scopes = 1;  /* bit set of the combinations of SCOPE_ bits that units ask for */

/* Class of each configured prefix: its number among the overflow cells. Class 0 means none. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct prefix_key);
	__type(value, __u32);
} prefixes SEC(".maps");

/*
 * The units of each class: where they begin among the words, 0 if there are none. Arrays that the daemon maps have values of
 * 8 bytes at least.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} class_units SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} words SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct unit_rules);
} units SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rule);
} rules SEC(".maps");

/* Whether each schedule holds now. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} schedules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct list_key);
	__type(value, __u32);
} lists SEC(".maps");

/* What of a packet, beside its addresses, a unit's prefix may be bound to. */
#define SCOPE_VLAN 1
#define SCOPE_VLAN_INNER 2
#define SCOPE_TUNNEL 4
#define SCOPE_COMBINATIONS 8

/* What is being judged. */
struct subject {
	struct flow_key key;
	__u32 units[2][SCOPE_COMBINATIONS]; /* of each side: where they begin among the words */
	__u32 charged, of_source;	    /* how many of these there are, if it passes; and how many by its source */
	__u16 quotas[MAX_FLOW_QUOTAS + 2];  /* that it is charged to, as in struct flow_set */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct subject);
} subject SEC(".maps");

static __always_inline struct subject *this_subject(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&subject, &zero);
}

/* Class of the longest prefix around one of a flow's addresses in a scope; NULL if there is none or the flow is not in it. */
static __always_inline __u32 *class_in(const struct flow_key *flow, bool source, const int scope)
{
	__u32 kind = flow->flags >> NETAMS_TUNNEL_SHIFT & 7;
	struct prefix_key key;

	if (!(cfg_scopes & 1 << scope) || (scope & SCOPE_VLAN && !flow->vlan) ||
	    (scope & SCOPE_VLAN_INNER && !flow->vlan_inner) || (scope & SCOPE_TUNNEL && !kind))
		return NULL;
	key.len = NETAMS_SCOPE_BITS + 128;
	key.vlan = scope & SCOPE_VLAN ? flow->vlan : 0;
	key.vlan_inner = scope & SCOPE_VLAN_INNER ? flow->vlan_inner : 0;
	key.tunnel = scope & SCOPE_TUNNEL ? flow->tunnel : 0;
	key.tunnel_kind = scope & SCOPE_TUNNEL ? kind : 0;
	__builtin_memcpy(key.addr, source ? flow->src : flow->dst, 16);
	return bpf_map_lookup_elem(&prefixes, &key);
}

/* Whether the address of a side belongs to a unit. */
__noinline int belongs(__u32 unit, __u32 side)
{
	struct subject *s = this_subject();
	__u64 *w;
	__u32 at;

	if (!s)
		return 0;
	for (int scope = 0; scope < SCOPE_COMBINATIONS; scope++) {
		at = s->units[side & 1][scope];
		for (int i = 0; i < MAX_UNITS && at; i++, at++) {
			w = bpf_map_lookup_elem(&words, &at);
			if (!w)
				break;
			if ((*w & WORD_NUMBER) == unit)
				return 1;
			if (*w & WORD_LAST)
				break;
		}
	}
	return 0;
}

/* Whether the longest prefix of a list around the address of a side has a value from `low` to `high`. */
__noinline int listed(__u32 list_side, __u32 low, __u32 high)
{
	struct subject *s = this_subject();
	struct list_key key;
	__u32 *value;

	if (!s)
		return 0;
	key.len = 32 + 128;
	key.list = list_side >> 1;
	__builtin_memcpy(key.addr, list_side & 1 ? s->key.dst : s->key.src, 16);
	value = bpf_map_lookup_elem(&lists, &key);
	return value && *value >= low && *value <= high;
}

/* Whether a rule's test holds for a packet of a unit on `side`. */
static __always_inline bool rule_holds(const struct subject *s, const struct rule *r, __u32 side)
{
	__u64 *state;
	__u32 value, kind, looked_at = r->side == SIDE_OTHER ? !side : r->side & 1;

	switch (r->test) {
	case TEST_PROTO:
		value = s->key.proto;
		break;
	case TEST_SPORT:
	case TEST_DPORT:
		if (!has_ports(s->key.proto) || s->key.flags & NETAMS_FRAGMENT)
			return false;
		value = bpf_ntohs(r->test == TEST_SPORT ? s->key.sport : s->key.dport);
		break;
	case TEST_VLAN:
		value = s->key.vlan;
		break;
	case TEST_VLAN_INNER:
		value = s->key.vlan_inner;
		break;
	case TEST_TUNNEL:
		kind = s->key.flags >> NETAMS_TUNNEL_SHIFT & 7;
		if (!(r->list >> kind & 1))
			return false;
		value = s->key.tunnel;
		break;
	case TEST_SOURCE:
		value = SOURCE_KERNEL;
		break;
	case TEST_PREFIX:
		return listed((__u32)r->list << 1 | looked_at, r->low, r->high);
	case TEST_UNIT:
		return belongs(r->low, looked_at);
	case TEST_SCHEDULE:
		value = r->low;
		state = bpf_map_lookup_elem(&schedules, &value);
		return state && *state;
	default:
		return false;
	}
	return value >= r->low && value <= r->high;
}

/* Whether the policy that begins at rule `at` holds for a packet of a unit on `side`. */
__noinline int policy_holds(__u32 at, __u32 side)
{
	struct subject *s = this_subject();
	struct rule *r;

	if (!s)
		return 0;
	for (int i = 0; i < MAX_RULES; i++) {
		r = bpf_map_lookup_elem(&rules, &at);
		if (!r)
			return 0;
		if (r->test == TEST_ANSWER)
			return !!r->low;
		at += rule_holds(s, r, side) ? r->yes : r->no;
	}
	return 0;
}

/* What units say of a packet on their side, a bit each; the bits of enum verdict are among them. */
#define UNDECIDED_LOCAL (1 << 5)
#define UNDECIDED_ALL (1 << 6)

__noinline int unit_says(__u32 unit, __u32 side)
{
	struct unit_rules *u = bpf_map_lookup_elem(&units, &unit);
	__u32 at, flags;
	__u64 *w;

	if (!u)
		return 0;
	flags = *(volatile __u32 *)&u->flags;
	if (flags & UNIT_BLOCKED)
		return 1 << DROP_BLOCKED;
	if (flags & UNIT_OVER_QUOTA)
		return 1 << DROP_BY_QUOTA;
	if (!(flags & UNIT_HAS_LIST))
		return flags & UNIT_NO_LOCAL_PASS ? UNDECIDED_ALL : UNDECIDED_LOCAL;
	at = u->list;
	for (int i = 0; i < MAX_LIST; i++, at++) {
		w = bpf_map_lookup_elem(&words, &at);
		if (!w)
			break;
		if (policy_holds(*w & WORD_NUMBER, side) != !!(*w & WORD_NOT))
			return 1 << VERDICT_PASS;
		if (*w & WORD_LAST)
			break;
	}
	return 1 << DROP_BY_POLICY;
}

/* What all units of a side say. */
__noinline int side_says(__u32 side)
{
	struct subject *s = this_subject();
	__u32 at, said = 0;
	__u64 *w;

	if (!s)
		return 0;
	for (int scope = 0; scope < SCOPE_COMBINATIONS; scope++) {
		at = s->units[side & 1][scope];
		for (int i = 0; i < MAX_UNITS && at; i++, at++) {
			w = bpf_map_lookup_elem(&words, &at);
			if (!w)
				break;
			said |= unit_says(*w & WORD_NUMBER, side);
			if (*w & WORD_LAST)
				break;
		}
	}
	return said;
}

/* What becomes of packets that units neither drop nor all let pass. */
static __always_inline int undecided(__u32 source, __u32 destination, __u32 flags)
{
	__u32 said[2] = { source, destination }, nobody;

	if (!(source | destination))
		return flags & UNIT_DROP_ALL ? DROP_BY_DEFAULT : VERDICT_PASS;
#pragma unroll
	for (int side = 0; side < 2; side++) {
		if (said[side] & 1 << VERDICT_PASS)
			continue;
		if (said[side] & UNDECIDED_LOCAL)
			nobody = flags & UNIT_DROP_LOCAL;
		else
			nobody = said[side] & UNDECIDED_ALL ? flags & UNIT_DROP_ALL : 0;
		if (nobody)
			return DROP_BY_DEFAULT;
	}
	return VERDICT_PASS;
}

/* What IPv6 has in place of ARP, which is never judged (RFC 4861): without it nobody on the link is found. */
static __always_inline bool is_neighbour_discovery(const struct flow_key *key)
{
	__u32 type = bpf_ntohs(key->dport) >> 8;

	return key->version == 6 && key->proto == IPPROTO_ICMPV6 && !(key->flags & NETAMS_FRAGMENT) && type >= 133 &&
	       type <= 137;
}

/* enum verdict on the subject, whose key is set. Calls below this are deep: what they all have on the stack is limited. */
__noinline int verdict(void)
{
	struct subject *s = this_subject();
	__u32 *class, source, destination, zero = 0;
	struct unit_rules *nobody = bpf_map_lookup_elem(&units, &zero);
	__u64 *at;

	if (!s || !nobody)
		return VERDICT_PASS;
#pragma unroll
	for (int scope = 0; scope < SCOPE_COMBINATIONS; scope++) {
		class = class_in(&s->key, true, scope);
		at = class ? bpf_map_lookup_elem(&class_units, class) : NULL;
		s->units[SIDE_SOURCE][scope] = at ? *at : 0;
		class = class_in(&s->key, false, scope);
		at = class ? bpf_map_lookup_elem(&class_units, class) : NULL;
		s->units[SIDE_DESTINATION][scope] = at ? *at : 0;
	}
	s->charged = 0;
	s->of_source = 0;
	s->quotas[0] = 0;
	if (is_neighbour_discovery(&s->key))
		return VERDICT_PASS;
	source = side_says(SIDE_SOURCE);
	destination = side_says(SIDE_DESTINATION);
	if ((source | destination) & 1 << DROP_BLOCKED)
		return DROP_BLOCKED;
	if ((source | destination) & 1 << DROP_BY_QUOTA)
		return DROP_BY_QUOTA;
	if ((source | destination) & 1 << DROP_BY_POLICY)
		return DROP_BY_POLICY;
	return undecided(source, destination, *(volatile __u32 *)&nobody->flags);
}

#include "quota.h"

/* enum verdict on a packet of this flow. */
static __always_inline int verdict_on(const struct flow_key *key)
{
	struct subject *s = this_subject();

	if (!s)
		return VERDICT_PASS;
	s->key = *key;
	return verdict();
}

/* Judges a packet and charges it to its quotas; whether it passes is in the key. */
static __always_inline void admit(struct flow_key *key, __u64 bytes, __u32 half)
{
	if (verdict_on(key) != VERDICT_PASS || (cfg_quotas && !charge_subject(bytes, half)))
		key->flags |= NETAMS_DROPPED;
}

#endif
