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
 *
 * What a packet of full NAT becomes is not known from the packet and the service alone. Its entry has two more words in the place beside it
 * (an odd one): the address and port that the packet gets, and the same again, mixed with hash and numbers, by which it is known that they belong
 * to the entry. With IPv6 these do not fit: such flows are not in the index.
 */
#pragma once

#include "parse.h"

/* Time in the index: 2^24 ns are 17 ms. */
#define RECENT_SHIFT 24
/* The table hears of a flow's packets so often at the least: a part of the idle time, or this. */
#define RECENT_PART 4
#define RECENT_MAX 60000000000ULL
#define RECENT_WAYS 4

/* The second word: the time, the numbers of real server (16 bits) and service (12), one more than the mode, kind; never zero. */
#define RECENT_RETURN 1
#define RECENT_MODE(word) (((word) >> 1 & 7) - 1)
#define RECENT_SERVICE(word) ((word) >> 4 & 0xfff)
#define RECENT_REAL(word) ((word) >> 16 & 0xffff)

/* For so long a packet that was noted stands for those that come after it. */
static __always_inline __u64 recent_ns(const struct service *s)
{
	__u64 part = s->idle_ns >> RECENT_PART;

	return !s->idle_ns || part > RECENT_MAX ? RECENT_MAX : part;
}

/* In steps of the index. What is of the future is no time, but another CPU's clock may be ahead by a step. */
static __always_inline __u32 recent_steps(__u32 then, __u32 now)
{
	__u32 steps = now - then;

	return steps == 0xffffffffu ? 0 : steps;
}

static __always_inline __u64 recent_age(__u64 word, __u64 now)
{
	return ((__u64)recent_steps(word >> 32, now >> RECENT_SHIFT) + 1) << RECENT_SHIFT;
}

/* The entry has the place beside it as well. */
static __always_inline int recent_is_wide(__u64 word)
{
	return word && RECENT_MODE(word) == MODE_FULL_NAT;
}

/* What holds the words of a wide entry together, the time excepted. */
static __always_inline __u64 recent_bond(__u64 extra, __u64 hash, __u64 word)
{
	return extra * 0x9e3779b97f4a7c15ULL ^ hash ^ (__u32)word;
}

/* An IPv4 address and a port, in network order; never zero. */
static __always_inline __u64 recent_place(const struct addr *a, __u16 port)
{
	return (__u64)port << 32 | a->w[3];
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

	return n->lines ? bpf_map_lookup_elem(&recent_lines, &at) : 0;
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
		__u64 is = ((other | -other) >> 63) - 1;
		/* CPUs that noted the flow at the same moment may have done so in two places: one of them counts, never a mixture. */
		found = (found & ~is) | (word & is);
	}
	return found;
}

/* The address and port of the wide entry with this hash and word; 0: they are not there, or are another's by now. */
static __always_inline __u64 recent_extra(struct recent_line *l, __u64 hash, __u64 word)
{
	volatile __u64 *w = l->w;

#pragma unroll
	for (int i = 0; i < RECENT_WAYS; i += 2) {
		__u64 extra = w[2 * i + 2];
		if ((w[2 * i] ^ w[2 * i + 1]) == hash && w[2 * i + 3] == recent_bond(extra, hash, word))
			return extra;
	}
	return 0;
}

static __always_inline struct recent_keys *recent_keys_now(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&recent_keys, &zero);
}

/* How long nobody has noted what stands there; more than any time for what is free or of the future. */
static __always_inline __u32 recent_rest(__u64 there, __u64 word)
{
	return there ? recent_steps(there >> 32, word >> 32) : 0xfffffffeu;
}

/*
 * The entry of this hash, a free one or the oldest gets the word, and a wide one what else it has (`extra`). Word 0: what is there of it is
 * forgotten.
 */
static __noinline int recent_put(__u64 hash, __u64 word, __u64 extra)
{
	struct recent_keys *n = recent_keys_now();
	struct recent_line *l = n ? recent_line(n, hash) : 0;
	__u32 best = RECENT_WAYS, oldest = 0;
	int wide = recent_is_wide(word);

	if (!l)
		return 0;
	volatile __u64 *w = l->w;
	for (__u32 i = 0; i < RECENT_WAYS; i++) {
		__u64 there = w[2 * i + 1];
		if (!there || (w[2 * i] ^ there) != hash)
			continue;
		if (word && best == RECENT_WAYS && recent_is_wide(there) == wide) {
			best = i;
			continue;
		}
		w[2 * i + 1] = 0;
		w[2 * i] = 0;
	}
	if (!word)
		return 0;
	for (__u32 i = 0, begin = best; begin == RECENT_WAYS && i < RECENT_WAYS; i++) {
		__u64 there = w[2 * i + 1], before = w[2 * (i & ~1u) + 1];
		__u32 rest = recent_rest(there, word);
		/* An odd place may be the second half of the one before it. */
		if ((i & 1) && (wide || recent_is_wide(before)))
			continue;
		if (wide && !recent_is_wide(there)) {
			__u32 beside = recent_rest(w[2 * (i | 1) + 1], word);
			rest = beside < rest ? beside : rest;
		}
		if (best == RECENT_WAYS || rest > oldest) {
			oldest = rest;
			best = i;
		}
	}
	best &= RECENT_WAYS - 1;
	if (wide) {
		best &= ~1u;
		w[2 * best + 2] = extra;
		w[2 * best + 3] = recent_bond(extra, hash, word);
	}
	w[2 * best + 1] = word;
	w[2 * best] = hash ^ word;
	return 0;
}

static __noinline int recent_forget(const struct flow_key *k)
{
	struct recent_keys *n = recent_keys_now();

	if (!n || !k)
		return 0;
	return recent_put(recent_hash(n, k, !is4(&k->src)), 0, 0);
}

/*
 * A packet of this flow has been noted in the table just now. What numbers are shifted for, what may not be sent on, and what has ended where
 * both directions are seen, stays there. (Else a flow has "ended" when the client has sent all that it has.)
 */
static __always_inline void recent_note(const struct packet *p, const struct flow *f, __u64 now)
{
	__u64 word = 0, extra = 0;

	if (f->mode == MODE_FULL_NAT) {
		if (p->v6)
			return;
		extra = f->kind == FLOW_RETURN ? recent_place(&f->dst, f->dport) : recent_place(&f->src, f->sport);
	}
	__u8 no = FLOW_DEAD | FLOW_OPENING | FLOW_SHIFTED | (f->mode <= MODE_FULL_NAT ? FLOW_CLOSED : 0);
	if (!(f->state & no))
		word = (now >> RECENT_SHIFT) << 32 | (__u64)(f->real & 0xffff) << 16 | (__u64)(f->service & 0xfff) << 4 |
		       (__u64)((f->mode + 1) & 7) << 1 | (f->kind == FLOW_RETURN ? RECENT_RETURN : 0);
	recent_put(p->hash, word, extra);
}
