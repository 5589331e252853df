/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Ironweir's balancer of layer 4 in the kernel (XDP). One packet in, one packet out, dropped, or left to the stack.
 * The way of a packet is in docs/l4.md; what it must do is written a second time in Rust (`src/model`), and a test holds
 * this against it.
 */
#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "cookie.h"
#include "icmp.h"

/* Helpers for routes are for programs under the GPL. */
char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* What a flow in the table says of a packet: a verdict of XDP, or this. */
#define RENEW (-1)

static __always_inline int reset_known(struct xdp_md *ctx, const struct packet *p, struct flow *f)
{
	if (!(f->state & FLOW_DEAD)) {
		close_flow(f, other_way(f, p->key.proto), FLOW_DEAD);
		report_reset(ctx, p, f);
		recent_put(p->hash, 0, 0);
		forget_other_way(f, p->key.proto);
	}
	return answer_reset(ctx, p);
}

static __noinline int deliver_known(struct xdp_md *ctx, const struct packet *p, const struct flow *f, const struct service *s,
				    const struct real *r)
{
	return p && f && s && r ? deliver(ctx, p, f, s, r) : XDP_DROP;
}

/* Later fragments go where this one goes. */
static __noinline int note_fragment(const struct packet *p, const struct flow *f)
{
	struct fragment_key k = {};

	if (!p || !f)
		return 0;
	k.src = p->key.src;
	k.dst = p->key.dst;
	k.id = p->fragment_id;
	k.proto = p->key.proto;
	bpf_map_update_elem(&fragments, &k, f, BPF_ANY);
	return 0;
}

