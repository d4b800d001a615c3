/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * From a frame to a flow key, wire packets and layer-3 bytes.
 *
 * Headers are read where they lie when they are in the linear part of the packet, and copied when they are not; nothing
 * is ever read beyond the packet, and no length field is trusted further than the packet itself.
 */
#ifndef NETAMS_PARSE_H
#define NETAMS_PARSE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "link.h"

#define MAX_EXTENSIONS 8 /* IPv6 extension headers that are walked */

#define IP_MORE_FRAGMENTS 0x2000
#define IP_FRAGMENT_OFFSET 0x1fff
#define IP6_FRAGMENT_OFFSET 0xfff8
#define IP6_MORE_FRAGMENTS 0x0001
#define IP6_JUMBO_OPTION 0xc2 /* RFC 2675; the kernel puts it into IPv6 super-packets of more than 64 KiB */
#define NEXT_MOBILITY 135

enum fragment { WHOLE, FIRST_FRAGMENT, LATER_FRAGMENT };
enum parsed { PARSED_IP, PARSED_NON_IP, PARSED_MALFORMED };

/* What is read from the packet's context, once: the verifier wants plain accesses, which loops make the compiler forget. */
struct frame {
	struct __sk_buff *skb;
	void *data, *end; /* the linear part */
	__u32 len;
	__u32 gso_size, gso_segs; /* gso_segs may be 0 although there are several: for packets of untrusted origin */
};

/* Where the hot path goes on: the compiler keeps values in registers there, and elsewhere on the stack. */
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

typedef __u64 __attribute__((may_alias)) word;

/* What a frame says. Fields that become the key are kept as they lie there, see make_key. */
struct packet {
	word src[2], dst[2];
	__u32 ports; /* source and destination, as on the wire */
	__u16 vlan, vlan_inner;
	__u8 proto, version;
	bool headers_unknown;
	enum fragment fragment;
	__u8 fragment_proto; /* the one that the fragment itself names */
	__u32 fragment_id;   /* as on the wire */
	__u32 l4;	     /* offset of the upper-layer header, 0 where there is none to be read */
	__u32 segs;	     /* wire packets */
	__u64 bytes;	     /* layer-3 bytes of all wire packets */
	__u32 tunnel;	     /* of an inner packet: key of what is directly around it */
	__u8 kind;	     /* enum tunnel */
};

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "on big-endian machines the words of make_key, parse_ports and parse_ipv4 go together the other way round"
#endif

/*
 * Writes a key in whole words: it is read again at once, for its hash, and a processor that reads a word which it has just
 * written in pieces waits until the pieces are in the cache.
 */
static __always_inline void make_key(const struct packet *p, __u8 used, struct flow_key *key)
{
	word *w = (word *)key;

	w[0] = p->src[0];
	w[1] = p->src[1];
	w[2] = p->dst[0];
	w[3] = p->dst[1];
	w[4] = p->ports | (word)p->vlan << 32 | (word)p->vlan_inner << 48;
	w[5] = p->tunnel | (word)p->proto << 32 | (word)p->version << 40 |
	       (word)p->kind << (48 + NETAMS_TUNNEL_SHIFT) | (word)used << 56;
}

/* `len` bytes at `off`, in place or copied to `buf`; NULL when the packet ends before. */
static __always_inline void *header(const struct frame *f, __u32 off, const __u32 len, void *buf)
{
	void *at;

	if (unlikely(off > MAX_OFFSET))
		return NULL;
	/*
	 * Verifiers of older kernels know neither that a copy of what was compared is as small, nor that a copy of a pointer has
	 * its range: the compiler is not to make any.
	 */
	asm volatile("%0 &= %1" : "+r"(off) : "i"(MAX_OFFSET));
	at = f->data + off;
	asm volatile("" : "+r"(at));
	if (likely(at + len <= f->end))
		return at;
	if (bpf_skb_load_bytes(f->skb, off, buf, len))
		return NULL;
	return buf;
}

