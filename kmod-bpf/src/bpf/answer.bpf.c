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

__noinline int say_inner(struct __sk_buff *skb, __u32 l4_proto, __u32 vlans, __u32 segs)
{
	struct packet p;
	bool found = l4_proto && parse_inner(skb, l4_proto >> 8, l4_proto, vlans, segs, &p);

	if (!found)
		clear(&p);
	return say(INNER, found ? PARSED_IP : PARSED_NON_IP, &p);
}

static __always_inline int say_both(struct __sk_buff *skb, const bool ethernet)
{
	struct packet p;
	enum parsed parsed = parse(skb, ethernet, &p);
	bool look = parsed == PARSED_IP && p.l4 && may_tunnel(p.proto, p.ports);

	return say(OUTER, parsed, &p) &&
	       say_inner(skb, look ? p.l4 << 8 | p.proto : 0, p.vlan | (__u32)p.vlan_inner << 16, p.segs);
}

SEC("classifier")
int answer_ethernet(struct __sk_buff *skb)
{
	return say_both(skb, true);
}

/* BPF_PROG_TEST_RUN gives programs of this type the packet without its Ethernet header, as a device that has none would. */
SEC("cgroup_skb/ingress")
int answer_l3(struct __sk_buff *skb)
{
	return say_both(skb, false);
}

char _license[] SEC("license") = "GPL";