/* A packet of a flow that is in the table. */
static __noinline int known(struct xdp_md *ctx, const struct packet *p, struct flow *f, __u64 now)
{
	__u32 id, index;

	if (!p || !f)
		return XDP_DROP;
	id = f->service;
	index = f->real;
	struct service *s = bpf_map_lookup_elem(&services, &id);
	struct real *r = bpf_map_lookup_elem(&reals, &index);
	if (!s || !r)
		return XDP_PASS;
	int tcp = p->key.proto == IPPROTO_TCP;
	int begins = tcp && (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN;
	int idle = is_idle(f, s, p->key.proto, now);
	if (f->kind == FLOW_STRANGER) {
		f->last = now;
		return XDP_PASS;
	}
	/* The slots of the maps have been given to others since. */
	if (!s->used || r->service != id || s->mode != f->mode)
		return f->kind == FLOW_FORWARD ? RENEW : XDP_PASS;
	int over = idle || (f->state & FLOW_CLOSED);
	if (f->kind == FLOW_FORWARD && (begins ? over : !tcp && idle))
		return RENEW;
	/* Nothing is kept of a SYN that was answered with a cookie: this is the ACK of one, of a client that uses its port again. */
	if (f->kind == FLOW_FORWARD && over && tcp && s->cookies && p->fragment == FRAGMENT_NONE && proved(ctx, p))
		return RENEW;
	if ((f->state & FLOW_DEAD) || (tcp && idle && (s->flags & SERVICE_RESET)))
		return reset_known(ctx, p, f);
	if (idle)
		return gone(EVENT_EXPIRED);
	if (r->flags & REAL_RESET) {
		if (tcp && !begins)
			return reset_known(ctx, p, f);
		return f->kind == FLOW_FORWARD ? RENEW : XDP_DROP;
	}
	/* The SYN comes again, nobody has answered it, and new flows avoid the real server: another one may. */
	if (begins && !p->made && f->kind == FLOW_FORWARD && !(f->state & FLOW_OPENING) && (r->flags & REAL_FULL) &&
	    is_unanswered(f, p->key.proto))
		return RENEW;
	f->last = now;
	if (f->kind == FLOW_RETURN)
		f->state |= FLOW_ANSWERED;
	if (tcp && (p->tcp_flags & (TCP_FIN | TCP_RST)))
		see_end(f, p->key.proto, p->tcp_flags);
	if (p->fragment == FRAGMENT_FIRST)
		note_fragment(p, f);
	recent_note(p, f, now);
	count(f->kind == FLOW_FORWARD ? EVENT_FORWARDED : EVENT_RETURNED);
	count_frame(index, p, f->kind == FLOW_FORWARD, 0);
	if (f->state & FLOW_OPENING)
		return f->kind == FLOW_FORWARD ? open_forward(ctx, p, f, begins) : open_return(ctx, p, f);
	return deliver_known(ctx, p, f, s, r);
}

/*
 * A packet of a flow that the index of recent flows knows, in the same way as `known` would send it on. What opens, ends or
 * resets a flow, and a first fragment, goes by the table: RENEW.
 */
static __noinline int recent_known(struct xdp_md *ctx, struct packet *p, __u64 word, __u64 now)
{
	__u32 id = RECENT_SERVICE(word), index = RECENT_REAL(word);
	struct scratch *d = desk();
	struct service *s = bpf_map_lookup_elem(&services, &id);
	struct real *r = bpf_map_lookup_elem(&reals, &index);

	if (!d || !p || !s || !r || !s->used || r->service != id || s->mode != RECENT_MODE(word))
		return RENEW;
	__u64 age = recent_age(word, now);
	__u64 extra = 0;
	if (s->mode == MODE_FULL_NAT) {
		struct recent_keys *n = recent_keys_now();
		struct recent_line *line = n ? recent_line(n, p->hash) : 0;
		extra = line ? recent_extra(line, p->hash, word) : 0;
		if (!extra)
			return RENEW;
	}
	if (!(p->tcp_flags & TCP_SYN) && !(r->flags & REAL_RESET) && (!s->idle_ns || age <= s->idle_ns)) {
		p->known_word = word;
		p->known_extra = extra;
	}
	int back = (word & RECENT_RETURN) != 0, nat = s->mode == MODE_NAT || extra;
	if (age > recent_ns(s) || (r->flags & REAL_RESET) || (p->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST)) ||
	    p->fragment != FRAGMENT_NONE || p->ttl <= 1)
		return RENEW;
	struct flow *f = &d->forward;
	if (nat) {
		f->src = back ? s->addr : p->key.src;
		f->sport = back ? s->port : p->key.sport;
		f->dst = back ? p->key.dst : r->addr;
		f->dport = back ? p->key.dport : r->port;
	}
	if (extra) {
		map4(back ? &f->dst : &f->src, extra);
		*(back ? &f->dport : &f->sport) = extra >> 32;
	}
	const struct hop *hop = 0;
	if (nat || s->mode == MODE_DIRECT) {
		hop = hop_at_hand(p, nat ? &f->dst : &r->addr, p->length);
		if (!hop || (r->mtu && !nat))
			return RENEW;
	}
	count(back ? EVENT_RETURNED : EVENT_FORWARDED);
	count_frame(index, p, !back, 0);
	if (!hop)
		return deliver_whole(ctx, p, s, r);
	if (!nat)
		return lose_hop(ctx, p) < 0 ? XDP_DROP : leave(ctx, hop, p->v6);
	f->kind = back ? FLOW_RETURN : FLOW_FORWARD;
	f->state = 0;
	return rewrite(ctx, p, f, 1) < 0 ? XDP_DROP : leave(ctx, hop, p->v6);
}

/* A later fragment goes where the first one went. */
static __noinline int later_fragment(struct xdp_md *ctx, const struct packet *p, __u64 now)
{
	struct fragment_key k = {};

	if (!p)
		return XDP_DROP;
	k.src = p->key.src;
	k.dst = p->key.dst;
	k.id = p->fragment_id;
	k.proto = p->key.proto;
	struct flow *f = bpf_map_lookup_elem(&fragments, &k);
	if (!f || (__s64)(now - f->last) > (__s64)FRAGMENT_NS) {
		count(EVENT_FRAGMENT);
		return XDP_PASS;
	}
	__u32 id = f->service, index = f->real;
	struct service *s = bpf_map_lookup_elem(&services, &id);
	struct real *r = bpf_map_lookup_elem(&reals, &index);
	if (!s || !r || !s->used || r->service != id || s->mode != f->mode)
		return XDP_PASS;
	count(f->kind == FLOW_FORWARD ? EVENT_FORWARDED : EVENT_RETURNED);
	count_frame(index, p, f->kind == FLOW_FORWARD, 0);
	return deliver_known(ctx, p, f, s, r);
}