static __always_inline bool has_ports(__u8 proto)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_UDP || proto == IPPROTO_UDPLITE || proto == IPPROTO_SCTP ||
	       proto == IPPROTO_DCCP;
}

static __always_inline void parse_ports(const struct frame *f, __u32 off, struct packet *p)
{
	__u32 buf, *ports;
	__u16 *icmp;

	if (likely(has_ports(p->proto))) {
		ports = header(f, off, 4, &buf);
		if (likely(ports))
			p->ports = *ports;
	} else if (p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6) {
		icmp = header(f, off, 2, &buf);
		if (icmp)
			p->ports = (__u32)*icmp << 16;
	}
}

/* UDP ports of encapsulations whose super-packets are cut inside the tunnel: VXLAN (two), Geneve, GTP-U. */
static __always_inline bool tunnel_port(__be16 port)
{
	return port == bpf_htons(4789) || port == bpf_htons(8472) || port == bpf_htons(6081) || port == bpf_htons(2152);
}

__u32 tunnel_headers(struct __sk_buff *skb, __u32 l4, __u32 proto);

/* Length of a TCP header, 0 where it cannot be read. */
static __always_inline __u32 tcp_header(const struct frame *f, __u32 l4)
{
	__u8 buf, *offset = header(f, l4 + 12, 1, &buf);

	return offset ? (*offset >> 4) * 4 : 0;
}

/*
 * A super-packet stands for several wire packets, and each of them carries the headers, those inside a tunnel too.
 * gso_segs is 0 for packets of untrusted origin (virtio, tun): then the payload tells.
 */
static __always_inline void count_segments(const struct frame *f, struct packet *p, __u32 l3, __u32 len, const bool outer)
{
	__u32 size = f->gso_size, segs = f->gso_segs, headers = p->l4 - l3, inside;

	p->bytes = len;
	if (likely(!size))
		return;
	if (!p->l4) {
		headers = 0;
		p->headers_unknown = true;
	} else if (p->proto == IPPROTO_TCP) {
		headers += tcp_header(f, p->l4);
	} else {
		inside = outer ? tunnel_headers(f->skb, p->l4, p->proto) : 0;
		if (inside) {
			headers = (inside & 0xffff) - l3 - (inside >> 16);
			len -= inside >> 16;
		} else if (p->proto == IPPROTO_UDP && !tunnel_port(p->ports >> 16)) {
			headers += 8;
		} else {
			p->headers_unknown = true;
		}
	}
	if (!segs)
		segs = len > headers ? (len - headers + size - 1) / size : 1;
	p->segs = segs;
	p->bytes = len + (__u64)(segs - 1) * headers;
}

static __always_inline enum parsed parse_ipv4(const struct frame *f, __u32 l3, struct packet *p, const bool outer)
{
	struct iphdr buf, *ip = header(f, l3, sizeof(buf), &buf);
	__u32 room = f->len - l3, l4, words, len;
	__u8 first;

	if (unlikely(!ip))
		return PARSED_MALFORMED;
	first = *(__u8 *)ip;
	words = first & 15;
	if (unlikely(first >> 4 != 4 || words < 5 || room < words * 4))
		return PARSED_MALFORMED;

	len = bpf_ntohs(ip->tot_len);
	if (unlikely(!len || len > room || f->gso_size))
		len = room;
	p->src[1] = bpf_htonl(0xffff) | (word)ip->saddr << 32;
	p->dst[1] = bpf_htonl(0xffff) | (word)ip->daddr << 32;
	p->proto = ip->protocol;
	p->version = 4;
	l4 = l3 + words * 4;
	if (unlikely(ip->frag_off & bpf_htons(IP_FRAGMENT_OFFSET | IP_MORE_FRAGMENTS))) {
		p->fragment = FIRST_FRAGMENT;
		p->fragment_id = ip->id;
		p->fragment_proto = ip->protocol;
		if (ip->frag_off & bpf_htons(IP_FRAGMENT_OFFSET)) {
			p->fragment = LATER_FRAGMENT;
			l4 = 0;
		}
	}
	p->l4 = l4;
	if (likely(l4))
		parse_ports(f, l4, p);
	count_segments(f, p, l3, len, outer);
	return PARSED_IP;
}

