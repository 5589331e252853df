/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Changes addresses and ports in place; checksums are changed by what changed (RFC 1624, equation 3). */
#pragma once

#include "parse.h"

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static __always_inline void swap32(__u64 *sum, __u32 old, __u32 new)
{
	*sum += (__u32)~old;
	*sum += new;
}

static __always_inline void swap16(__u64 *sum, __u16 old, __u16 new)
{
	*sum += (__u16)~old;
	*sum += new;
}

static __always_inline __u16 changed(__u16 check, __u64 sum)
{
	return ~fold((__u64)(__u16)~check + sum);
}

/* A destination and a source put into the IP header; what that changes in a pseudo header is added to `pseudo`. */
static __always_inline int rewrite_ip(void *data, void *end, int v6, const struct addr *src, const struct addr *dst,
				      int hop, __u64 *pseudo)
{
	if (v6) {
		struct ipv6hdr *ip = data + ETH_HLEN;
		if ((void *)(ip + 1) > end)
			return -1;
		__u32 *s = (__u32 *)&ip->saddr, *d = (__u32 *)&ip->daddr;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			swap32(pseudo, s[i], src->w[i]);
			swap32(pseudo, d[i], dst->w[i]);
			s[i] = src->w[i];
			d[i] = dst->w[i];
		}
		ip->hop_limit -= hop;
		return 0;
	}
	struct iphdr *ip = data + ETH_HLEN;
	if ((void *)(ip + 1) > end)
		return -1;
	swap32(pseudo, ip->saddr, src->w[3]);
	swap32(pseudo, ip->daddr, dst->w[3]);
	__u64 sum = *pseudo;
	__u16 was = *(__u16 *)&ip->ttl;
	ip->ttl -= hop;
	swap16(&sum, was, *(__u16 *)&ip->ttl);
	ip->saddr = src->w[3];
	ip->daddr = dst->w[3];
	ip->check = changed(ip->check, sum);
	return 0;
}

/* The packet becomes what the flow says. `hop` is what its hop limit loses. */
static __always_inline int rewrite(struct xdp_md *ctx, const struct packet *p, const struct flow *f, int hop)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 sum = 0;

	if (rewrite_ip(data, end, p->v6, &f->src, &f->dst, hop, &sum) < 0)
		return -1;
	if (p->fragment == FRAGMENT_LATER)
		return 0;
	void *l4 = data + OFFSET(p->l4);
	swap16(&sum, p->key.sport, f->sport);
	swap16(&sum, p->key.dport, f->dport);
	if (p->key.proto == IPPROTO_TCP) {
		struct tcphdr *tcp = l4;
		if ((void *)(tcp + 1) > end)
			return -1;
		tcp->source = f->sport;
		tcp->dest = f->dport;
		if (f->state & FLOW_SHIFTED) {
			__u32 *number = f->kind == FLOW_FORWARD ? &tcp->ack_seq : &tcp->seq;
			__u32 by = f->kind == FLOW_FORWARD ? f->seq : -f->seq;
			/* Without ACK the field means nothing, and may be anything. */
			if (f->kind == FLOW_RETURN || (p->tcp_flags & TCP_ACK)) {
				__u32 new = bpf_htonl(bpf_ntohl(*number) + by);
				swap32(&sum, *number, new);
				*number = new;
			}
		}
		tcp->check = changed(tcp->check, sum);
		return 0;
	}
	struct udphdr *udp = l4;
	if ((void *)(udp + 1) > end)
		return -1;
	udp->source = f->sport;
	udp->dest = f->dport;
	/* RFC 768: zero is no checksum, and a checksum of zero is sent as ones. */
	if (udp->check) {
		udp->check = changed(udp->check, sum);
		if (!udp->check)
			udp->check = 0xffff;
	}
	return 0;
}

/* Only the hop limit: for modes that leave addresses as they are. */
static __always_inline int lose_hop(struct xdp_md *ctx, const struct packet *p)
{
	__u64 sum = 0;
	return rewrite_ip((void *)(long)ctx->data, (void *)(long)ctx->data_end, p->v6, &p->key.src, &p->key.dst, 1, &sum);
}
