/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * IP in IP (RFC 2003, RFC 2473) and GUE variant 1 (draft-ietf-intarea-gue section 3: UDP that carries IP at once). The
 * outer header's family is the real server's, whatever the inner one's is.
 */
#pragma once

#include "rewrite.h"

static __always_inline __u32 overhead(const struct service *s, const struct real *r)
{
	if (s->mode != MODE_IPIP && s->mode != MODE_GUE)
		return 0;
	return (is4(&r->addr) ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) + (s->mode == MODE_GUE ? sizeof(struct udphdr) : 0);
}

/* GUE's source port tells flows apart for those who spread by it (section 5.11: from the dynamic range). */
static __always_inline __u16 entropy(const struct flow_key *k)
{
	__u32 h = (k->src.w[2] ^ k->src.w[3] ^ k->dst.w[3]) * 0x9e3779b1u;
	h ^= (__u32)k->sport << 16 | k->dport;
	h *= 0x85ebca6bu;
	return bpf_htons(0xc000 | (h >> 18));
}

static __always_inline void put_udp(struct udphdr *udp, const struct service *s, const struct packet *p)
{
	udp->source = entropy(&p->key);
	udp->dest = s->gue_port;
	udp->len = bpf_htons(sizeof(*udp) + p->length);
	udp->check = 0;
}

static __always_inline int wrap4(struct xdp_md *ctx, const struct packet *p, const struct service *s, const struct real *r)
{
	const int gue = s->mode == MODE_GUE;

	if (bpf_xdp_adjust_head(ctx, gue ? -28 : -20))
		return -1;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct iphdr *ip = data + ETH_HLEN;
	if ((void *)(ip + 1) + sizeof(struct udphdr) > end)
		return -1;
	ip->version = 4;
	ip->ihl = 5;
	ip->tos = p->tos;
	ip->tot_len = bpf_htons(p->length + (gue ? 28 : 20));
	ip->id = 0;
	ip->frag_off = bpf_htons(IP_DONT);
	ip->ttl = OWN_TTL;
	ip->protocol = gue ? IPPROTO_UDP : p->v6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
	ip->check = 0;
	ip->saddr = s->tunnel4.w[3];
	ip->daddr = r->addr.w[3];
	__u64 sum = 0;
	__u16 *w = (void *)ip;
#pragma unroll
	for (int i = 0; i < 10; i++)
		sum += w[i];
	ip->check = ~fold(sum);
	if (gue)
		put_udp((void *)(ip + 1), s, p);
	return 0;
}

static __always_inline int wrap6(struct xdp_md *ctx, const struct packet *p, const struct service *s, const struct real *r)
{
	const int gue = s->mode == MODE_GUE;

	if (bpf_xdp_adjust_head(ctx, gue ? -48 : -40))
		return -1;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ipv6hdr *ip = data + ETH_HLEN;
	if ((void *)(ip + 1) + sizeof(struct udphdr) > end)
		return -1;
	*(__u32 *)ip = bpf_htonl(0x60000000 | (__u32)p->tos << 20);
	ip->payload_len = bpf_htons(p->length + (gue ? 8 : 0));
	ip->nexthdr = gue ? IPPROTO_UDP : p->v6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
	ip->hop_limit = OWN_TTL;
	__builtin_memcpy(&ip->saddr, &s->tunnel6, 16);
	__builtin_memcpy(&ip->daddr, &r->addr, 16);
	if (gue)
		put_udp((void *)(ip + 1), s, p);
	return 0;
}
