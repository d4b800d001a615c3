/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * For the differential test, never attached: what the meter's parser says of one packet, and nothing else.
 */
#include "parse.h"

/* What parse() said of the latest packet. */
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

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct answer);
} answer SEC(".maps");

static __always_inline int say(struct __sk_buff *skb, const bool ethernet)
{
	__u32 zero = 0;
	struct answer *a = bpf_map_lookup_elem(&answer, &zero);
	struct packet p;

	if (!a)
		return 0;
	a->parsed = parse(skb, ethernet, &p);
	make_key(&p, 0, &a->key);
	a->bytes = p.bytes;
	a->segs = p.segs;
	a->fragment_id = p.fragment_id;
	a->fragment = p.fragment;
	a->fragment_proto = p.fragment_proto;
	a->headers_unknown = p.headers_unknown;
	return 1;
}

SEC("classifier")
int answer_ethernet(struct __sk_buff *skb)
{
	return say(skb, true);
}

/* BPF_PROG_TEST_RUN gives programs of this type the packet without its Ethernet header, as a device that has none would. */
SEC("cgroup_skb/ingress")
int answer_l3(struct __sk_buff *skb)
{
	return say(skb, false);
}

char _license[] SEC("license") = "GPL";
