/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Answers to a sender: RST, and "too big". Both leave the way the packet came. */
#pragma once

#include "rewrite.h"

static __always_inline void turn_frame(struct ethhdr *eth)
{
	__u8 mac[6];
	__builtin_memcpy(mac, eth->h_dest, 6);
	__builtin_memcpy(eth->h_dest, eth->h_source, 6);
	__builtin_memcpy(eth->h_source, mac, 6);
}

static __always_inline __u64 sum_words(const void *from, int words)
{
	const __u16 *w = from;
	__u64 sum = 0;
#pragma unroll
	for (int i = 0; i < words; i++)
		sum += w[i];
	return sum;
}

/* The IP packet becomes an answer to its sender: addresses change places. `length` is that of what follows the header. */
static __always_inline void turn_ip4(struct iphdr *ip, __u32 src, __u32 dst, __u8 proto, __u16 length)
{
	ip->version = 4;
	ip->ihl = 5;
	ip->tos = 0;
	ip->tot_len = bpf_htons(sizeof(*ip) + length);
	ip->id = 0;
	ip->frag_off = bpf_htons(IP_DONT);
	ip->ttl = OWN_TTL;
	ip->protocol = proto;
	ip->check = 0;
	ip->saddr = src;
	ip->daddr = dst;
	ip->check = ~fold(sum_words(ip, 10));
}

static __always_inline void turn_ip6(struct ipv6hdr *ip, const struct addr *src, const struct addr *dst, __u8 proto, __u16 length)
{
	*(__u32 *)ip = bpf_htonl(0x60000000);
	ip->payload_len = bpf_htons(length);
	ip->nexthdr = proto;
	ip->hop_limit = OWN_TTL;
	__builtin_memcpy(&ip->saddr, src, 16);
	__builtin_memcpy(&ip->daddr, dst, 16);
}

static __always_inline __u64 pseudo_sum(const struct packet *p, __u8 proto, __u16 length)
{
	__u64 sum = bpf_htons(length) + (__u64)bpf_htons(proto);
	if (!p->v6)
		return sum + sum_words(&p->key.src.w[3], 2) + sum_words(&p->key.dst.w[3], 2);
	return sum + sum_words(&p->key.src, 8) + sum_words(&p->key.dst, 8);
}

/*
 * RFC 9293 section 3.5.2: the number is the one the sender waits for. A packet with IP options is dropped without an
 * answer, and so is RST.
 */
static __noinline int answer_reset(struct xdp_md *ctx, const struct packet *p)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 head = p->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	__u32 seq, ack, payload, l4 = p->l4;
	__u8 flags;

	if (!p)
		return XDP_DROP;
	if (l4 != ETH_HLEN + head || p->key.proto != IPPROTO_TCP || (p->tcp_flags & TCP_RST) || p->fragment != FRAGMENT_NONE)
		return XDP_DROP;
	if (p->v6 ? data + ETH_HLEN + 40 + sizeof(struct tcphdr) > end : data + ETH_HLEN + 20 + sizeof(struct tcphdr) > end)
		return XDP_DROP;
	struct tcphdr *tcp = p->v6 ? data + ETH_HLEN + 40 : data + ETH_HLEN + 20;
	payload = p->length - head;
	payload -= payload < tcp->doff * 4 ? payload : tcp->doff * 4;
	if (p->tcp_flags & TCP_ACK) {
		seq = tcp->ack_seq;
		ack = 0;
		flags = TCP_RST;
	} else {
		payload += ((p->tcp_flags & TCP_SYN) != 0) + ((p->tcp_flags & TCP_FIN) != 0);
		seq = 0;
		ack = bpf_htonl(bpf_ntohl(tcp->seq) + payload);
		flags = TCP_RST | TCP_ACK;
	}
	tcp->source = p->key.dport;
	tcp->dest = p->key.sport;
	tcp->seq = seq;
	tcp->ack_seq = ack;
	((__u8 *)tcp)[12] = 5 << 4;
	((__u8 *)tcp)[13] = flags;
	tcp->window = 0;
	tcp->urg_ptr = 0;
	tcp->check = 0;
	tcp->check = ~fold(pseudo_sum(p, IPPROTO_TCP, sizeof(*tcp)) + sum_words(tcp, 10));
	if (p->v6)
		turn_ip6(data + ETH_HLEN, &p->key.dst, &p->key.src, IPPROTO_TCP, sizeof(*tcp));
	else
		turn_ip4(data + ETH_HLEN, p->key.dst.w[3], p->key.src.w[3], IPPROTO_TCP, sizeof(*tcp));
	turn_frame(data);
	if (bpf_xdp_adjust_tail(ctx, (int)(ETH_HLEN + head + sizeof(*tcp)) - (int)(end - data)))
		return XDP_DROP;
	count(EVENT_RESET);
	return XDP_TX;
}

/* How much of the packet comes back: its IP header and eight bytes (RFC 792; RFC 4443 section 2.4 would like more). */
#define BACK4 28
#define BACK6 48

