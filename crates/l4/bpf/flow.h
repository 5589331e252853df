/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The table of flows: two entries for a flow whose return path is ours, one for the others. */
#pragma once

#include "choose.h"
#include "recent.h"

static __always_inline int returns(const struct flow *f)
{
	return f->mode == MODE_NAT || f->mode == MODE_FULL_NAT;
}

/* The key of the other direction: what the packet becomes, turned around. */
static __always_inline void other_key(struct flow_key *k, const struct flow *f, __u8 proto)
{
	__builtin_memset(k, 0, sizeof(*k));
	k->src = f->dst;
	k->dst = f->src;
	k->sport = f->dport;
	k->dport = f->sport;
	k->proto = proto;
}

/* A function of its own, as is what is rare: the stack of all that call each other is 512 bytes. */
static __noinline struct flow *other_way(const struct flow *f, __u8 proto)
{
	struct flow_key k;

	if (!f || !returns(f))
		return 0;
	other_key(&k, f, proto);
	return bpf_map_lookup_elem(&flows, &k);
}

/* Nothing in either direction for the service's time, and what the index may have kept to itself. */
static __always_inline int is_idle(const struct flow *f, const struct service *s, __u8 proto, __u64 now)
{
	__s64 limit = s->idle_ns + recent_ns(s);

	if (!s->idle_ns || (__s64)(now - f->last) <= limit)
		return 0;
	const struct flow *other = other_way(f, proto);
	return !other || (__s64)(now - other->last) > limit;
}

/* Nothing has come back, where we would have seen it. */
static __always_inline int is_unanswered(const struct flow *f, __u8 proto)
{
	const struct flow *other = other_way(f, proto);

	return other && !(other->state & FLOW_ANSWERED);
}

static __always_inline void close_flow(struct flow *f, struct flow *other, __u8 state)
{
	if (!(f->state & FLOW_CLOSED)) {
		__u32 index = f->real;
		__u64 *n = bpf_map_lookup_elem(&active, &index);
		if (n && *n)
			__sync_fetch_and_add(n, -1);
	}
	f->state |= FLOW_CLOSED | state;
	if (other)
		other->state |= FLOW_CLOSED | state;
}

/* The index knows nothing of the other direction any more. */
static __noinline int forget_other_way(const struct flow *f, __u8 proto)
{
	struct scratch *d = desk();

	if (!d || !f || !returns(f))
		return 0;
	other_key(&d->key, f, proto);
	return recent_forget(&d->key);
}

/* FIN from both sides, or from the one that we see, or RST. */
static __noinline int see_end(struct flow *f, __u8 proto, __u8 flags)
{
	struct flow *other;

	if (!f)
		return 0;
	other = other_way(f, proto);
	if (flags & TCP_FIN)
		f->state |= FLOW_FIN;
	if ((flags & TCP_RST) || !returns(f) || (other && (other->state & FLOW_FIN))) {
		close_flow(f, other, 0);
		forget_other_way(f, proto);
	}
	return 0;
}

/* What a client acknowledges of a real server's numbers, in the real server's own; and what the real server numbers, as the client
 * knows it. Network order. */
static __always_inline __u32 ack_of(const struct flow *f, __u32 ack)
{
	if (!(f->state & FLOW_SHIFTED) || f->kind != FLOW_FORWARD)
		return ack;
	return bpf_htonl(bpf_ntohl(ack) + f->seq);
}

static __always_inline __u32 seq_of(const struct flow *f, __u32 seq)
{
	if (!(f->state & FLOW_SHIFTED) || f->kind != FLOW_RETURN)
		return seq;
	return bpf_htonl(bpf_ntohl(seq) - f->seq);
}

/* The other end hears of a reset from user space: one packet in is one packet out here. */
static __noinline int report_reset(struct xdp_md *ctx, const struct packet *p, const struct flow *f)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (!p || !f || !returns(f))
		return 0;
	struct tcphdr *tcp = data + OFFSET(p->l4);
	if ((void *)(tcp + 1) > end)
		return 0;
	struct reset_event *e = bpf_ringbuf_reserve(&resets, sizeof(*e), 0);
	if (!e)
		return 0;
	e->src = f->src;
	e->dst = f->dst;
	e->sport = f->sport;
	e->dport = f->dport;
	e->seq = seq_of(f, tcp->seq);
	e->ack = ack_of(f, tcp->ack_seq);
	e->flags = TCP_RST | TCP_ACK;
	__builtin_memset(e->zero, 0, sizeof(e->zero));
	bpf_ringbuf_submit(e, 0);
	return 0;
}