/* What a flow to this real server becomes, but for full NAT's own source. */
static __always_inline void aim(struct flow *f, const struct flow_key *k, const struct service *s, __u32 id, const struct real *r,
				__u32 index, __u64 now)
{
	__builtin_memset(f, 0, sizeof(*f));
	f->src = k->src;
	f->sport = k->sport;
	f->mode = s->mode;
	if (returns(f)) {
		f->dst = r->addr;
		f->dport = r->port;
	} else {
		f->dst = k->dst;
		f->dport = k->dport;
	}
	f->real = index;
	f->last = now;
	f->service = id;
	f->kind = FLOW_FORWARD;
}

/* The entry of the way back: it makes of the real server's packets the service's. */
static __always_inline void back_of(struct flow *b, const struct flow *f, const struct flow_key *k)
{
	*b = *f;
	b->src = k->dst;
	b->dst = k->src;
	b->sport = k->dport;
	b->dport = k->sport;
	b->kind = FLOW_RETURN;
}

/*
 * The source address and port that the flow had when the table let it go, if they are still its own. The index of recent flows has kept
 * them.
 */
static __noinline int retake_source(const struct flow_key *k, __u64 extra)
{
	struct scratch *d = desk();

	if (!d || !k || !extra)
		return -1;
	struct flow *f = &d->forward;
	map4(&f->src, extra);
	f->sport = extra >> 32;
	other_key(&d->key, f, k->proto);
	struct flow *back = bpf_map_lookup_elem(&flows, &d->key);
	if (back)
		return back->kind == FLOW_RETURN && back->real == f->real && same(&back->dst, &k->src) && back->dport == k->sport &&
				       same(&back->src, &k->dst) && back->sport == k->dport ?
			       0 :
			       -1;
	back_of(&d->back, f, k);
	return bpf_map_update_elem(&flows, &d->key, &d->back, BPF_NOEXIST) ? -1 : 0;
}

/* A source address and port of our own that no other flow to this real server has. */
static __noinline int take_source(const struct flow_key *k, const struct service *s)
{
	struct scratch *d = desk();
	__u32 hash;

	if (!d || !k || !s || !s->source_count)
		return -1;
	struct flow *f = &d->forward;
	hash = finish(mix(mix(flow_hash(s, k), k->sport), k->dport));
	for (int i = 0; i < PORT_LOOKS; i++) {
		__u32 at = s->sources + (hash >> 16) % s->source_count;
		struct addr *own = bpf_map_lookup_elem(&sources, &at);
		if (!own)
			return -1;
		f->src = *own;
		f->sport = bpf_htons(PORT_FIRST + hash % PORT_COUNT);
		other_key(&d->key, f, k->proto);
		struct flow *taken = bpf_map_lookup_elem(&flows, &d->key);
		if (taken && !(taken->state & FLOW_CLOSED) && !is_idle(taken, s, k->proto, f->last)) {
			hash = finish(hash + i + 1);
			continue;
		}
		back_of(&d->back, f, k);
		if (!bpf_map_update_elem(&flows, &d->key, &d->back, taken ? BPF_ANY : BPF_NOEXIST))
			return 0;
		hash = finish(hash + i + 1);
	}
	return -1;
}

