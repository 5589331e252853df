/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Which way a packet leaves: the kernel's own routes and neighbours say so. */
#pragma once

#include "parse.h"

#ifndef AF_INET
#define AF_INET 2
#define AF_INET6 10
#endif

enum way { WAY_OUT, WAY_STACK, WAY_BIG, WAY_NONE };

/* Only the stack asks for link addresses; user space makes it ask, with a datagram that goes no further than the next hop. */
static __always_inline void want_neighbour(const struct addr *dst)
{
	struct reset_event *e = bpf_ringbuf_reserve(&resets, sizeof(*e), 0);
	if (!e)
		return;
	__builtin_memset(e, 0, sizeof(*e));
	e->dst = *dst;
	bpf_ringbuf_submit(e, 0);
}

/* `length`: bytes of the IP packet as it will leave. */
static __noinline int find_hop(struct xdp_md *ctx, const struct addr *src, const struct addr *dst, __u32 length, struct hop *hop)
{
	struct bpf_fib_lookup q = {};
	long result;

	if (!src || !dst || !hop)
		return WAY_NONE;
	q.ifindex = ctx->ingress_ifindex;
	q.tot_len = length;
	if (is4(dst)) {
		q.family = AF_INET;
		q.ipv4_src = src->w[3];
		q.ipv4_dst = dst->w[3];
	} else {
		q.family = AF_INET6;
		__builtin_memcpy(q.ipv6_src, src, 16);
		__builtin_memcpy(q.ipv6_dst, dst, 16);
	}
	result = bpf_fib_lookup(ctx, &q, sizeof(q), 0);
	if (result == BPF_FIB_LKUP_RET_SUCCESS) {
		hop->ifindex = q.ifindex;
		hop->mtu = q.mtu_result;
		__builtin_memcpy(hop->to, q.dmac, 6);
		__builtin_memcpy(hop->from, q.smac, 6);
		return WAY_OUT;
	}
	if (result == BPF_FIB_LKUP_RET_FRAG_NEEDED) {
		hop->mtu = q.mtu_result;
		return WAY_BIG;
	}
	if (result != BPF_FIB_LKUP_RET_NO_NEIGH)
		return WAY_NONE;
	want_neighbour(dst);
	return WAY_STACK;
}

static __always_inline __u32 hop_place(const struct addr *dst)
{
	return ((dst->w[0] ^ dst->w[1] ^ dst->w[2] ^ dst->w[3]) * 0x9e3779b1u) >> 22;
}

/* The hop to a destination, if this CPU remembers it and a packet of this length fits. */
static __always_inline const struct hop *hop_at_hand(const struct packet *p, const struct addr *dst, __u32 length)
{
	__u32 tick = (p->now >> 20) | 1;
	__u32 at = hop_place(dst);
	const struct known_hop *k = bpf_map_lookup_elem(&hops, &at);

	if (!k || !k->tick || tick - k->tick >= HOP_TICKS || length > k->hop.mtu || !same(&k->dst, dst))
		return 0;
	return &k->hop;
}

/*
 * As `find_hop`, but each CPU remembers for a tenth of a second: asking is a third of what a packet costs, and real servers
 * are few. Rules of routing by source address are followed as they were for the first who asked.
 */
static __always_inline int known_hop(struct xdp_md *ctx, const struct packet *p, const struct addr *src, const struct addr *dst,
				     __u32 length, struct hop *hop)
{
	const struct hop *at_hand = hop_at_hand(p, dst, length);
	__u32 at = hop_place(dst);
	int way;

	if (at_hand) {
		*hop = *at_hand;
		return WAY_OUT;
	}
	way = find_hop(ctx, src, dst, length, hop);
	struct known_hop *k = way == WAY_OUT ? bpf_map_lookup_elem(&hops, &at) : 0;
	if (k) {
		k->dst = *dst;
		k->hop = *hop;
		k->tick = (p->now >> 20) | 1;
	}
	return way;
}

/* The frame gets the hop's addresses and leaves. */
static __always_inline int leave(struct xdp_md *ctx, const struct hop *hop, int v6)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	__builtin_memcpy(eth->h_dest, hop->to, 6);
	__builtin_memcpy(eth->h_source, hop->from, 6);
	eth->h_proto = v6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	if (hop->ifindex == ctx->ingress_ifindex)
		return XDP_TX;
	return bpf_redirect(hop->ifindex, 0);
}
