/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * For real servers: takes the outer header of IP in IP and of GUE variant 1 off, so that no tunnel device is needed. Linux
 * drivers for both exist (`ip link add type ipip`, `ip fou add port 6080 gue`) and do the same where they are built in.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define GUE_PORT 6080

/* Bytes of outer headers, and the EtherType of what they carry; 0: this is no tunnel's packet. */
static __always_inline int outer(void *data, void *end, __u16 *inner)
{
	struct ethhdr *eth = data;
	__u8 next;
	int head;

	if ((void *)(eth + 1) > end)
		return 0;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(eth + 1);
		if ((void *)(ip + 1) > end || ip->ihl != 5 || (ip->frag_off & bpf_htons(0x3fff)))
			return 0;
		next = ip->protocol;
		head = sizeof(*ip);
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(eth + 1);
		if ((void *)(ip + 1) > end)
			return 0;
		next = ip->nexthdr;
		head = sizeof(*ip);
	} else {
		return 0;
	}
	if (next == IPPROTO_IPIP || next == IPPROTO_IPV6) {
		*inner = next == IPPROTO_IPIP ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
		return head;
	}
	if (next != IPPROTO_UDP)
		return 0;
	struct udphdr *udp = head == sizeof(struct iphdr) ? data + ETH_HLEN + sizeof(struct iphdr) : data + ETH_HLEN + sizeof(struct ipv6hdr);
	__u8 *first = (void *)(udp + 1);
	if ((void *)(first + 1) > end || udp->dest != bpf_htons(GUE_PORT))
		return 0;
	if (*first >> 4 != 4 && *first >> 4 != 6)
		return 0;
	*inner = *first >> 4 == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	return head + sizeof(*udp);
}

SEC("xdp")
int ironweir_decap(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr eth;
	__u16 inner = 0;
	int head = outer(data, end, &inner);

	if (!head)
		return XDP_PASS;
	__builtin_memcpy(&eth, data, sizeof(eth));
	eth.h_proto = inner;
	if (bpf_xdp_adjust_head(ctx, head))
		return XDP_DROP;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + sizeof(eth) > end)
		return XDP_DROP;
	__builtin_memcpy(data, &eth, sizeof(eth));
	return XDP_PASS;
}

/* Leaves everything to the stack: the other end of a veth pair needs a program of its own to be sent frames by XDP. */
SEC("xdp")
int ironweir_pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}