static __always_inline bool is_extension(__u8 next)
{
	return next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_FRAGMENT || next == IPPROTO_AH ||
	       next == IPPROTO_DSTOPTS || next == NEXT_MOBILITY;
}

/*
 * Walks extension headers from `off`, the first being of kind `next`. A function of its own, of numbers only, is verified
 * once and not again for each way that leads to it; its results share one number:
 *   bits 0-13 half the length of what was walked, which is even; 0 where the upper layer's ports are not to be read;
 *   14-15 enum fragment; 16-23 protocol; 24-31 protocol that the fragment header names; 32-63 identification.
 */
#define WALKED_LENGTH 0x3fff
__noinline __u64 walk_extensions(struct __sk_buff *skb, __u32 off, __u32 next)
{
	__u64 id = 0, proto = next, fragment_proto = 0, fragment = WHOLE;
	__u32 begin = off;
	__u8 ext[8];

#pragma unroll
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		if (!is_extension(next))
			break;
		if (off > MAX_OFFSET || bpf_skb_load_bytes(skb, off, ext, sizeof(ext))) {
			/* Cut short: its next-header byte is the answer when it is there. */
			if (off <= MAX_OFFSET && !bpf_skb_load_bytes(skb, off, ext, 1))
				proto = ext[0];
			off = begin;
			goto out;
		}
		proto = ext[0];
		if (next == IPPROTO_FRAGMENT) {
			__u32 offset = ext[2] << 8 | ext[3];

			id = *(__u32 *)(ext + 4);
			fragment_proto = proto;
			if (offset & IP6_FRAGMENT_OFFSET) {
				fragment = LATER_FRAGMENT;
				off = begin;
				goto out;
			}
			fragment = offset & IP6_MORE_FRAGMENTS ? FIRST_FRAGMENT : WHOLE;
			off += 8;
		} else if (next == IPPROTO_AH) {
			off += (ext[1] + 2) * 4;
		} else {
			off += (ext[1] + 1) * 8;
		}
		next = proto;
	}
	if (is_extension(next) || off > MAX_OFFSET)
		off = begin;
out:
	return id << 32 | fragment_proto << 24 | proto << 16 | fragment << 14 | ((off - begin) >> 1 & WALKED_LENGTH);
}

#define JUMBO_HEADER 8

static __always_inline bool is_jumbo(const __u8 *hop)
{
	return hop[1] == 0 && hop[2] == IP6_JUMBO_OPTION;
}

/* The hop-by-hop header of a jumbo super-packet is not on the wire: its length, otherwise 0. */
static __always_inline __u32 jumbo_header(const struct frame *f, __u32 off)
{
	__u8 buf[4], *hop = header(f, off, sizeof(buf), buf);

	return hop && is_jumbo(hop) ? JUMBO_HEADER : 0;
}

