/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Reads a frame: who sends what to whom. Looks at headers only, changes nothing. */
#pragma once

#include <linux/icmpv6.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include "maps.h"

#define IP_MORE 0x2000
#define IP_DONT 0x4000
#define IP_OFFSET 0x1fff
#define TCP_FIN 1
#define TCP_SYN 2
#define TCP_RST 4
#define TCP_ACK 16
/* Offsets are read back from memory, where the verifier forgets what it knew of them. The longest: 14 + 60. */
#define OFFSET(o) ((o) & 0x7f)

/* RFC 792. The kernel's header brings the C library's along. */
#define ICMP_DEST_UNREACH 3
#define ICMP_SOURCE_QUENCH 4
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12
#define ICMP_FRAG_NEEDED 4

struct icmphdr {
	__u8 type, code;
	__u16 checksum;
	__u16 unused, mtu;
};

enum fragment { FRAGMENT_NONE = 0, FRAGMENT_FIRST = 1, FRAGMENT_LATER = 2 };
enum parsed { PARSED_PASS = 0, PARSED_PACKET = 1, PARSED_ICMP = 2 };

struct fragment_header {
	__u8 next, zero;
	__u16 offset;
	__u32 id;
};

struct packet {
	struct flow_key key;
	__u64 now;
	__u64 hash;     /* in the index of recent flows */
	__u64 known_word; /* what the index knows of it, if the table may be told so; else 0 */
	__u64 known_extra;
	__u32 frame;    /* bytes of the frame */
	__u32 fragment_id;
	__u16 length;   /* bytes of the IP packet */
	__u16 l4;       /* offset of the transport header */
	__u8 v6;
	__u8 tcp_flags;
	__u8 fragment;
	__u8 ttl;
	__u8 tos;
	__u8 dont;      /* IPv4: may not be fragmented */
	__u8 made;      /* its flow is one that it has made */
};

/* A segment of TCP that is made from nothing; `cookie.h` says more. */
struct segment {
	struct addr src, dst;
	__u16 sport, dport;
	__u32 seq, ack;
	__u16 window; /* network order */
	__u16 mss;
	__u8 flags;
	__u8 zero[3];
};

/* What is being worked on: the stack of a program and all it calls is 512 bytes. */
struct scratch {
	struct packet packet;
	struct flow forward, back;
	struct flow_key key, quoted;
	struct hop hop;
	struct segment segment;
	__u64 jiffies, now; /* the tick, and the coarse clock when it began */
	__u32 told_step, told; /* errors about hop limits that were sent lately */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

static __always_inline struct scratch *desk(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&scratch, &zero);
}

static __always_inline void map4(struct addr *to, __u32 address)
{
	to->w[0] = 0;
	to->w[1] = 0;
	to->w[2] = __bpf_htonl(0xffff);
	to->w[3] = address;
}

static __always_inline int is4(const struct addr *a)
{
	return a->w[0] == 0 && a->w[1] == 0 && a->w[2] == __bpf_htonl(0xffff);
}

static __always_inline int same(const struct addr *a, const struct addr *b)
{
	return a->w[0] == b->w[0] && a->w[1] == b->w[1] && a->w[2] == b->w[2] && a->w[3] == b->w[3];
}

static __always_inline int parse_transport(void *data, void *end, struct packet *p, __u32 room)
{
	void *l4 = data + OFFSET(p->l4);

	if (p->fragment == FRAGMENT_LATER)
		return PARSED_PACKET;
	if (p->key.proto == IPPROTO_TCP) {
		struct tcphdr *tcp = l4;
		if (room < sizeof(*tcp) || (void *)(tcp + 1) > end)
			return PARSED_PASS;
		p->key.sport = tcp->source;
		p->key.dport = tcp->dest;
		p->tcp_flags = ((__u8 *)tcp)[13];
		return PARSED_PACKET;
	}
	if (p->key.proto == IPPROTO_UDP) {
		struct udphdr *udp = l4;
		if (room < sizeof(*udp) || (void *)(udp + 1) > end)
			return PARSED_PASS;
		p->key.sport = udp->source;
		p->key.dport = udp->dest;
		return PARSED_PACKET;
	}
	if (p->key.proto == (p->v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP) && p->fragment == FRAGMENT_NONE && room >= 8)
		return PARSED_ICMP;
	return PARSED_PASS;
}

