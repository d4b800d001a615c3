/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the kernel half and the daemon share: the layout of every map value.
 * The Rust side is in src/lib.rs; a test compares it with this object's BTF, field by field.
 */
#ifndef NETAMS_ABI_H
#define NETAMS_ABI_H

#include <linux/bpf.h>
#include <linux/types.h>

#define NETAMS_WAYS 4 /* slots a set */
#define MAX_FLOW_QUOTAS 6 /* hard quotas of both sides of a flow */

#define NETAMS_USED 2
#define NETAMS_FRAGMENT 1  /* later fragments, ports unknown */
#define NETAMS_ESTIMATED 2 /* super-packets of unknown segment size; only in user space */
#define NETAMS_CARRIER 4   /* each of these packets has an inner flow as well */
#define NETAMS_DROPPED 64  /* by a verdict: what is counted here did not pass */
#define NETAMS_TUNNEL_SHIFT 3 /* enum tunnel in three bits; TUNNEL_NONE in the outer layer */

/* What is directly around the packet of an inner flow. */
enum tunnel { TUNNEL_NONE, TUNNEL_IP, TUNNEL_GRE, TUNNEL_VXLAN, TUNNEL_GENEVE, TUNNEL_TEREDO, TUNNEL_GTPU };

/* Identity of a flow. IPv4 is held v4-mapped; ports and VLAN ids are in network and host order as noted. */
struct flow_key {
	__u8 src[16];
	__u8 dst[16];
	__be16 sport;	   /* 0 where there is none */
	__be16 dport;	   /* ICMP: type, code */
	__u16 vlan;	   /* outer VLAN id, host order, 0 = none */
	__u16 vlan_inner;  /* inner VLAN id of QinQ, host order, 0 = none */
	__u32 tunnel;	   /* GRE key, VNI or TEID of the tunnel around an inner flow, host order, 0 = none */
	__u8 proto;	   /* after IPv6 extension headers */
	__u8 version;	   /* 4 or 6 */
	__u8 flags;	   /* NETAMS_FRAGMENT, NETAMS_ESTIMATED, NETAMS_CARRIER, NETAMS_DROPPED, enum tunnel */
	__u8 used;	   /* NETAMS_USED + half that the entry belongs to; 0 = free slot */
} __attribute__((aligned(8)));

/*
 * One flow of a set: exactly one cache line, all that a packet of a known flow touches. When `packets` would wrap, the
 * flow goes on in the second-level table. Stamps are the lower half of jiffies.
 */
struct flow_slot {
	struct flow_key key;
	__u64 bytes;   /* layer-3 bytes */
	__u32 packets; /* wire packets */
	__u32 last;    /* stamp of the last packet */
};

/* Slots for flows whose keys hash alike. */
struct flow_set {
	struct flow_slot slot[NETAMS_WAYS];
	__u32 first[NETAMS_WAYS]; /* stamp of the first packet, never 0; 0 = free slot */
	__u16 quotas[NETAMS_WAYS][MAX_FLOW_QUOTAS]; /* that each flow is charged to, their numbers and 1; 0 = no more */
};

/* Value of the second-level table; its key is struct flow_key. */
struct spill_value {
	__u64 packets;
	__u64 bytes;
	__u32 first;
	__u32 last;
};

/* What the fragments of one packet have in common; the value of their table is the flow of the first one. */
struct fragment_key {
	__u8 src[16];
	__u8 dst[16];
	__u32 id; /* as on the wire */
	__u8 proto; /* the one that the fragment itself names */
	__u8 version;
	__u16 layer; /* 0: outer, 1: inner */
};

/* Traffic of an address prefix for which the tables had no room. */
struct overflow_cell {
	__u64 in_packets;
	__u64 in_bytes;
	__u64 out_packets;
	__u64 out_bytes;
};

/*
 * Key of the prefix table: longest match of v4-mapped addresses, within what else units ask of a packet. There 0 is
 * whatever it may be.
 */
struct prefix_key {
	__u32 len; /* bits, 96..224 */
	__u16 vlan, vlan_inner;
	__u32 tunnel;
	__u32 tunnel_kind; /* enum tunnel */
	__u8 addr[16];
};
#define NETAMS_SCOPE_BITS 96 /* of prefix_key, in front of the address */

/* Counters of one CPU in one half, in wire packets unless a name says bytes. Three cache lines. */
struct counters {
	__u64 packets_in;
	__u64 packets_out;
	__u64 already_counted;
	__u64 non_ip;
	__u64 malformed;
	__u64 overflow_packets;
	__u64 overflow_bytes;
	__u64 spilled;		   /* packets accounted in the second-level table */
	__u64 fragments;	   /* later fragments, accounted without ports */
	__u64 gso_headers_unknown; /* super-packets of an encapsulation */
	__u64 no_slot;		   /* map lookups that cannot fail and did: packets lost */
	/* Only of the source in user space, but for `dropped`. */
	__u64 estimated;  /* wire packets inferred from super-packets of unknown segment size */
	__u64 dropped;	  /* by a verdict */
	__u64 queued;	  /* packets that came out of the queue, super-packets as one */
	__u64 queue_lost; /* gaps in their ids */
	/* Of packets that have an inner flow, for which the tables had no room. */
	__u64 inner_overflow_packets;
	__u64 inner_overflow_bytes;
	__u64 reserved[7];
};