static __always_inline enum parsed parse_ipv6(const struct frame *f, __u32 l3, struct packet *p, const bool outer)
{
	struct ipv6hdr buf __attribute__((aligned(8))), *ip = header(f, l3, sizeof(buf), &buf);
	const word *address;
	__u32 room = f->len - l3, l4 = l3 + sizeof(buf), len, jumbo = 0;

	if (unlikely(!ip || *(__u8 *)ip >> 4 != 6))
		return PARSED_MALFORMED;
	len = bpf_ntohs(ip->payload_len);
	if (unlikely(!len && f->gso_size) && ip->nexthdr == IPPROTO_HOPOPTS)
		jumbo = jumbo_header(f, l4);
	len = !len || len + sizeof(buf) > room || f->gso_size ? room : len + sizeof(buf);
	address = (const word *)&ip->saddr;
	p->src[0] = address[0];
	p->src[1] = address[1];
	p->dst[0] = address[2];
	p->dst[1] = address[3];
	p->proto = ip->nexthdr;
	p->version = 6;
	if (unlikely(is_extension(p->proto))) {
		__u64 walked = walk_extensions(f->skb, l4, p->proto);

		l4 = walked & WALKED_LENGTH ? l4 + (walked & WALKED_LENGTH) * 2 : 0;
		p->fragment = walked >> 14 & 3;
		p->proto = walked >> 16;
		p->fragment_proto = walked >> 24;
		p->fragment_id = walked >> 32;
	}
	p->l4 = l4;
	if (l4)
		parse_ports(f, l4, p);
	count_segments(f, p, l3 + jumbo, len - jumbo, outer);
	return PARSED_IP;
}

static __always_inline struct frame frame_of(struct __sk_buff *skb)
{
	return (struct frame){
		.skb = skb,
		.data = (void *)(long)skb->data,
		.end = (void *)(long)skb->data_end,
		.len = skb->len,
		.gso_size = skb->gso_size,
		.gso_segs = skb->gso_size ? skb->gso_segs : 0,
	};
}

static __always_inline void clear(struct packet *p)
{
	p->src[0] = p->src[1] = p->dst[0] = p->dst[1] = 0;
	p->ports = 0;
	p->vlan = p->vlan_inner = 0;
	p->proto = p->version = 0;
	p->l4 = 0;
	p->segs = 1;
	p->bytes = 0;
	p->fragment = WHOLE;
	p->fragment_id = p->fragment_proto = 0;
	p->headers_unknown = false;
	p->tunnel = p->kind = 0;
}

/*
 * Finds the outermost IP header below VLAN tags, PPPoE and MPLS, and parses it. A tag that the device took off the frame and
 * one that is still in it are the same thing. Devices without an Ethernet header start at layer 3, and skb->protocol is
 * their type.
 */
static __always_inline enum parsed parse(struct __sk_buff *skb, const bool ethernet, struct packet *p)
{
	struct frame frame = frame_of(skb);
	const struct frame *f = &frame;
	__be16 proto = (__be16)skb->protocol;
	__u32 off = 0, tags = 0, found;
	__be16 buf[2], *in;

	clear(p);
	p->segs = f->gso_segs ?: 1;
	if (ethernet) {
		in = header(f, offsetof(struct ethhdr, h_proto), 2, buf);
		if (!in)
			return PARSED_NON_IP;
		proto = in[0];
		off = ETH_HLEN;
		if (unlikely(skb->vlan_present)) {
			p->vlan = skb->vlan_tci & 0xfff;
			tags++;
		}
#pragma unroll
		for (int i = 0; i < MAX_TAGS; i++) {
			if (likely(!is_tag(proto)) || tags == MAX_TAGS)
				break;
			in = header(f, off, 4, buf);
			if (!in)
				return PARSED_NON_IP;
			if (tags)
				p->vlan_inner = bpf_ntohs(in[0]) & 0xfff;
			else
				p->vlan = bpf_ntohs(in[0]) & 0xfff;
			tags++;
			proto = in[1];
			off += 4;
		}
	}
	if (proto == bpf_htons(ETH_P_IP))
		return parse_ipv4(f, off, p, true);
	if (likely(proto == bpf_htons(ETH_P_IPV6)))
		return parse_ipv6(f, off, p, true);
	found = below_ethertype(skb, off, proto);
	if (!found)
		return PARSED_NON_IP;
	off = found & MAX_OFFSET;
	return found & 1 << 16 ? parse_ipv6(f, off, p, true) : parse_ipv4(f, off, p, true);
}

#endif
