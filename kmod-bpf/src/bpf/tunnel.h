/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * From a packet to the innermost IP header in it, through at most three tunnels.
 *
 * IP in IP (RFC 2003, 4213, 2473), GRE (RFC 2784, 2890), VXLAN (RFC 7348), Geneve (RFC 8926), Teredo (RFC 4380), GTP-U (3GPP
 * TS 29.281). A header that would be malformed ends it, and what was found before counts.
 */
#ifndef NETAMS_TUNNEL_H
#define NETAMS_TUNNEL_H

#include "parse.h"

#define MAX_TUNNELS 3
#define MAX_GTP_EXTENSIONS 64

#define FOUND_KIND_SHIFT 20 /* enum tunnel, beside FOUND_ and the offset */

/* The payload's type by its EtherType, in GRE and Geneve. */
static __always_inline __u32 carried(__u32 off, __be16 proto)
{
	if (off > MAX_OFFSET)
		return 0;
	if (proto == bpf_htons(ETH_P_IP))
		return off | FOUND_IPV4;
	if (proto == bpf_htons(ETH_P_IPV6))
		return off | FOUND_IPV6;
	return proto == bpf_htons(ETH_P_TEB) ? off | FOUND_ETHERNET : 0;
}

static __always_inline __u64 tunnel(__u32 found, const enum tunnel kind, __u32 key)
{
	return found ? found | kind << FOUND_KIND_SHIFT | (__u64)key << 32 : 0;
}

#define GRE_CHECKSUM 0x8000
#define GRE_ROUTING 0x4000
#define GRE_KEY 0x2000
#define GRE_SEQUENCE 0x1000
#define GRE_VERSION 0x0007

__noinline __u64 below_gre(struct __sk_buff *skb, __u32 off)
{
	__be16 head[2];
	__be32 key = 0;
	__u32 flags;

	if (off > MAX_OFFSET || bpf_skb_load_bytes(skb, off, head, sizeof(head)))
		return 0;
	flags = bpf_ntohs(head[0]);
	if (flags & (GRE_ROUTING | GRE_VERSION))
		return 0;
	off += sizeof(head) + (flags & GRE_CHECKSUM ? 4 : 0);
	if (flags & GRE_KEY) {
		bpf_skb_load_bytes(skb, off, &key, sizeof(key));
		off += sizeof(key);
	}
	off += flags & GRE_SEQUENCE ? 4 : 0;
	return tunnel(carried(off, head[1]), TUNNEL_GRE, bpf_ntohl(key));
}

__noinline __u64 below_vxlan(struct __sk_buff *skb, __u32 off)
{
	__be32 head[2];

	if (off > MAX_OFFSET - sizeof(head) || bpf_skb_load_bytes(skb, off, head, sizeof(head)) ||
	    !(head[0] & bpf_htonl(0x08000000)))
		return 0;
	return tunnel((off + sizeof(head)) | FOUND_ETHERNET, TUNNEL_VXLAN, bpf_ntohl(head[1]) >> 8);
}

__noinline __u64 below_geneve(struct __sk_buff *skb, __u32 off)
{
	__be32 head[2];
	__u32 first;

	if (off > MAX_OFFSET || bpf_skb_load_bytes(skb, off, head, sizeof(head)))
		return 0;
	first = bpf_ntohl(head[0]);
	if (first >> 30)
		return 0;
	off += sizeof(head) + (first >> 24 & 0x3f) * 4;
	return tunnel(carried(off, bpf_htons(first)), TUNNEL_GENEVE, bpf_ntohl(head[1]) >> 8);
}

__noinline __u64 below_teredo(struct __sk_buff *skb, __u32 off)
{
	__u8 head[4];

	if (off > MAX_OFFSET)
		return 0;
	/* Authentication: lengths of the client's identification and of the authentication value, nonce, confirmation. */
	if (!bpf_skb_load_bytes(skb, off, head, 4) && head[0] == 0 && head[1] == 1)
		off += 4 + head[2] + head[3] + 9;
	/* Origin indication. */
	if (!bpf_skb_load_bytes(skb, off, head, 2) && head[0] == 0 && head[1] == 0)
		off += 8;
	return off > MAX_OFFSET ? 0 : tunnel(off | FOUND_IPV6, TUNNEL_TEREDO, 0);
}

#define GTP_VERSION_1 3 /* and not GTP' */
#define GTP_T_PDU 255
#define GTP_OPTIONAL 7
#define GTP_EXTENSION 4