/* Chooses the real server of a new flow and notes the flow; MADE, or a verdict. */
#define MADE (-2)
static __noinline int begin(struct xdp_md *ctx, const struct packet *p, __u32 id, __u64 now)
{
	struct scratch *d = desk();

	if (!p || !d)
		return XDP_DROP;
	struct service *s = bpf_map_lookup_elem(&services, &id);
	if (!s || !s->used)
		return XDP_PASS;
	int opens = p->key.proto != IPPROTO_TCP || (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN;
	__u32 mss = 0;
	if (s->cookies && p->key.proto == IPPROTO_TCP && p->fragment == FRAGMENT_NONE) {
		if (opens && s->slots && wants_cookie(s, id, now))
			return send_cookie(ctx, p);
		if (!opens)
			mss = proved(ctx, p);
		opens |= mss != 0;
	}
	/* The table had to let the flow go for another one, but it had a packet a moment ago. */
	__u64 word = p->known_word;
	__u32 index = RECENT_REAL(word);
	struct real *was = word && !(word & RECENT_RETURN) && !mss ? bpf_map_lookup_elem(&reals, &index) : 0;
	if (!was || was->service != id || RECENT_MODE(word) != s->mode)
		index = NOBODY;
	int again = index != NOBODY;
	/* Of a flow that another balancer began, only a hash tells where it is. */
	if (!opens && index == NOBODY && (s->choice != CHOICE_HASH || s->mode == MODE_FULL_NAT)) {
		count(EVENT_NO_FLOW);
		return XDP_PASS;
	}
	if (index == NOBODY && (s->flags & SERVICE_QUIC) && p->key.proto == IPPROTO_UDP)
		index = choose_quic(ctx, p, id);
	if (index == NOBODY)
		index = choose(s, id, &p->key, now);
	struct real *r = bpf_map_lookup_elem(&reals, &index);
	if (!r) {
		count(EVENT_NO_REAL);
		return XDP_PASS;
	}
	aim(&d->forward, &p->key, s, id, r, index, now);
	if (s->mode == MODE_FULL_NAT && !(again && retake_source(&p->key, p->known_extra) == 0)) {
		if (!opens) {
			count(EVENT_NO_FLOW);
			return XDP_PASS;
		}
		if (take_source(&p->key, s) < 0)
			return gone(EVENT_NO_PORT);
	}
	if (s->mode == MODE_NAT) {
		other_key(&d->key, &d->forward, p->key.proto);
		back_of(&d->back, &d->forward, &p->key);
		bpf_map_update_elem(&flows, &d->key, &d->back, BPF_ANY);
		recent_forget(&d->key);
	}
	bpf_map_update_elem(&flows, &p->key, &d->forward, BPF_ANY);
	d->packet.made = 1;
	__u64 *n = bpf_map_lookup_elem(&active, &index);
	if (n)
		__sync_fetch_and_add(n, 1);
	struct counters *c = bpf_map_lookup_elem(&real_counters, &index);
	if (opens && !again && c)
		c->flows++;
	if (!opens && !again)
		count(EVENT_ADOPTED);
	if (mss) {
		note_opening(ctx, p, mss);
		count(EVENT_PROVED);
	}
	return MADE;
}

/*
 * What a real server of a NAT service sends without a flow in the table: the flow began with another balancer, or was
 * forgotten. A SYN+ACK shows that the client spoke to the real server itself, through us as its router: that stays so.
 * So does what a real server of full NAT, too, sends when the table had to let the flow go for another one, but the index knows it.
 */
static __noinline int adopt_return(const struct packet *p, __u64 now)
{
	struct back_key from = {};
	struct scratch *d = desk();

	if (!p || !d)
		return XDP_PASS;
	__u64 word = p->known_word;
	__u32 id, index;
	if (word & RECENT_RETURN) {
		id = RECENT_SERVICE(word);
		index = RECENT_REAL(word);
	} else {
		from.addr = p->key.src;
		from.port = p->key.sport;
		from.proto = p->key.proto;
		struct back *known_back = bpf_map_lookup_elem(&backs, &from);
		if (!known_back || known_back->many)
			return XDP_PASS;
		word = 0;
		id = known_back->service;
		index = known_back->real;
	}
	struct service *s = bpf_map_lookup_elem(&services, &id);
	if (!s || !s->used)
		return XDP_PASS;
	if (word ? s->mode != RECENT_MODE(word) : s->mode != MODE_NAT || !(s->flags & SERVICE_ADOPT_RETURN))
		return XDP_PASS;
	/* What the client sends, and what it becomes. */
	struct flow_key *turned = &d->key;
	struct flow *f = &d->forward;
	__builtin_memset(turned, 0, sizeof(*turned));
	__builtin_memset(f, 0, sizeof(*f));
	turned->src = p->key.dst;
	turned->dst = s->addr;
	turned->sport = p->key.dport;
	turned->dport = s->port;
	turned->proto = p->key.proto;
	if (s->mode == MODE_FULL_NAT) {
		map4(&turned->src, p->known_extra);
		turned->sport = p->known_extra >> 32;
	}
	f->src = p->key.dst;
	f->sport = p->key.dport;
	f->dst = p->key.src;
	f->dport = p->key.sport;
	f->mode = s->mode;
	f->real = index;
	f->last = now;
	f->service = id;
	back_of(&d->back, f, turned);
	if (p->key.proto == IPPROTO_TCP && (p->tcp_flags & TCP_SYN)) {
		if (!(p->tcp_flags & TCP_ACK))
			return XDP_PASS;
		d->back.kind = FLOW_STRANGER;
		bpf_map_update_elem(&flows, &p->key, &d->back, BPF_ANY);
		return XDP_PASS;
	}
	struct flow *forward = bpf_map_lookup_elem(&flows, turned);
	if (forward && (forward->real != index || forward->kind != FLOW_FORWARD || forward->sport != f->sport ||
			!same(&forward->src, &f->src)))
		return XDP_PASS;
	if (!forward) {
		bpf_map_update_elem(&flows, turned, f, BPF_NOEXIST);
		recent_forget(turned);
		__u64 *n = bpf_map_lookup_elem(&active, &index);
		if (n)
			__sync_fetch_and_add(n, 1);
	}
	bpf_map_update_elem(&flows, &p->key, &d->back, BPF_ANY);
	if (!word)
		count(EVENT_ADOPTED);
	return MADE;
}

/* An error about a packet of a flow, or of a service whose hash tells the real server. */
static __noinline int icmp_error(struct xdp_md *ctx, const struct packet *p, __u64 now)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct service_key who = {};
	struct scratch *d = desk();
	__u32 at, ports = 0, id, index;

	if (!p || !d)
		return XDP_PASS;
	struct flow_key *quoted = &d->quoted, *k = &d->key;
	__builtin_memset(k, 0, sizeof(*k));
	__builtin_memset(quoted, 0, sizeof(*quoted));
	__u8 *icmp = data + OFFSET(p->l4);
	if (icmp + 8 > (__u8 *)end || !is_error(p->v6, icmp[0]))
		return XDP_PASS;
	at = p->l4 + 8;
	if (quoted_ip(data, end, at, p->v6, quoted, &ports) < 0)
		return XDP_PASS;
	if (quoted->proto == IPPROTO_IPIP || quoted->proto == IPPROTO_IPV6)
		return learn_mtu(ctx, p, ports, quoted->proto);
	if (quoted_ports(data, end, ports, quoted) < 0)
		return XDP_PASS;
	k->src = quoted->dst;
	k->dst = quoted->src;
	k->sport = quoted->dport;
	k->dport = quoted->sport;
	k->proto = quoted->proto;
	struct flow *f = bpf_map_lookup_elem(&flows, k);
	if (f && f->kind == FLOW_STRANGER)
		return XDP_PASS;
	if (!f) {
		who.addr = k->dst;
		who.port = k->dport;
		who.proto = k->proto;
		__u32 *known_id = bpf_map_lookup_elem(&service_ids, &who);
		if (!known_id)
			return k->proto == IPPROTO_UDP ? learn_mtu(ctx, p, ports, IPPROTO_UDP) : XDP_PASS;
		id = *known_id;
		struct service *s = bpf_map_lookup_elem(&services, &id);
		if (!s || !s->used || s->choice != CHOICE_HASH || s->mode == MODE_FULL_NAT)
			return XDP_PASS;
		index = choose_slot(s, id, k);
		struct real *r = bpf_map_lookup_elem(&reals, &index);
		if (!r)
			return XDP_PASS;
		aim(&d->forward, k, s, id, r, index, now);
		f = &d->forward;
	}
	id = f->service;
	index = f->real;
	struct service *s = bpf_map_lookup_elem(&services, &id);
	struct real *r = bpf_map_lookup_elem(&reals, &index);
	if (!s || !r || !s->used || r->service != id || s->mode != f->mode)
		return XDP_PASS;
	if (p->ttl <= 1)
		return gone(EVENT_TTL);
	count(EVENT_ICMP);
	if (f->kind == FLOW_FORWARD && !returns(f))
		return deliver_whole(ctx, p, s, r);
	return pass_error(ctx, p, f, at, ports);
}

