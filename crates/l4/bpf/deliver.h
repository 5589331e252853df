/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* A packet whose flow is known goes to the real server, or back to the client. */
#pragma once

#include "hop.h"
#include "reply.h"
#include "tunnel.h"

static __always_inline void count_frame(__u32 real, const struct packet *p, int in, int begins)
{
	static const __u16 bounds[] = SIZE_BOUNDS;
	struct counters *c = bpf_map_lookup_elem(&real_counters, &real);
	__u32 bucket = 0;

	if (!c)
		return;
	c->flows += begins;
	if (in) {
		c->in_packets++;
		c->in_bytes += p->frame;
	} else {
		c->out_packets++;
		c->out_bytes += p->frame;
	}
#pragma unroll
	for (int i = 0; i < SIZE_BUCKETS - 1; i++)
		bucket += p->frame >= bounds[i];
	c->sizes[bucket & (SIZE_BUCKETS - 1)]++;
}

static __always_inline int gone(enum event why)
{
	count(why);
	return XDP_DROP;
}

/* NAT and full NAT, both directions. What cannot leave from here is left to the stack where the stack would take it. */
static __always_inline int deliver_nat(struct xdp_md *ctx, const struct packet *p, const struct flow *f)
{
	struct scratch *d = desk();
	if (!d)
		return XDP_DROP;
	struct hop *hop = &d->hop;
	int way = known_hop(ctx, p, &f->src, &f->dst, p->length, hop);
	int stack = f->kind == FLOW_FORWARD && f->mode == MODE_NAT;

	if (way == WAY_NONE)
		return gone(EVENT_NO_ROUTE);
	if (way == WAY_BIG) {
		/* The stack tells a real server; a client hears of its own packet, so it is told here. */
		if (f->kind == FLOW_RETURN)
			return XDP_PASS;
		if (p->dont)
			return answer_too_big(ctx, p, hop->mtu);
		if (!stack)
			return gone(EVENT_TOO_BIG);
	}
	if (way == WAY_STACK) {
		count(EVENT_NO_NEIGHBOUR);
		/* The stack takes nothing that comes from one of its own addresses. */
		if (!stack)
			return XDP_DROP;
	}
	if (rewrite(ctx, p, f, way == WAY_OUT) < 0)
		return XDP_DROP;
	return way == WAY_OUT ? leave(ctx, hop, p->v6) : XDP_PASS;
}

/* Direct return and tunnels: the packet itself stays as the client sent it. */
static __noinline int deliver_whole(struct xdp_md *ctx, const struct packet *p, const struct service *s, const struct real *r)
{
	struct scratch *d = desk();
	const struct addr *src;
	__u32 more;
	int way, outer6;

	if (!p || !s || !r || !d)
		return XDP_DROP;
	struct hop *hop = &d->hop;
	outer6 = s->mode == MODE_DIRECT ? p->v6 : !is4(&r->addr);
	src = s->mode == MODE_DIRECT ? &p->key.src : outer6 ? &s->tunnel6 : &s->tunnel4;
	more = overhead(s, r);
	if (r->mtu && p->length + more > r->mtu)
		return answer_too_big(ctx, p, r->mtu - more);
	way = known_hop(ctx, p, src, &r->addr, p->length + more, hop);
	if (way == WAY_BIG)
		return answer_too_big(ctx, p, hop->mtu - more);
	if (way == WAY_STACK)
		return gone(EVENT_NO_NEIGHBOUR);
	if (way == WAY_NONE)
		return gone(EVENT_NO_ROUTE);
	if (lose_hop(ctx, p) < 0)
		return XDP_DROP;
	if (more && (outer6 ? wrap6(ctx, p, s, r) : wrap4(ctx, p, s, r)) < 0)
		return XDP_DROP;
	return leave(ctx, hop, outer6);
}

static __always_inline int deliver(struct xdp_md *ctx, const struct packet *p, const struct flow *f, const struct service *s,
				   const struct real *r)
{
	if (p->ttl <= 1) {
		if (f->kind == FLOW_FORWARD)
			return answer_expired(ctx, p);
		count(EVENT_TTL);
		return XDP_PASS;
	}
	if (f->kind == FLOW_RETURN || s->mode == MODE_NAT || s->mode == MODE_FULL_NAT)
		return deliver_nat(ctx, p, f);
	return deliver_whole(ctx, p, s, r);
}
