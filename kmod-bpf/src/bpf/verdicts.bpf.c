/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * For the differential test and the benchmark, never attached: verdicts on flows that are given in a map, one a run.
 */
#include "verdict.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_key);
} subjects SEC(".maps");

/* enum verdict of each; from bit 8 on, of one that passes, how often it is charged to each quota: two bits for each of 28. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} verdicts SEC(".maps");

/* Which is next. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} cursor SEC(".maps");

static __always_inline __u64 charges(void)
{
	struct subject *s = this_subject();
	__u64 sum = 0;

	if (!s || !charge_subject(1, 0))
		return 0;
#pragma unroll
	for (int i = 0; i < MAX_FLOW_QUOTAS; i++) {
		if (!s->quotas[i])
			break;
		sum += 1ull << (8 + 2 * ((__u32)(s->quotas[i] - 1) % 28));
	}
	return sum;
}

SEC("classifier")
int next_verdict(struct __sk_buff *skb)
{
	__u32 zero = 0, index;
	struct flow_key *key;
	__u64 *next, *into;

	next = bpf_map_lookup_elem(&cursor, &zero);
	if (!next)
		return 0;
	index = (*next)++;
	key = bpf_map_lookup_elem(&subjects, &index);
	into = bpf_map_lookup_elem(&verdicts, &index);
	if (!key || !into)
		return 0;
	*into = verdict_on(key);
	if (cfg_quotas && *into == VERDICT_PASS)
		*into |= charges();
	return 1;
}

char _license[] SEC("license") = "GPL";