/* The way of a packet that the index of recent flows does not send on: by the table, or to a new entry in it. */
static __noinline int by_table(struct xdp_md *ctx, struct packet *p, __u64 now)
{
	struct service_key who = {};
	int verdict = RENEW;

	if (!p)
		return XDP_DROP;
	struct flow *f = bpf_map_lookup_elem(&flows, &p->key);
	if (f) {
		p->known_word = 0;
		verdict = known(ctx, p, f, now);
	} else {
		recent_put(p->hash, 0, 0);
	}
	if (verdict != RENEW)
		return verdict;
	if (f) {
		close_flow(f, other_way(f, p->key.proto), 0);
		recent_put(p->hash, 0, 0);
		forget_other_way(f, p->key.proto);
	}
	who.addr = p->key.dst;
	who.port = p->key.dport;
	who.proto = p->key.proto;
	__u32 *id = bpf_map_lookup_elem(&service_ids, &who);
	verdict = id ? begin(ctx, p, *id, now) : f ? XDP_PASS : adopt_return(p, now);
	if (verdict != MADE)
		return verdict;
	f = bpf_map_lookup_elem(&flows, &p->key);
	verdict = f ? known(ctx, p, f, now) : XDP_DROP;
	return verdict == RENEW ? XDP_PASS : verdict;
}

