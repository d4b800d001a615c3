/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * From the link layer to the outermost IP header, and the same inside tunnels: VLAN tags, PPPoE, MPLS.
 *
 * Functions with numbers as arguments and results are verified once, whatever leads to them; only rare packets come here.
 * Offsets stay below MAX_OFFSET, so that they fit into 15 bits of a result.
 */
#ifndef NETAMS_LINK_H
#define NETAMS_LINK_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define MAX_TAGS 2	  /* VLAN tags that are looked through */
#define MAX_OFFSET 0x7fff /* more than headers can reach */

#define PPP_IP 0x0021
#define PPP_IPV6 0x0057
#define PPP_MPLS_UC 0x0281
#define PPP_MPLS_MC 0x0283
#define PPPOE_HEADER 6

/* What begins at an offset; the lowest 15 bits are the offset, the next ones this, and 0 is nothing that counts here. */
#define FOUND_IP (1 << 16)	 /* IPv4 or IPv6, as its first nibble says */
#define FOUND_IPV4 (2 << 16)
#define FOUND_IPV6 (3 << 16)
#define FOUND_ETHERNET (4 << 16) /* in tunnels */
#define FOUND_MASK (7 << 16)

static __always_inline bool is_tag(__be16 proto)
{
	return proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD) || proto == bpf_htons(ETH_P_QINQ1);
}

static __always_inline bool is_mpls(__be16 proto)
{
	return proto == bpf_htons(ETH_P_MPLS_UC) || proto == bpf_htons(ETH_P_MPLS_MC);
}

/* A byte, or -1 where the packet has ended. */
static __always_inline int byte_at(struct __sk_buff *skb, __u32 off)
{
	__u8 byte;

	return off > MAX_OFFSET || bpf_skb_load_bytes(skb, off, &byte, 1) ? -1 : byte;
}

#define LABELS 64 /* at a time: LABELS * LABELS reach beyond any packet */
#define BOTTOM (1 << 16)

/* Offset behind the label that ends a stack, with BOTTOM, or behind the last one that was looked at; 0: cut short. */
__noinline __u32 skip_labels(struct __sk_buff *skb, __u32 off)
{
	__u8 label[4];

	for (int i = 0; i < LABELS; i++) {
		if (off > MAX_OFFSET || bpf_skb_load_bytes(skb, off, label, sizeof(label)))
			return 0;
		off += sizeof(label);
		if (label[2] & 1)
			return off | BOTTOM;
	}
	return off;
}

/* Nothing says what is below a stack of labels: the first nibble is believed (RFC 4928). */
__noinline __u32 below_labels(struct __sk_buff *skb, __u32 off)
{
	int first;

	for (int i = 0; i < LABELS * 2; i++) {
		off = skip_labels(skb, off);
		if (!off || off & BOTTOM)
			break;
	}
	if (!(off & BOTTOM))
		return 0;
	off &= ~BOTTOM;
	first = byte_at(skb, off);
	if (first < 0)
		return 0;
	if (first >> 4 == 4)
		return off | FOUND_IPV4;
	return first >> 4 == 6 ? off | FOUND_IPV6 : 0;
}

/* A protocol field of one byte is odd (RFC 1661). */
__noinline __u32 below_ppp(struct __sk_buff *skb, __u32 off)
{
	int first = byte_at(skb, off), second;

	if (first < 0)
		return 0;
	off++;
	if (!(first & 1)) {
		second = byte_at(skb, off);
		if (second < 0)
			return 0;
		off++;
		first = first << 8 | second;
	}
	if (off > MAX_OFFSET)
		return 0;
	if (first == PPP_IP)
		return off | FOUND_IPV4;
	if (first == PPP_IPV6)
		return off | FOUND_IPV6;
	return first == PPP_MPLS_UC || first == PPP_MPLS_MC ? below_labels(skb, off) : 0;
}

/* What a packet of this EtherType, VLAN tags excepted, leads to. */
static __always_inline __u32 below_ethertype(struct __sk_buff *skb, __u32 off, __be16 proto)
{
	if (proto == bpf_htons(ETH_P_IP))
		return off | FOUND_IPV4;
	if (proto == bpf_htons(ETH_P_IPV6))
		return off | FOUND_IPV6;
	if (is_mpls(proto))
		return below_labels(skb, off);
	return proto == bpf_htons(ETH_P_PPP_SES) ? below_ppp(skb, off + PPPOE_HEADER) : 0;
}

/* An Ethernet header inside a tunnel. In the upper half of the result are the VLAN ids, outer and inner. */
__noinline __u64 below_ethernet(struct __sk_buff *skb, __u32 off)
{
	__be16 tag[2] = {};
	__u64 found, vlans = 0;

	if (off > MAX_OFFSET - ETH_HLEN - MAX_TAGS * 4 ||
	    bpf_skb_load_bytes(skb, off + offsetof(struct ethhdr, h_proto), &tag[1], 2))
		return 0;
	off += ETH_HLEN;
#pragma unroll
	for (int i = 0; i < MAX_TAGS; i++) {
		if (!is_tag(tag[1]))
			break;
		if (bpf_skb_load_bytes(skb, off, tag, sizeof(tag)))
			return 0;
		vlans |= (__u64)(bpf_ntohs(tag[0]) & 0xfff) << (32 + i * 16);
		off += sizeof(tag);
	}
	found = below_ethertype(skb, off, tag[1]);
	return found ? found | vlans : 0;
}

#endif
