/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Which real server a new flow gets. User space has computed the ring; here it is only looked up. */
#pragma once

#include "parse.h"

#define NOBODY 0xffffffffu

static __always_inline __u32 mix(__u32 h, __u32 word)
{
	h = (h ^ word) * 0x9e3779b1u;
	return h ^ (h >> 15);
}

static __always_inline __u32 finish(__u32 h)
{
	h *= 0x85ebca6bu;
	h ^= h >> 13;
	h *= 0xc2b2ae35u;
	return h ^ (h >> 16);
}

/* The same for every balancer with the same plan: two of them send a flow to the same real server. */
static __always_inline __u32 flow_hash(const struct service *s, const struct flow_key *k)
{
	__u32 h = s->seed;
#pragma unroll
	for (int i = 0; i < 4; i++)
		h = mix(h, k->src.w[i]);
	if (s->flags & SERVICE_HASH_PORT)
		h = mix(h, k->sport);
	return finish(h);
}

static __always_inline __u32 slot(const struct service *s, __u32 index)
{
	__u32 at = s->ring + index;
	__u32 *real = bpf_map_lookup_elem(&rings, &at);
	return real ? *real : NOBODY;
}

static __always_inline int is_full(__u32 index)
{
	struct real *r = bpf_map_lookup_elem(&reals, &index);
	return !r || (r->flags & REAL_FULL);
}

/* Fewest flows for its weight; compared by multiplication. The first of equals. */
static __noinline __u32 choose_least(const struct service *s)
{
	__u32 best = NOBODY, best_weight = 1, best_full = 1;
	__u64 best_active = 0;

	if (!s)
		return NOBODY;
	for (__u32 i = 0; i < LEAST_MAX && i < s->slots; i++) {
		__u32 index = slot(s, i);
		struct real *r = bpf_map_lookup_elem(&reals, &index);
		__u64 *n = bpf_map_lookup_elem(&active, &index);
		if (!r || !n)
			continue;
		__u32 full = (r->flags & REAL_FULL) != 0;
		if (best == NOBODY || full < best_full ||
		    (full == best_full && (*n + 1) * best_weight < (best_active + 1) * r->weight)) {
			best = index;
			best_weight = r->weight;
			best_active = *n;
			best_full = full;
		}
	}
	return best;
}

static __always_inline __u32 choose_slot(const struct service *s, __u32 id, const struct flow_key *k)
{
	__u32 hash, first;

	if (!s->slots)
		return NOBODY;
	if (s->choice == CHOICE_LEAST)
		return choose_least(s);
	if (s->choice == CHOICE_TURN) {
		__u64 *turn = bpf_map_lookup_elem(&turns, &id);
		if (!turn)
			return NOBODY;
		hash = __sync_fetch_and_add(turn, 1);
	} else {
		hash = flow_hash(s, k);
	}
	first = slot(s, hash % s->slots);
	if (!is_full(first))
		return first;
	for (int i = 1; i < FULL_LOOKS; i++) {
		hash = s->choice == CHOICE_TURN ? hash + 1 : finish(hash + i);
		__u32 other = slot(s, hash % s->slots);
		if (!is_full(other))
			return other;
	}
	return first;
}

/* Where the client's last flow went, if it may go there again; what is chosen now is noted for its next. */
static __noinline __u32 choose(const struct service *s, __u32 id, const struct flow_key *k, __u64 now)
{
	struct affinity_key who = {};
	__u32 index;

	if (!s || !k)
		return NOBODY;
	if (!(s->flags & SERVICE_AFFINITY))
		return choose_slot(s, id, k);
	who.client = k->src;
	who.service = id;
	struct affinity *known = bpf_map_lookup_elem(&affinities, &who);
	if (known && (__s64)(now - known->last) < (__s64)s->affinity_ns) {
		index = known->real;
		struct real *r = bpf_map_lookup_elem(&reals, &index);
		if (r && r->service == id && (r->flags & REAL_USABLE)) {
			known->last = now;
			return index;
		}
	}
	index = choose_slot(s, id, k);
	if (index != NOBODY) {
		struct affinity fresh = { .last = now, .real = index };
		bpf_map_update_elem(&affinities, &who, &fresh, BPF_ANY);
	}
	return index;
}

/*
 * A client of QUIC that has moved: the connection id of its short header (RFC 9000 section 17.3) names the real server, in
 * plain text behind the first octet (draft-ietf-quic-load-balancers section 5.1, two octets). Bits 7 there: it names nobody (section 3.1).
 */
static __always_inline __u32 choose_quic(struct xdp_md *ctx, const struct packet *p, __u32 id)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u8 *quic = data + OFFSET(p->l4) + sizeof(struct udphdr);
	struct quic_key key = {};

	if ((void *)(quic + 4) > end || p->fragment == FRAGMENT_LATER || (quic[0] & 0x80) ||
	    quic[1] >> 5 == 7)
		return NOBODY;
	key.service = id;
	key.server_id = (__u16)quic[2] << 8 | quic[3];
	__u32 *real = bpf_map_lookup_elem(&quic_ids, &key);
	return real ? *real : NOBODY;
}
