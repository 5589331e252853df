/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * ICMP errors about packets of flows. What an error quotes is a packet that went the other way, so its flow is found by the
 * turned key, and the quoted packet becomes what its receiver has sent.
 */
#pragma once

#include "deliver.h"
#include "flow.h"

/* Quoted packets begin at 14 + 60 + 8 at the latest, a tunnel's inner one 68 later. */
#define QUOTE(o) ((o) & 0xff)

static __always_inline int is_error(__u8 v6, __u8 type)
{
	if (v6)
		return type >= 1 && type <= 4;
	return type == ICMP_DEST_UNREACH || type == ICMP_SOURCE_QUENCH || type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETERPROB;
}

/* The quoted header at `at`; `next` is where what it carries begins. */
static __always_inline int quoted_ip(void *data, void *end, __u32 at, int v6, struct flow_key *k, __u32 *next)
{
	if (v6) {
		struct ipv6hdr *ip = data + QUOTE(at);
		if ((void *)(ip + 1) > end || ip->version != 6)
			return -1;
		__builtin_memcpy(&k->src, &ip->saddr, 16);
		__builtin_memcpy(&k->dst, &ip->daddr, 16);
		k->proto = ip->nexthdr;
		*next = at + sizeof(*ip);
		return is4(&k->src) || is4(&k->dst) ? -1 : 0;
	}
	struct iphdr *ip = data + QUOTE(at);
	if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5 || (ip->frag_off & bpf_htons(IP_OFFSET)))
		return -1;
	map4(&k->src, ip->saddr);
	map4(&k->dst, ip->daddr);
	k->proto = ip->protocol;
	*next = at + ip->ihl * 4;
	return 0;
}

static __always_inline int quoted_ports(void *data, void *end, __u32 at, struct flow_key *k)
{
	__u16 *ports = data + QUOTE(at);

	if (k->proto != IPPROTO_TCP && k->proto != IPPROTO_UDP)
		return -1;
	if ((void *)(ports + 4) > end)
		return -1;
	k->sport = ports[0];
	k->dport = ports[1];
	return 0;
}

/* The outer packet that an error quotes is one that we send: from the tunnel's own address to this real server, as the mode says. */
static __always_inline int is_own_tunnel(const struct flow_key *outer, const struct service *s, const struct real *r)
{
	const struct addr *source = is4(&r->addr) ? &s->tunnel4 : &s->tunnel6;

	if (outer->proto == IPPROTO_UDP ? s->mode != MODE_GUE || outer->dport != s->gue_port : s->mode != MODE_IPIP)
		return 0;
	return same(&outer->src, source) && same(&outer->dst, &r->addr);
}

/*
 * A router tells of our tunnel's packet, whose outer header is on the desk (`quoted`): the real server's path takes less. Senders are told
 * when they send the next one.
 */
static __noinline int learn_mtu(struct xdp_md *ctx, const struct packet *p, __u32 at, __u8 carries)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct scratch *d = desk();
	struct flow_key k = {};
	__u32 next, mtu, least;

	if (!p || !d)
		return XDP_PASS;
	__u8 *icmp = data + OFFSET(p->l4);
	if (icmp + 8 > (__u8 *)end)
		return XDP_PASS;
	if (p->v6 ? icmp[0] != ICMPV6_PKT_TOOBIG : icmp[0] != ICMP_DEST_UNREACH || icmp[1] != ICMP_FRAG_NEEDED)
		return XDP_PASS;
	mtu = (__u32)icmp[6] << 8 | icmp[7];
	if (carries == IPPROTO_UDP) {
		__u8 *inner = data + QUOTE(at + sizeof(struct udphdr));
		if (inner + 1 > (__u8 *)end)
			return XDP_PASS;
		at += sizeof(struct udphdr);
		carries = inner[0] >> 4 == 6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
	}
	if (quoted_ip(data, end, at, carries == IPPROTO_IPV6, &k, &next) < 0 || quoted_ports(data, end, next, &k) < 0)
		return XDP_PASS;
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	if (!f || f->kind != FLOW_FORWARD || (f->mode != MODE_IPIP && f->mode != MODE_GUE))
		return XDP_PASS;
	__u32 index = f->real, id = f->service;
	struct service *s = bpf_map_lookup_elem(&services, &id);
	struct real *r = bpf_map_lookup_elem(&reals, &index);
	if (!s || !r || !s->used || r->service != id || s->mode != f->mode || !is_own_tunnel(&d->quoted, s, r))
		return XDP_PASS;
	/* RFC 1191 section 3 and RFC 8200 section 5: no path takes less. IPv6 in a tunnel gets its 1,280 (RFC 2473 section 7.1). */
	least = p->v6 ? 1280 : 576;
	if (carries == IPPROTO_IPV6)
		least = 1280 + overhead(s, r);
	if (mtu < least || (r->mtu && mtu >= r->mtu))
		return XDP_PASS;
	r->mtu = mtu;
	count(EVENT_PATH_MTU);
	return XDP_DROP;
}

/* The error, with what it quotes, becomes one about the packet that its receiver sent. */
static __always_inline int rewrite_error(struct xdp_md *ctx, const struct packet *p, const struct flow *f, const struct addr *src,
					 __u32 quote, __u32 ports)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 outer = 0, sum = 0;

	if (rewrite_ip(data, end, p->v6, src, &f->dst, 1, &outer) < 0)
		return -1;
	if (p->v6) {
		struct ipv6hdr *ip = data + QUOTE(quote);
		if ((void *)(ip + 1) > end)
			return -1;
		__u32 *s = (__u32 *)&ip->saddr, *d = (__u32 *)&ip->daddr;
		sum = outer;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			swap32(&sum, s[i], f->dst.w[i]);
			swap32(&sum, d[i], f->src.w[i]);
			s[i] = f->dst.w[i];
			d[i] = f->src.w[i];
		}
	} else {
		struct iphdr *ip = data + QUOTE(quote);
		if ((void *)(ip + 1) > end)
			return -1;
		swap32(&sum, ip->saddr, f->dst.w[3]);
		swap32(&sum, ip->daddr, f->src.w[3]);
		__u16 check = changed(ip->check, sum);
		swap16(&sum, ip->check, check);
		ip->saddr = f->dst.w[3];
		ip->daddr = f->src.w[3];
		ip->check = check;
	}
	__u16 *port = data + QUOTE(ports);
	if ((void *)(port + 4) > end)
		return -1;
	swap16(&sum, port[0], f->dport);
	swap16(&sum, port[1], f->sport);
	port[0] = f->dport;
	port[1] = f->sport;
	struct icmphdr *icmp = data + OFFSET(p->l4);
	if ((void *)(icmp + 1) > end)
		return -1;
	icmp->checksum = changed(icmp->checksum, sum);
	return 0;
}

static __noinline int pass_error(struct xdp_md *ctx, const struct packet *p, const struct flow *f, __u32 quote, __u32 ports)
{
	struct hop hop = {};
	struct addr src;
	int way;

	if (!p || !f)
		return XDP_DROP;
	/* Who told, if it is a router behind us, is hidden as the real server is; a full NAT's real server hears all from us. */
	src = f->kind == FLOW_RETURN || f->mode == MODE_FULL_NAT ? f->src : p->key.src;
	way = find_hop(ctx, &src, &f->dst, p->length, &hop);
	if (way != WAY_OUT)
		return gone(way == WAY_STACK ? EVENT_NO_NEIGHBOUR : EVENT_NO_ROUTE);
	if (rewrite_error(ctx, p, f, &src, quote, ports) < 0)
		return XDP_DROP;
	return leave(ctx, &hop, p->v6);
}
