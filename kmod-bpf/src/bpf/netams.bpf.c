/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The in-kernel meter. For each packet at a tc hook:
 *   - the epoch's lowest bit says which half of the tables is being filled;
 *   - a packet that an earlier hook of ours has counted carries our mark in tc_index and is not counted again: that is how
 *     a forwarded packet counts once, where it enters, whichever interfaces are attached; one that was not IP there is
 *     looked at again, since a device further up may have uncovered an IP packet in it;
 *   - it is parsed to a flow key, wire packets and layer-3 bytes (parse.h) and added to the flow cache (cache.h).
 * The verdict is always "next program decides": other programs on the hook go on working.
 *
 * tc_index travels with the packet through forwarding, fragmentation and cloning, is not seen by routing rules or
 * netfilter, and its only other users (dsmark, tcindex) have left the kernel in 6.3. Its value is derived from the network
 * namespace, so that two namespaces of one machine do not take each other's packets for counted.
 */
#include "inner.h"

#define METER meter
#define ACCOUNT account
#include "meter.h"

#define PROGRAM(name, ethernet, hook)            \
	SEC("classifier")                        \
	int name(struct __sk_buff *skb)          \
	{                                        \
		return meter(skb, ethernet, hook); \
	}

PROGRAM(netams_enter, true, ENTER)
PROGRAM(netams_upper, true, UPPER)
PROGRAM(netams_leave, true, LEAVE)
PROGRAM(netams_enter_l3, false, ENTER)
PROGRAM(netams_upper_l3, false, UPPER)
PROGRAM(netams_leave_l3, false, LEAVE)

/* Ingress of devices that are not metered, and yet let in what leaves through one that is. */
SEC("classifier")
int netams_stamp(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct control *ctl = bpf_map_lookup_elem(&control, &zero);

	if (ctl && ctl->flags & NETAMS_STAMP)
		stamp_size(skb, true);
	return TC_ACT_UNSPEC;
}

/* Run by the daemon with BPF_PROG_TEST_RUN: the time in which stamps are given. */
SEC("classifier")
int netams_clock(struct __sk_buff *skb)
{
	return stamp();
}

char _license[] SEC("license") = "GPL";
