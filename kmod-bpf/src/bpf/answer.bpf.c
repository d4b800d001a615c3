/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * For the differential test, never attached: what the meter's parser says of one packet, and nothing else.
 */
#include "tunnel.h"

/* What parse() or parse_inner() said of the latest packet. */
struct answer {
	struct flow_key key;
	__u64 bytes;
	__u32 segs;
	__u32 fragment_id;
	__u8 parsed;   /* enum parsed; without PARSED_IP nothing but segs is said */
	__u8 fragment; /* enum fragment */
	__u8 fragment_proto;
	__u8 headers_unknown;
	__u32 reserved;
};

#define OUTER 0
#define INNER 1 /* PARSED_NON_IP when there is none */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct answer);
} answer SEC(".maps");

static __always_inline int say(__u32 layer, enum parsed parsed, const struct packet *p)
{
	struct answer *a = bpf_map_lookup_elem(&answer, &layer);

	if (!a)
		return 0;
	a->parsed = parsed;
	make_key(p, 0, &a->key);
	a->bytes = p->bytes;
	a->segs = p->segs;
	a->fragment_id = p->fragment_id;
	a->fragment = p->fragment;
	a->fragment_proto = p->fragment_proto;
	a->headers_unknown = p->headers_unknown;
	return 1;
}

/* For the inner packet: the offset of the upper-layer header << 32, its protocol << 24, and the VLAN ids in 12 bits each. */
static __always_inline __u64 say_outer(struct __sk_buff *skb, const bool ethernet)
{
	struct packet p;
	enum parsed parsed = parse(skb, ethernet, &p);

	say(OUTER, parsed, &p);
	if (parsed != PARSED_IP || !p.l4 || !may_tunnel(p.proto, p.ports))
		return 0;
	return (__u64)p.l4 << 32 | (__u32)p.proto << 24 | p.vlan_inner << 12 | p.vlan;
}

/* Functions of their own: each has its stack only while it runs. */
__noinline __u64 say_outer_ethernet(struct __sk_buff *skb)
{
	return say_outer(skb, true);
}

__noinline __u64 say_outer_l3(struct __sk_buff *skb)
{
	return say_outer(skb, false);
}

__noinline int say_inner(struct __sk_buff *skb, __u64 outer)
{
	__u32 layer = OUTER, vlans = (outer & 0xfff) | (outer >> 12 & 0xfff) << 16;
	struct answer *a = bpf_map_lookup_elem(&answer, &layer);
	struct inner *in = this_inner();
	bool found;

	if (!a || !in)
		return 0;
	found = outer && find_inner(skb, outer >> 24, vlans) && parse_inner(skb, a->segs);
	return say(INNER, found ? PARSED_IP : PARSED_NON_IP, &in->p);
}

SEC("classifier")
int answer_ethernet(struct __sk_buff *skb)
{
	return say_inner(skb, say_outer_ethernet(skb)) == 1;
}

/* BPF_PROG_TEST_RUN gives programs of this type the packet without its Ethernet header, as a device that has none would. */
SEC("cgroup_skb/ingress")
int answer_l3(struct __sk_buff *skb)
{
	return say_inner(skb, say_outer_l3(skb)) == 1; /* no other value is allowed */
}

char _license[] SEC("license") = "GPL";
