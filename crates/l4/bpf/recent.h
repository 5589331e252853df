/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * A second, small index of flows that had a packet a moment ago: 16 bytes for each where an entry of the table has 152, four to a
 * line of the cache, looked at without calling anybody. What is in it only repeats what the table says, so that most packets of
 * an established flow need not go there; what is not, is too old or needs more than to be sent on takes the way through the table.
 *
 * An entry has no key, but 64 bits of a hash of it: two multilinear functions with random keys (Carter, Wegman 1979), of which any
 * two different flows have the same value with a probability of 2^-64, whoever has chosen them, unless he knows the keys.
 *
 * CPUs read and write without a lock. The first word is the hash and the second one together (exclusive or): of two halves that
 * were not written together no hash comes out that anybody looks for.
 */
#pragma once

#include "parse.h"

/* Time in the index: 2^24 ns are 17 ms. */
#define RECENT_SHIFT 24
/* The table hears of a flow's packets so often at the least: a part of the idle time, or this. */
#define RECENT_PART 4
#define RECENT_MAX 4000000000ULL
#define RECENT_WAYS 4

/* The second word: the time, the numbers of real server and service, mode, kind; never zero. */
#define RECENT_VALID 1
#define RECENT_RETURN 2
#define RECENT_MODE(word) ((word) >> 2 & 7)
#define RECENT_SERVICE(word) ((word) >> 8 & 0xff)
#define RECENT_REAL(word) ((word) >> 16 & 0xffff)

/* For so long a packet that was noted stands for those that come after it. */
static __always_inline __u64 recent_ns(const struct service *s)
{
	__u64 part = s->idle_ns >> RECENT_PART;

	return !s->idle_ns || part > RECENT_MAX ? RECENT_MAX : part;
}

static __always_inline __u64 recent_age(__u64 word, __u64 now)
{
	__s32 age = (__u32)(now >> RECENT_SHIFT) - (__u32)(word >> 32);

	/* Another CPU's clock may be ahead by a tick. */
	return age < 0 ? 0 : (__u64)(age + 1) << RECENT_SHIFT;
}

#define RECENT_ADD(at, word)                   \
	do {                                   \
		__u64 m = (word);              \
		a += n->keys[at] * m;          \
		b += n->keys[(at) + 1] * m;    \
	} while (0)

/* The hash of a key. */
static __always_inline __u64 recent_hash(const struct recent_keys *n, const struct flow_key *k, int v6)
{
	__u64 a = n->keys[0], b = n->keys[1];

	RECENT_ADD(2, k->src.w[3]);
	RECENT_ADD(4, k->dst.w[3]);
	RECENT_ADD(6, (__u32)k->sport << 16 | k->dport);
	RECENT_ADD(8, (__u32)k->proto << 1 | (v6 != 0));
	if (v6) {
		RECENT_ADD(10, k->src.w[0]);
		RECENT_ADD(12, k->src.w[1]);
		RECENT_ADD(14, k->src.w[2]);
		RECENT_ADD(16, k->dst.w[0]);
		RECENT_ADD(18, k->dst.w[1]);
		RECENT_ADD(20, k->dst.w[2]);
	}
	/* Only upper halves are independent of each other. */
	return (a & 0xffffffff00000000ULL) | b >> 32;
}

static __always_inline struct recent_line *recent_line(const struct recent_keys *n, __u64 hash)
{
	__u32 at = (hash >> 32) * n->lines >> 32;

	return n->lines ? bpf_map_lookup_elem(&recent, &at) : 0;
}

/* The second word of the entry with this hash; 0: there is none. */
static __always_inline __u64 recent_word(struct recent_line *l, __u64 hash)
{
	volatile __u64 *w = l->w;
	__u64 found = 0;

	/* Without branches, each of which would double what the verifier has to look at. An empty entry adds nothing. */
#pragma unroll
	for (int i = 0; i < RECENT_WAYS; i++) {
		__u64 word = w[2 * i + 1], other = w[2 * i] ^ word ^ hash;
		found |= word & (((other | -other) >> 63) - 1);
	}
	return found;
}

static __always_inline struct recent_keys *recent_keys_now(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&recent_keys, &zero);
}

/* The entry of this hash, a free one or the oldest gets the word; 0: what is there of it is forgotten. */
static __noinline int recent_put(__u64 hash, __u64 word)
{
	struct recent_keys *n = recent_keys_now();
	struct recent_line *l = n ? recent_line(n, hash) : 0;
	__u32 best = 0;
	__s32 oldest = -1;

	if (!l)
		return 0;
	volatile __u64 *w = l->w;
	for (int i = 0; i < RECENT_WAYS; i++) {
		__u64 there = w[2 * i + 1];
		if ((w[2 * i] ^ there) == hash && there) {
			best = i;
			oldest = 1;
			break;
		}
		if (!word)
			continue;
		__s32 age = there ? (__s32)((__u32)(word >> 32) - (__u32)(there >> 32)) : 0x7fffffff;
		if (age < 0)
			age = 0;
		if (age > oldest) {
			oldest = age;
			best = i;
		}
	}
	if (oldest < 0)
		return 0;
	best &= RECENT_WAYS - 1;
	w[2 * best + 1] = word;
	w[2 * best] = word ? hash ^ word : 0;
	return 0;
}

static __noinline int recent_forget(const struct flow_key *k)
{
	struct recent_keys *n = recent_keys_now();

	if (!n || !k)
		return 0;
	return recent_put(recent_hash(n, k, !is4(&k->src)), 0);
}

/* A packet of this flow has been noted in the table just now. What numbers are shifted for, or may not be sent on, stays there. */
static __always_inline void recent_note(const struct packet *p, const struct flow *f, __u64 now)
{
	__u64 word = 0;

	if (f->mode == MODE_FULL_NAT)
		return;
	if (!(f->state & (FLOW_DEAD | FLOW_OPENING | FLOW_SHIFTED)))
		word = (now >> RECENT_SHIFT) << 32 | (__u64)(f->real & 0xffff) << 16 | (__u64)(f->service & 0xff) << 8 |
		       (__u64)(f->mode & 7) << 2 | (f->kind == FLOW_RETURN ? RECENT_RETURN : 0) | RECENT_VALID;
	recent_put(p->hash, word);
}