/* What an error says: its type, its code, and what stands in the last two octets of its head. */
#define ERROR_OF(type, code) ((type) << 8 | (code))

static __always_inline int error4(struct xdp_md *ctx, const struct packet *p, __u32 what, __u16 mtu)
{
	const int made = sizeof(struct iphdr) + sizeof(struct icmphdr);

	if (p->l4 != ETH_HLEN + sizeof(struct iphdr) || bpf_xdp_adjust_head(ctx, -made))
		return XDP_DROP;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (data + ETH_HLEN + made + BACK4 > end)
		return XDP_DROP;
	__builtin_memcpy(data, data + made, ETH_HLEN);
	struct iphdr *ip = data + ETH_HLEN;
	struct icmphdr *icmp = (void *)(ip + 1);
	icmp->type = what >> 8;
	icmp->code = what;
	icmp->checksum = 0;
	icmp->unused = 0;
	icmp->mtu = bpf_htons(mtu);
	icmp->checksum = ~fold(sum_words(icmp, (sizeof(*icmp) + BACK4) / 2));
	turn_ip4(ip, p->key.dst.w[3], p->key.src.w[3], IPPROTO_ICMP, sizeof(*icmp) + BACK4);
	turn_frame(data);
	if (bpf_xdp_adjust_tail(ctx, (ETH_HLEN + made + BACK4) - (int)(end - data)))
		return XDP_DROP;
	return XDP_TX;
}

static __always_inline int error6(struct xdp_md *ctx, const struct packet *p, __u32 what, __u16 mtu)
{
	const int made = sizeof(struct ipv6hdr) + sizeof(struct icmp6hdr);

	if (bpf_xdp_adjust_head(ctx, -made))
		return XDP_DROP;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (data + ETH_HLEN + made + BACK6 > end)
		return XDP_DROP;
	__builtin_memcpy(data, data + made, ETH_HLEN);
	struct ipv6hdr *ip = data + ETH_HLEN;
	struct icmp6hdr *icmp = (void *)(ip + 1);
	icmp->icmp6_type = what >> 8;
	icmp->icmp6_code = what;
	icmp->icmp6_cksum = 0;
	icmp->icmp6_mtu = bpf_htonl(mtu);
	icmp->icmp6_cksum = ~fold(pseudo_sum(p, IPPROTO_ICMPV6, sizeof(*icmp) + BACK6) + sum_words(icmp, (sizeof(*icmp) + BACK6) / 2));
	turn_ip6(ip, &p->key.dst, &p->key.src, IPPROTO_ICMPV6, sizeof(*icmp) + BACK6);
	turn_frame(data);
	if (bpf_xdp_adjust_tail(ctx, (ETH_HLEN + made + BACK6) - (int)(end - data)))
		return XDP_DROP;
	return XDP_TX;
}

/* The packet, as it came, is larger than the way to the real server takes: its sender is told (RFC 1191, RFC 8201). */
static __noinline int answer_too_big(struct xdp_md *ctx, const struct packet *p, __u32 mtu)
{
	int verdict;

	if (!p)
		return XDP_DROP;
	verdict = p->v6 ? error6(ctx, p, ERROR_OF(ICMPV6_PKT_TOOBIG, 0), mtu) :
			  error4(ctx, p, ERROR_OF(ICMP_DEST_UNREACH, ICMP_FRAG_NEEDED), mtu);
	if (verdict == XDP_TX)
		count(EVENT_TOO_BIG);
	return verdict;
}

/* An address of one machine: only such a sender is told (RFC 1122 section 3.2.2, RFC 4443 section 2.4 e). */
static __always_inline int is_machine(const struct packet *p)
{
	const struct addr *a = &p->key.src;
	__u8 first = bpf_ntohl(a->w[3]) >> 24;

	if (p->v6)
		return (a->w[0] | a->w[1] | a->w[2] | a->w[3]) && (bpf_ntohl(a->w[0]) >> 24) != 0xff;
	return first && first != 127 && first < 224;
}

/*
 * Its hop limit is used up: a client's packet ends at the service's address, which tells it so (RFC 792, RFC 4443 section 3.3), as a router
 * does. Not of a later fragment, and not more often than a CPU may.
 */
static __noinline int answer_expired(struct xdp_md *ctx, const struct packet *p)
{
	struct scratch *d = desk();

	count(EVENT_TTL);
	if (!p || !d || p->fragment == FRAGMENT_LATER || !is_machine(p))
		return XDP_DROP;
	__u32 step = p->now >> TOLD_SHIFT;
	if (d->told_step != step) {
		d->told_step = step;
		d->told = 0;
	}
	if (d->told >= TOLD_MAX)
		return XDP_DROP;
	d->told++;
	return p->v6 ? error6(ctx, p, ERROR_OF(ICMPV6_TIME_EXCEED, 0), 0) : error4(ctx, p, ERROR_OF(ICMP_TIME_EXCEEDED, 0), 0);
}
