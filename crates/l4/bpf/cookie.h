/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * SYN cookies (RFC 4987 section 3.6) for services whose packets come back through us. Under a flood nothing is kept of a SYN: it
 * is answered with a number that only we can make. Who acknowledges that number is there, and only then a flow begins:
 *
 *   client           here                real server
 *     SYN n     ->
 *               <-   SYN c, window 0         c is the cookie: the minute, an index of sizes, 24 bits of a keyed hash
 *     ACK c+1   ->   SYN n               ->
 *               <-   ACK, window         <-  SYN s       the ACK of s comes from user space: a real server may want to speak first
 *     data      ->   s - c is added to what the client acknowledges, and taken from what the real server numbers
 *
 * The window of zero keeps clients from sending before there is anybody to take it. Only the largest segment is agreed on, as with
 * the kernel's own cookies without timestamps: no scaled windows, no selective acknowledgements.
 */
#pragma once

#include "deliver.h"
#include "flow.h"

/* Largest segments that a cookie can name: the kernel's own, and more of those in the field. Two words, not an array: that would be
 * a section of data for the loader. */
static __always_inline __u16 cookie_size(__u32 index)
{
	const __u64 low = 536ULL | 1220ULL << 16 | 1300ULL << 32 | 1360ULL << 48;
	const __u64 high = 1400ULL | 1440ULL << 16 | 1452ULL << 32 | 1460ULL << 48;

	return (index & 4 ? high : low) >> ((index & 3) * 16);
}

#define ROTATE(x, by) (((x) << (by)) | ((x) >> (64 - (by))))
#define SIP_ROUND                  \
	do {                       \
		v0 += v1;          \
		v1 = ROTATE(v1, 13); \
		v1 ^= v0;          \
		v0 = ROTATE(v0, 32); \
		v2 += v3;          \
		v3 = ROTATE(v3, 16); \
		v3 ^= v2;          \
		v0 += v3;          \
		v3 = ROTATE(v3, 21); \
		v3 ^= v0;          \
		v2 += v1;          \
		v1 = ROTATE(v1, 17); \
		v1 ^= v2;          \
		v2 = ROTATE(v2, 32); \
	} while (0)

#define SIP_WORD(word)             \
	do {                       \
		__u64 m = (word);  \
		v3 ^= m;           \
		SIP_ROUND;         \
		SIP_ROUND;         \
		v0 ^= m;           \
	} while (0)

/* SipHash-2-4 (Aumasson, Bernstein 2012) of the flow, the client's first number, the minute and the index of sizes. */
static __noinline __u32 cookie_hash(const struct flow_key *k, __u32 first, __u32 minute)
{
	__u32 zero = 0;
	struct secret *s = bpf_map_lookup_elem(&secrets, &zero);

	if (!k || !s)
		return 0;
	__u64 v0 = s->k0 ^ 0x736f6d6570736575ULL, v1 = s->k1 ^ 0x646f72616e646f6dULL;
	__u64 v2 = s->k0 ^ 0x6c7967656e657261ULL, v3 = s->k1 ^ 0x7465646279746573ULL;
	SIP_WORD((__u64)k->src.w[0] << 32 | k->src.w[1]);
	SIP_WORD((__u64)k->src.w[2] << 32 | k->src.w[3]);
	SIP_WORD((__u64)k->dst.w[0] << 32 | k->dst.w[1]);
	SIP_WORD((__u64)k->dst.w[2] << 32 | k->dst.w[3]);
	SIP_WORD((__u64)k->sport << 48 | (__u64)k->dport << 32 | first);
	SIP_WORD((__u64)minute | (__u64)(6 * 8) << 56);
	v2 ^= 0xff;
#pragma unroll
	for (int i = 0; i < 4; i++)
		SIP_ROUND;
	return (__u32)(v0 ^ v1 ^ v2 ^ v3) & 0xffffff;
}

static __always_inline __u32 cookie_of(const struct flow_key *k, __u32 first, __u32 minute, __u32 size)
{
	return (minute & 31) << 27 | size << 24 | cookie_hash(k, first, minute << 3 | size);
}

/* By the clock itself: what each CPU remembers of it may be of the minute before. */
static __always_inline __u32 cookie_minute(void)
{
	return bpf_ktime_get_coarse_ns() >> COOKIE_SHIFT;
}

/* Whether this SYN is to be answered with a cookie: always, or since there have been too many of late. */
static __noinline int wants_cookie(const struct service *s, __u32 id, __u64 now)
{
	__u32 step = now >> RATE_SHIFT;

	if (!s || !s->cookies)
		return 0;
	if (s->cookies == 1)
		return 1;
	struct syn_rate *r = bpf_map_lookup_elem(&syn_rates, &id);
	if (!r)
		return 0;
	/* CPUs may count into each other's step: a few SYNs more or less. */
	if (r->step != step) {
		r->step = step;
		r->count = 0;
	}
	__sync_fetch_and_add(&r->count, 1);
	if ((__u64)r->count * 1000 > (__u64)s->cookies * RATE_STEP_MS)
		r->until = step + RATE_STEPS;
	return (__s32)(r->until - step) > 0;
}