__noinline __u64 below_gtp(struct __sk_buff *skb, __u32 off)
{
	__u8 head[8], optional[4];
	__u32 key;
	int next, size;

	if (off > MAX_OFFSET || bpf_skb_load_bytes(skb, off, head, sizeof(head)) || head[0] >> 4 != GTP_VERSION_1 ||
	    head[1] != GTP_T_PDU)
		return 0;
	key = head[4] << 24 | head[5] << 16 | head[6] << 8 | head[7];
	off += sizeof(head);
	if (head[0] & GTP_OPTIONAL) {
		if (bpf_skb_load_bytes(skb, off, optional, sizeof(optional)))
			return 0;
		off += sizeof(optional);
		next = head[0] & GTP_EXTENSION ? optional[3] : 0;
		for (int i = 0; i < MAX_GTP_EXTENSIONS && next; i++) {
			/* Its length in words; its last byte says what follows. */
			size = byte_at(skb, off);
			if (size <= 0)
				return 0;
			off += size * 4;
			next = byte_at(skb, off - 1);
			if (next < 0)
				return 0;
		}
		if (next)
			return 0;
	}
	return off > MAX_OFFSET ? 0 : tunnel(off | FOUND_IP, TUNNEL_GTPU, key);
}

#define PORT_VXLAN 4789
#define PORT_GENEVE 6081
#define PORT_TEREDO 3544
#define PORT_GTPU 2152

__noinline __u64 below_udp(struct __sk_buff *skb, __u32 off)
{
	__be16 udp[4];

	if (off > MAX_OFFSET || bpf_skb_load_bytes(skb, off, udp, sizeof(udp)))
		return 0;
	off += sizeof(udp);
	if (udp[1] == bpf_htons(PORT_VXLAN))
		return below_vxlan(skb, off);
	if (udp[1] == bpf_htons(PORT_GENEVE))
		return below_geneve(skb, off);
	if (udp[0] == bpf_htons(PORT_TEREDO) || udp[1] == bpf_htons(PORT_TEREDO))
		return below_teredo(skb, off);
	if (udp[0] == bpf_htons(PORT_GTPU) || udp[1] == bpf_htons(PORT_GTPU))
		return below_gtp(skb, off);
	return 0;
}

/* Whether to look for a tunnel in a packet at all. */
static __always_inline bool may_tunnel(__u8 proto, __u32 ports)
{
	__be16 sport = ports, dport = ports >> 16;

	if (proto == IPPROTO_UDP)
		return dport == bpf_htons(PORT_VXLAN) || dport == bpf_htons(PORT_GENEVE) ||
		       dport == bpf_htons(PORT_TEREDO) || dport == bpf_htons(PORT_GTPU) ||
		       sport == bpf_htons(PORT_TEREDO) || sport == bpf_htons(PORT_GTPU);
	return proto == IPPROTO_IPIP || proto == IPPROTO_IPV6 || proto == IPPROTO_GRE;
}

/* What a packet of this protocol carries, its upper-layer header being at `off`. */
static __always_inline __u64 decapsulate(struct __sk_buff *skb, __u32 off, __u32 proto)
{
	if (proto == IPPROTO_IPIP)
		return tunnel(off | FOUND_IPV4, TUNNEL_IP, 0);
	if (proto == IPPROTO_IPV6)
		return tunnel(off | FOUND_IPV6, TUNNEL_IP, 0);
	if (proto == IPPROTO_GRE)
		return below_gre(skb, off);
	return proto == IPPROTO_UDP ? below_udp(skb, off) : 0;
}

#define IPV6_HEADER 40
#define UPPER_SIX (1 << 15)
#define UPPER_VALID (1 << 24)
#define UPPER_JUMBO (1 << 25) /* where it is a super-packet, its hop-by-hop header is not on the wire */

/*
 * Of an IP header: bits 0-14 offset of the upper layer, 0 where nothing is to be looked for there; 16-23 protocol; UPPER_
 * flags. 0: it is malformed.
 */
__noinline __u32 upper_layer(struct __sk_buff *skb, __u32 found)
{
	__u32 off = found & MAX_OFFSET, words, flags = UPPER_VALID;
	__u8 head[12], hop[4];
	__u64 walked;

	if (bpf_skb_load_bytes(skb, off, head, sizeof(head)))
		return 0;
	if (head[0] >> 4 == 4 && (found & FOUND_MASK) != FOUND_IPV6) {
		words = head[0] & 15;
		if (words < 5 || byte_at(skb, off + words * 4 - 1) < 0)
			return 0;
		off = (head[6] & 0x1f) || head[7] ? 0 : off + words * 4;
		return flags | head[9] << 16 | (off > MAX_OFFSET ? 0 : off);
	}
	if (head[0] >> 4 != 6 || (found & FOUND_MASK) == FOUND_IPV4 || byte_at(skb, off + IPV6_HEADER - 1) < 0)
		return 0;
	off += IPV6_HEADER;
	flags |= UPPER_SIX;
	if (!head[4] && !head[5] && head[6] == IPPROTO_HOPOPTS && !bpf_skb_load_bytes(skb, off, hop, sizeof(hop)) &&
	    is_jumbo(hop))
		flags |= UPPER_JUMBO;
	if (is_extension(head[6])) {
		walked = walk_extensions(skb, off, head[6]);
		off = walked & WALKED_LENGTH ? off + (walked & WALKED_LENGTH) * 2 : 0;
		head[6] = walked >> 16;
	}
	return flags | head[6] << 16 | (off > MAX_OFFSET ? 0 : off);
}