static __always_inline int parse4(void *data, void *end, struct packet *p)
{
	struct iphdr *ip = data + ETH_HLEN;
	__u32 head, offset;

	if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
		return PARSED_PASS;
	head = ip->ihl * 4;
	p->length = bpf_ntohs(ip->tot_len);
	if (p->length < head || p->length > p->frame - ETH_HLEN)
		return PARSED_PASS;
	p->l4 = ETH_HLEN + head;
	p->ttl = ip->ttl;
	p->tos = ip->tos;
	p->fragment_id = ip->id;
	offset = bpf_ntohs(ip->frag_off);
	p->dont = (offset & IP_DONT) != 0;
	if (offset & IP_OFFSET)
		p->fragment = FRAGMENT_LATER;
	else if (offset & IP_MORE)
		p->fragment = FRAGMENT_FIRST;
	p->key.proto = ip->protocol;
	map4(&p->key.src, ip->saddr);
	map4(&p->key.dst, ip->daddr);
	return parse_transport(data, end, p, p->length - head);
}

/* Extension headers other than Fragment are left to the stack. */
static __always_inline int parse6(void *data, void *end, struct packet *p)
{
	struct ipv6hdr *ip = data + ETH_HLEN;
	__u32 head = sizeof(*ip);

	if ((void *)(ip + 1) > end || ip->version != 6)
		return PARSED_PASS;
	p->v6 = 1;
	if (bpf_ntohs(ip->payload_len) + sizeof(*ip) > p->frame - ETH_HLEN)
		return PARSED_PASS;
	p->length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	p->ttl = ip->hop_limit;
	p->tos = (ip->priority << 4) | (ip->flow_lbl[0] >> 4);
	p->dont = 1;
	p->key.proto = ip->nexthdr;
	__builtin_memcpy(&p->key.src, &ip->saddr, 16);
	__builtin_memcpy(&p->key.dst, &ip->daddr, 16);
	/* A mapped address on the wire would be taken for IPv4 (RFC 4038 section 4.2: must not be). */
	if (is4(&p->key.src) || is4(&p->key.dst))
		return PARSED_PASS;
	if (ip->nexthdr == IPPROTO_FRAGMENT) {
		struct fragment_header *f = (void *)(ip + 1);
		if ((void *)(f + 1) > end || p->length < sizeof(*ip) + sizeof(*f))
			return PARSED_PASS;
		head += sizeof(*f);
		p->key.proto = f->next;
		p->fragment_id = f->id;
		if (bpf_ntohs(f->offset) & 0xfff8)
			p->fragment = FRAGMENT_LATER;
		else if (bpf_ntohs(f->offset) & 1)
			p->fragment = FRAGMENT_FIRST;
	}
	p->l4 = ETH_HLEN + head;
	return parse_transport(data, end, p, p->length - head);
}

/* The frame is for this machine, as far as user space has said which addresses the interface has. */
static __always_inline int is_for_us(struct xdp_md *ctx, const struct ethhdr *eth)
{
	__u32 at = ctx->ingress_ifindex & (LINKS - 1);
	const struct link *l = bpf_map_lookup_elem(&links, &at);
	const __u16 *w = (const void *)eth->h_dest;
	__u64 to = w[0] | (__u64)w[1] << 16 | (__u64)w[2] << 32;

	if (!l || l->ifindex != ctx->ingress_ifindex || l->addresses[0] == to)
		return 1;
	for (__u32 i = 1; i < LINK_ADDRESSES && i < l->count; i++)
		if (l->addresses[i] == to)
			return 1;
	return 0;
}

static __always_inline int parse(struct xdp_md *ctx, struct packet *p)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end)
		return PARSED_PASS;
	p->frame = end - data;
	/* A broadcast or somebody else's frame, on an interface that hears everything, is not ours. */
	if (eth->h_dest[0] & 1)
		return PARSED_PASS;
	if (!is_for_us(ctx, eth)) {
		count(EVENT_FOREIGN);
		return PARSED_PASS;
	}
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		return parse4(data, end, p);
	if (eth->h_proto == bpf_htons(ETH_P_IPV6))
		return parse6(data, end, p);
	return PARSED_PASS;
}
