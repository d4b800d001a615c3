/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * For the benchmark, never attached: the meter as it is, and its yardsticks: an empty program, the same parser and clock
 * alone, and the same meter with the usual flow table, a hash shared by the CPUs with atomic additions.
 *
 * Every program first gives its packet a source address, so that one packet, run many times, stands for many flows:
 * skb->mark is the number of flows (1: leave the packet alone, NEW_FLOWS: each packet another one), skb->cb[0] the place of
 * the address's last four bytes.
 */
#include "inner.h"

#define NEW_FLOWS 0xffffffff
#define MAX_PLACE 128

__u32 next_flow;

static __always_inline void choose_flow(struct __sk_buff *skb)
{
	__u32 flows = skb->mark, place = skb->cb[0];
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (flows == 1 || place > MAX_PLACE || data + place + 4 > end)
		return;
	*(__u32 *)(data + place) = flows == NEW_FLOWS ? next_flow++ : bpf_get_prandom_u32() % flows;
}

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow_key);
	__type(value, struct spill_value);
} plain SEC(".maps");

static __always_inline bool account_plain(struct flow_key *key, __u32 segs, __u64 bytes, __u32 partition,
					  struct counters *count, bool judged)
{
	struct spill_value *value, fresh = { 0 };
	__u32 now = stamp();

	value = bpf_map_lookup_elem(&plain, key);
	if (!value) {
		fresh.packets = segs;
		fresh.bytes = bytes;
		fresh.first = now;
		fresh.last = now;
		if (!bpf_map_update_elem(&plain, key, &fresh, BPF_NOEXIST))
			return true;
		value = bpf_map_lookup_elem(&plain, key);
		if (!value) {
			count->overflow_packets += segs;
			return true;
		}
	}
	__sync_fetch_and_add(&value->packets, segs);
	__sync_fetch_and_add(&value->bytes, bytes);
	value->last = now;
	return true;
}

#define METER meter_cache
#define ACCOUNT account
#include "meter.h"
#undef METER
#undef ACCOUNT
#define METER meter_hash
#define ACCOUNT account_plain
#include "meter.h"

/* Keeps the compiler from dropping a parse whose result nobody needs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_slot);
} sink SEC(".maps");

SEC("classifier")
int empty(struct __sk_buff *skb)
{
	choose_flow(skb);
	return -1;
}

SEC("classifier")
int parse_clock(struct __sk_buff *skb)
{
	struct packet p;
	struct flow_slot *slot;
	__u32 zero = 0;

	choose_flow(skb);
	if (parse(skb, true, &p) != PARSED_IP)
		return -1;
	slot = bpf_map_lookup_elem(&sink, &zero);
	if (!slot)
		return -1;
	make_key(&p, NETAMS_USED, &slot->key);
	slot->packets = p.segs;
	slot->bytes = p.bytes + stamp();
	return -1;
}

SEC("classifier")
int hash_atomics(struct __sk_buff *skb)
{
	choose_flow(skb);
	return meter_hash(skb, true, ENTER);
}

SEC("classifier")
int flow_cache(struct __sk_buff *skb)
{
	choose_flow(skb);
	return meter_cache(skb, true, ENTER);
}

char _license[] SEC("license") = "GPL";