static __always_inline int handle(struct xdp_md *ctx)
{
	struct scratch *d = desk();
	int verdict = RENEW;
	__u64 now;

	if (!d)
		return XDP_PASS;
	struct packet *p = &d->packet;
	__builtin_memset(p, 0, sizeof(*p));
	int what = parse(ctx, p);
	/* Here all ways of parsing are one again: what they found is read back, and the verifier looks at the rest once, not for each. */
	asm volatile("" : "+r"(p) : : "memory");
	if (what == PARSED_PASS)
		return XDP_PASS;
	/* The coarse clock goes by ticks, and this one's is known: it is asked once in each. */
	__u64 tick = bpf_jiffies64();
	if (d->jiffies != tick || !d->now) {
		d->jiffies = tick;
		d->now = bpf_ktime_get_coarse_ns();
	}
	now = d->now;
	p->now = now;
	if (what == PARSED_ICMP)
		return icmp_error(ctx, p, now);
	if (p->fragment == FRAGMENT_LATER)
		return later_fragment(ctx, p, now);
	struct recent_keys *n = recent_keys_now();
	if (!n)
		return XDP_PASS;
	p->hash = recent_hash(n, &p->key, p->v6);
	struct recent_line *line = recent_line(n, p->hash);
	__u64 word = line ? recent_word(line, p->hash) : 0;
	if (word)
		verdict = recent_known(ctx, p, word, now);
	return verdict == RENEW ? by_table(ctx, p, now) : verdict;
}

SEC("xdp")
int ironweir_l4(struct xdp_md *ctx)
{
	int verdict = handle(ctx);

	if (verdict == XDP_PASS)
		count(EVENT_PASSED);
	return verdict;
}
