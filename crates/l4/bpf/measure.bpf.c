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

SEC("xdp")
int ironweir_drop(struct xdp_md *ctx)
{
	return XDP_DROP;
}
