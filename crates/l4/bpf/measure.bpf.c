/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* For measurements only: sends TCP segments of many flows, and drops what arrives. */
#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define HEADERS 54

struct order {
	__u8 headers[HEADERS + 2];
	__u32 ifindex;
	__u32 flows;
	__u32 next;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct order);
} orders SEC(".maps");

/* Frames come back as the receiver left them, so all headers are written each time. */
SEC("xdp")
int ironweir_send(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0;
	struct order *o = bpf_map_lookup_elem(&orders, &zero);

	if (!o || data + HEADERS > end)
		return XDP_DROP;
	__builtin_memcpy(data, o->headers, HEADERS);
	__u32 n = o->next++;
	/* An order in which neighbours in the table do not follow each other. */
	n = (__u32)(((__u64)(n * 2654435761u) * o->flows) >> 32);
	*(__u8 *)(data + 29) = n / 50000;
	*(__u16 *)(data + 34) = bpf_htons(10000 + n % 50000);
	return bpf_redirect(o->ifindex, 0);
}

/* A checksum over more words. */
static __always_inline __u16 over(__u16 check, __u32 sum)
{
	sum += (__u16)~check;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* SYNs of nobody: what stands for the host, the port and the number is zero in the order, and drawn for each frame. */
SEC("xdp")
int ironweir_syns(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0, who = bpf_get_prandom_u32(), number = bpf_get_prandom_u32();
	struct order *o = bpf_map_lookup_elem(&orders, &zero);

	if (!o || data + HEADERS > end)
		return XDP_DROP;
	__builtin_memcpy(data, o->headers, HEADERS);
	__u16 *ip_check = data + 24, *tcp_check = data + 50;
	*(__u16 *)(data + 28) = who;
	*(__u16 *)(data + 34) = who >> 16;
	*(__u16 *)(data + 38) = number;
	*(__u16 *)(data + 40) = number >> 16;
	*ip_check = over(*ip_check, (__u16)who);
	*tcp_check = over(*tcp_check, (__u16)who + (who >> 16) + (__u16)number + (number >> 16));
	return bpf_redirect(o->ifindex, 0);
}

#define HEADERS_MAX 74

/* A frame that is made anew in each round of BPF_PROG_TEST_RUN, and goes to a program then. */
struct round {
	__u8 headers[HEADERS_MAX + 2];
	__u32 size;   /* of the frame */
	__u32 flows;
	__u32 next;
	__u32 target; /* in `targets` */
	__u32 v6;
	__u32 in_order; /* flows one after the other, not scattered */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct round);
} rounds SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u32);
} targets SEC(".maps");

SEC("xdp")
int ironweir_round(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct round *o = bpf_map_lookup_elem(&rounds, &zero);
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (!o)
		return XDP_ABORTED;
	/* What the round before has wrapped. */
	if ((__u32)(end - data) != o->size) {
		if (bpf_xdp_adjust_head(ctx, (int)(end - data) - (int)o->size))
			return XDP_ABORTED;
		data = (void *)(long)ctx->data;
		end = (void *)(long)ctx->data_end;
	}
	__u32 n = o->next++;
	n = o->in_order ? n % o->flows : (__u32)(((__u64)(n * 2654435761u) * o->flows) >> 32);
	if (o->v6) {
		if (data + HEADERS_MAX > end)
			return XDP_ABORTED;
		__builtin_memcpy(data, o->headers, HEADERS_MAX);
		*(__u8 *)(data + 37) = n / 50000;
		*(__u16 *)(data + 54) = bpf_htons(10000 + n % 50000);
	} else {
		if (data + HEADERS > end)
			return XDP_ABORTED;
		__builtin_memcpy(data, o->headers, HEADERS);
		*(__u8 *)(data + 29) = n / 50000;
		*(__u16 *)(data + 34) = bpf_htons(10000 + n % 50000);
	}
	bpf_tail_call(ctx, &targets, o->target);
	return XDP_ABORTED;
}

/* What nobody can do without: one look into a table of the kernel's, as large as that of flows, ... */
struct floor_key {
	__u32 w[10];
};

struct floor_value {
	__u32 w[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct floor_key);
	__type(value, struct floor_value);
} floor_flows SEC(".maps");

static __always_inline int floor_of(struct xdp_md *ctx, struct floor_key *k)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + HEADERS > end)
		return -1;
	k->w[0] = *(__u32 *)(data + 26);
	k->w[1] = *(__u32 *)(data + 34);
	return 0;
}

SEC("xdp")
int ironweir_floor_fill(struct xdp_md *ctx)
{
	struct floor_key k = {};
	struct floor_value v = {};

	if (floor_of(ctx, &k) < 0)
		return XDP_ABORTED;
	bpf_map_update_elem(&floor_flows, &k, &v, BPF_ANY);
	return XDP_TX;
}

SEC("xdp")
int ironweir_floor_table(struct xdp_md *ctx)
{
	struct floor_key k = {};

	if (floor_of(ctx, &k) < 0)
		return XDP_ABORTED;
	struct floor_value *v = bpf_map_lookup_elem(&floor_flows, &k);
	return v && v->w[0] == 0 ? XDP_TX : XDP_DROP;
}

/* ... or one word of an array that is as large as the index of recent flows. */
struct floor_line {
	__u64 w[8];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct floor_line);
} floor_lines SEC(".maps");

SEC("xdp")
int ironweir_floor_line(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct round *o = bpf_map_lookup_elem(&rounds, &zero);
	struct floor_key k = {};

	if (!o || floor_of(ctx, &k) < 0)
		return XDP_ABORTED;
	__u32 at = (__u64)((k.w[0] ^ k.w[1] * 0x85ebca6bu) * 0x9e3779b1u) * (o->flows / 2) >> 32;
	struct floor_line *l = bpf_map_lookup_elem(&floor_lines, &at);
	return l && l->w[0] == 0 ? XDP_TX : XDP_DROP;
}

SEC("xdp")
int ironweir_tx(struct xdp_md *ctx)
{
	return XDP_TX;
}

SEC("xdp")
int ironweir_drop(struct xdp_md *ctx)
{
	return XDP_DROP;
}