/* The index of the largest size that a client's SYN allows. */
static __always_inline __u32 size_of(struct xdp_md *ctx, const struct packet *p)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u8 *o = data + OFFSET(p->l4) + sizeof(struct tcphdr);
	__u32 size = 0, at = 0;
	__u16 mss = 536;

	/* Clients put it first; before it may be a few of one octet. */
	for (int i = 0; i < 4; i++) {
		__u8 *here = o + at;
		if ((void *)(here + 4) > end)
			break;
		if (here[0] == 2 && here[1] == 4) {
			mss = (__u16)here[2] << 8 | here[3];
			break;
		}
		if (here[0] != 1)
			break;
		at++;
	}
#pragma unroll
	for (int i = 1; i < 8; i++)
		size = mss >= cookie_size(i) ? i : size;
	return size;
}

static __always_inline struct segment *blank_segment(void)
{
	struct scratch *d = desk();
	if (!d)
		return 0;
	__builtin_memset(&d->segment, 0, sizeof(d->segment));
	return &d->segment;
}

/* The desk's segment takes the place of the packet. Numbers in host order; `mss`: 0 for no option. */
static __noinline int make_segment(struct xdp_md *ctx, const struct packet *p)
{
	struct scratch *d = desk();
	struct segment *g = d ? &d->segment : 0;
	__u32 head, tcp_length;
	__u64 sum;

	if (!p || !g)
		return -1;
	head = p->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	if (p->l4 != ETH_HLEN + head || p->fragment != FRAGMENT_NONE)
		return -1;
	tcp_length = sizeof(struct tcphdr) + (g->mss ? 4 : 0);
	if (bpf_xdp_adjust_tail(ctx, (int)(ETH_HLEN + head + tcp_length) - (int)p->frame))
		return -1;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (p->v6 ? data + ETH_HLEN + 40 + sizeof(struct tcphdr) > end : data + ETH_HLEN + 20 + sizeof(struct tcphdr) > end)
		return -1;
	struct tcphdr *tcp = p->v6 ? data + ETH_HLEN + 40 : data + ETH_HLEN + 20;
	tcp->source = g->sport;
	tcp->dest = g->dport;
	tcp->seq = bpf_htonl(g->seq);
	tcp->ack_seq = bpf_htonl(g->ack);
	((__u8 *)tcp)[12] = (tcp_length / 4) << 4;
	((__u8 *)tcp)[13] = g->flags;
	tcp->window = g->window;
	tcp->urg_ptr = 0;
	tcp->check = 0;
	sum = bpf_htons(tcp_length) + (__u64)bpf_htons(IPPROTO_TCP);
	if (p->v6)
		sum += sum_words(&g->src, 8) + sum_words(&g->dst, 8);
	else
		sum += sum_words(&g->src.w[3], 2) + sum_words(&g->dst.w[3], 2);
	sum += sum_words(tcp, 10);
	if (g->mss) {
		__u8 *option = (__u8 *)(tcp + 1);
		if ((void *)(option + 4) > end)
			return -1;
		option[0] = 2;
		option[1] = 4;
		option[2] = g->mss >> 8;
		option[3] = g->mss;
		sum += sum_words(option, 2);
	}
	tcp->check = ~fold(sum);
	if (p->v6)
		turn_ip6(data + ETH_HLEN, &g->src, &g->dst, IPPROTO_TCP, tcp_length);
	else
		turn_ip4(data + ETH_HLEN, g->src.w[3], g->dst.w[3], IPPROTO_TCP, tcp_length);
	return 0;
}

/* The SYN goes back with a cookie. Nothing is kept of it. */
static __noinline int send_cookie(struct xdp_md *ctx, const struct packet *p)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct segment *g = blank_segment();

	if (!p || !g)
		return XDP_DROP;
	struct tcphdr *tcp = data + OFFSET(p->l4);
	if ((void *)(tcp + 1) > end)
		return XDP_DROP;
	__u32 first = bpf_ntohl(tcp->seq);
	g->src = p->key.dst;
	g->dst = p->key.src;
	g->sport = p->key.dport;
	g->dport = p->key.sport;
	g->seq = cookie_of(&p->key, first, cookie_minute(), size_of(ctx, p));
	g->ack = first + 1;
	g->flags = TCP_SYN | TCP_ACK;
	g->mss = p->v6 ? COOKIE_MSS6 : COOKIE_MSS4;
	if (make_segment(ctx, p) < 0)
		return XDP_DROP;
	data = (void *)(long)ctx->data;
	if (data + ETH_HLEN > (void *)(long)ctx->data_end)
		return XDP_DROP;
	turn_frame(data);
	count(EVENT_COOKIE);
	return XDP_TX;
}