/* The daemon writes epoch and flags while programs run; the rest is set before they are attached. */
struct control {
	__u64 epoch; /* its lowest bit is the half that is being filled */
	__u64 table; /* random identity of this set of maps */
	__u64 store; /* identity of the store that these counts belong to */
	__u32 abi;   /* NETAMS_ABI */
	__u32 cpus;
	__u32 sets; /* a CPU and a half, a power of two */
	__u32 classes;
	__u32 flags; /* NETAMS_PAUSED and the next ones; 0: count */
	__u32 tunnels; /* cfg_tunnels of the programs that fill these maps */
	__u64 quotas;  /* says whether two sets of maps have the same hard quotas; 0: none */
};
#define NETAMS_PAUSED 1	  /* do not count: another source does */
#define NETAMS_STAMP 2	  /* write segment sizes into the packets' marks, for the netfilter queues */
#define NETAMS_HANDOVER 4 /* two sources run: who counts a packet marks it, and a marked one is not counted again */
#define NETAMS_REJUDGE 8  /* judge each packet: verdicts that slots have may be former ones */
#define NETAMS_ABI 4

/*
 * The policies, compiled: what verdict.h evaluates in the kernel, and netamsd/src/policy/program.rs in user space. Numbers
 * of units begin at 1; 0 stands for addresses that belong to none, and says what becomes of packets that nobody decides.
 */
struct unit_rules {
	__u32 flags;
	__u32 list;   /* of policies that let packets pass: where it begins among the words */
	__u32 quotas; /* hard ones: where their rules' numbers begin among the words, 0 if there are none */
	__u32 reserved;
};
#define UNIT_HAS_LIST 1
#define UNIT_BLOCKED 2	     /* by the administrator */
#define UNIT_OVER_QUOTA 4
#define UNIT_NO_LOCAL_PASS 8 /* without a list, what becomes of its packets is that of unit 0's */
#define UNIT_DROP_ALL 16     /* of unit 0: nobody decides, and no side is a unit */
#define UNIT_DROP_LOCAL 32   /* of unit 0: nobody decides, and one side is a unit */

/* A word is the number of a unit, or of a policy's first rule; a sequence of words ends with the one that says so. */
#define WORD_LAST 0x80000000
#define WORD_NOT 0x40000000 /* the policy must not hold */
#define WORD_NUMBER 0x3fffffff

/* One step of a policy: whether a number is from `low` to `high` decides how many rules further it goes on. */
struct rule {
	__u8 test; /* enum test */
	__u8 side; /* enum side, of tests on addresses */
	__u16 yes, no;
	__u16 list; /* TEST_PREFIX: which list; TEST_TUNNEL: bit set of enum tunnel */
	__u32 low, high;
};

enum test {
	TEST_ANSWER,   /* the end: whether `low` is not 0 */
	TEST_PROTO,
	TEST_SPORT,    /* of protocols that have ports */
	TEST_DPORT,
	TEST_VLAN,     /* 0: none */
	TEST_VLAN_INNER,
	TEST_TUNNEL,   /* key of the tunnel around an inner flow, if it is one of the kinds in `list` */
	TEST_SOURCE,   /* enum source */
	TEST_PREFIX,   /* value of the longest prefix of a list around an address */
	TEST_UNIT,     /* address belongs to unit `low` */
	TEST_SCHEDULE, /* schedule `low` holds now */
};

enum side { SIDE_SOURCE, SIDE_DESTINATION, SIDE_OTHER /* than the unit's */ };
enum source { SOURCE_KERNEL, SOURCE_NFQUEUE, SOURCE_REPLAY };

/* Key of the lists of prefixes. */
struct list_key {
	__u32 len; /* bits, 32..160 */
	__u32 list;
	__u8 addr[16];
};

/* Which packets of a unit are charged to a quota. */
struct quota_rule {
	__u32 quota;
	__u32 sides; /* bit set of enum side, without SIDE_OTHER: where the unit is */
	__u32 first; /* rule of the policy that has to hold; EVERY_PACKET */
	__u32 reserved;
};
#define EVERY_PACKET 0xffffffff

/* A hard quota as the daemon says. */
struct quota_room {
	__u64 room;	/* bytes that quota_use may have in both halves together */
	__s64 start_ms; /* of the period */
	__u64 turn;	/* another one for each period, never 0 */
};

/* And what the programs have counted of it since the maps were made; nothing is ever taken off. */
struct quota_use {
	struct bpf_spin_lock lock;
	__u32 over; /* the turn in which a packet found no room: none passes any more */
	__u64 used[2]; /* bytes by half */
};

/* Why a packet is dropped, the strongest reason last. */
enum verdict { VERDICT_PASS, DROP_BY_DEFAULT, DROP_BY_POLICY, DROP_BY_QUOTA, DROP_BLOCKED };

/* Steps of a policy, policies of a list and units of a prefix at most: loops have an end before they begin. */
#define MAX_RULES 128
#define MAX_LIST 64
#define MAX_UNITS 64
#define MAX_UNIT_QUOTAS 16 /* hard quotas of a unit */

#endif