/* The innermost packet that was found, and what it says. */
struct inner {
	__u32 l3, l4; /* offsets; l4 is 0 where there is none to be read */
	__u32 tunnel; /* key of what is directly around it */
	__u16 vlan, vlan_inner;
	__u8 unsent; /* bytes of jumbo headers, of all packets inside the outermost one */
	__u8 kind;   /* enum tunnel */
	__u8 proto;
	bool six;
	struct packet p;
};

/* Where the functions below hand it on: none of them has stack for what the others need. A CPU has one packet at a time. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct inner);
} inner SEC(".maps");

static __always_inline struct inner *this_inner(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&inner, &zero);
}

/*
 * Looks for it; says whether there is one. `l4_proto` is the offset of the outermost packet's upper-layer header << 8 and its
 * protocol, `vlans` are its VLAN ids, the inner one in the upper half.
 */
__noinline int find_inner(struct __sk_buff *skb, __u32 l4_proto, __u32 vlans)
{
	struct inner *in = this_inner();
	__u32 l4 = l4_proto >> 8, proto = l4_proto & 0xff, upper;
	__u64 found, below;

	if (!in)
		return 0;
	in->l3 = 0;
	in->vlan = vlans;
	in->vlan_inner = vlans >> 16;
	in->unsent = 0;
	for (int i = 0; i < MAX_TUNNELS; i++) {
		below = found = l4 && l4 <= MAX_OFFSET ? decapsulate(skb, l4, proto) : 0;
		if ((found & FOUND_MASK) == FOUND_ETHERNET)
			below = below_ethernet(skb, found & MAX_OFFSET);
		upper = below ? upper_layer(skb, below) : 0;
		if (!upper)
			break;
		if ((found & FOUND_MASK) == FOUND_ETHERNET) {
			in->vlan = below >> 32;
			in->vlan_inner = below >> 48;
		}
		in->l3 = below & MAX_OFFSET;
		in->l4 = l4 = upper & MAX_OFFSET;
		in->tunnel = found >> 32;
		in->kind = found >> FOUND_KIND_SHIFT & 7;
		in->proto = proto = upper >> 16 & 0xff;
		in->six = upper & UPPER_SIX;
		in->unsent += upper & UPPER_JUMBO ? JUMBO_HEADER : 0;
	}
	return in->l3 != 0;
}

/*
 * Where the headers end that each segment of a tunnel's super-packet carries; in the upper half, bytes of them that are not on
 * the wire. 0: not known.
 */
__noinline __u32 tunnel_headers(struct __sk_buff *skb, __u32 l4, __u32 proto)
{
	struct inner *in = this_inner();
	__be16 ports[2] = {};
	int words;

	if (!in || l4 > MAX_OFFSET || !find_inner(skb, l4 << 8 | (proto & 0xff), 0) || !in->l4)
		return 0;
	if (in->proto == IPPROTO_TCP) {
		words = byte_at(skb, in->l4 + 12);
		return (in->l4 + (words < 0 ? 0 : (words >> 4) * 4)) | in->unsent << 16;
	}
	if (in->proto != IPPROTO_UDP)
		return 0;
	bpf_skb_load_bytes(skb, in->l4, ports, sizeof(ports));
	return tunnel_port(ports[1]) ? 0 : (in->l4 + 8) | in->unsent << 16;
}

/* Parses what find_inner has found, into `p`; `segs` are the wire packets of the outermost packet. */
__noinline int parse_inner(struct __sk_buff *skb, __u32 segs)
{
	struct inner *in = this_inner();
	struct frame f = frame_of(skb);
	__u32 l3;

	if (!in)
		return 0;
	l3 = in->l3 & MAX_OFFSET;
	clear(&in->p);
	f.gso_segs = in->p.segs = segs;
	in->p.vlan = in->vlan;
	in->p.vlan_inner = in->vlan_inner;
	in->p.tunnel = in->tunnel;
	in->p.kind = in->kind;
	return (in->six ? parse_ipv6(&f, l3, &in->p, false) : parse_ipv4(&f, l3, &in->p, false)) == PARSED_IP;
}

#endif