/* The largest segment that the client named, if what it acknowledges is a cookie of ours; else 0. */
static __noinline __u32 proved(struct xdp_md *ctx, const struct packet *p)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (!p || (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) != TCP_ACK)
		return 0;
	struct tcphdr *tcp = data + OFFSET(p->l4);
	if ((void *)(tcp + 1) > end)
		return 0;
	__u32 cookie = bpf_ntohl(tcp->ack_seq) - 1, first = bpf_ntohl(tcp->seq) - 1;
	__u32 minute = cookie_minute(), age = (minute - (cookie >> 27)) & 31;
	__u32 size = cookie >> 24 & 7;
	if (age > 1 || cookie_of(&p->key, first, minute - age, size) != cookie)
		return 0;
	return cookie_size(size);
}

/* The entries of a flow that has proved itself: what each needs until the real server has answered. */
static __always_inline void note_opening(struct xdp_md *ctx, const struct packet *p, __u32 mss)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct tcphdr *tcp = data + OFFSET(p->l4);

	if ((void *)(tcp + 1) > end)
		return;
	struct flow *f = bpf_map_lookup_elem(&flows, &p->key);
	struct flow *b = f ? other_way(f, p->key.proto) : 0;
	if (!f || !b)
		return;
	f->seq = bpf_ntohl(tcp->seq) - 1;
	b->seq = bpf_ntohl(tcp->ack_seq) - 1;
	f->mss = mss;
	b->state |= FLOW_OPENING;
	f->state |= FLOW_OPENING;
}

/*
 * Whatever the client sends meanwhile stands for its SYN: its first ACK, or a look whether the window is still closed. One that begins
 * anew gets a cookie anew, and counts from the number that it proves then.
 */
static __noinline int open_forward(struct xdp_md *ctx, const struct packet *p, const struct flow *f, int begins)
{
	struct segment *g;
	struct hop hop = {};
	__u32 mss;

	if (begins)
		return send_cookie(ctx, p);
	mss = proved(ctx, p);
	if (mss)
		note_opening(ctx, p, mss);
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	g = blank_segment();

	if (!p || !f || !g)
		return XDP_DROP;
	struct tcphdr *tcp = data + OFFSET(p->l4);
	if ((void *)(tcp + 1) > end || (p->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST)))
		return XDP_DROP;
	g->src = f->src;
	g->dst = f->dst;
	g->sport = f->sport;
	g->dport = f->dport;
	g->seq = f->seq;
	g->window = tcp->window;
	g->flags = TCP_SYN;
	g->mss = f->mss;
	if (known_hop(ctx, p, &f->src, &f->dst, p->v6 ? 64 : 44, &hop) != WAY_OUT)
		return gone(EVENT_NO_NEIGHBOUR);
	if (make_segment(ctx, p) < 0)
		return XDP_DROP;
	return leave(ctx, &hop, p->v6);
}

/* The real server has answered: the client's window is opened, and user space acknowledges. A refusal is passed on. */
static __noinline int open_return(struct xdp_md *ctx, const struct packet *p, struct flow *b)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct segment *g = blank_segment();
	struct hop hop = {};

	if (!p || !b || !g)
		return XDP_DROP;
	struct flow *f = other_way(b, p->key.proto);
	struct tcphdr *tcp = data + OFFSET(p->l4);
	if (!f || (void *)(tcp + 1) > end || !(p->tcp_flags & TCP_ACK) || bpf_ntohl(tcp->ack_seq) != f->seq + 1)
		return XDP_DROP;
	int refused = (p->tcp_flags & TCP_RST) != 0;
	if (!refused && !(p->tcp_flags & TCP_SYN))
		return XDP_DROP;
	if (known_hop(ctx, p, &b->src, &b->dst, p->v6 ? 60 : 40, &hop) != WAY_OUT)
		return gone(EVENT_NO_NEIGHBOUR);
	__u32 theirs = bpf_ntohl(tcp->seq), cookie = b->seq, first = f->seq;
	g->src = b->src;
	g->dst = b->dst;
	g->sport = b->sport;
	g->dport = b->dport;
	g->seq = cookie + 1;
	g->ack = first + 1;
	g->flags = refused ? TCP_RST | TCP_ACK : TCP_ACK;
	g->window = tcp->window;
	struct reset_event *e = refused ? 0 : bpf_ringbuf_reserve(&resets, sizeof(*e), 0);
	if (e) {
		e->src = f->src;
		e->dst = f->dst;
		e->sport = f->sport;
		e->dport = f->dport;
		e->seq = bpf_htonl(first + 1);
		e->ack = bpf_htonl(theirs + 1);
		e->flags = TCP_ACK;
		__builtin_memset(e->zero, 0, sizeof(e->zero));
		bpf_ringbuf_submit(e, 0);
	}
	if (refused) {
		close_flow(b, f, 0);
	} else {
		f->seq = theirs - cookie;
		b->seq = theirs - cookie;
		f->state = (f->state & ~FLOW_OPENING) | FLOW_SHIFTED;
		b->state = (b->state & ~FLOW_OPENING) | FLOW_SHIFTED;
	}
	if (make_segment(ctx, p) < 0)
		return XDP_DROP;
	return leave(ctx, &hop, p->v6);
}
