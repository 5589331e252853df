/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What the program and user space share: keys and values of maps. `src/layout.rs` writes the same bytes in Rust; the test
 * that holds the program against the model finds any difference. Addresses and ports are in network order, IPv4 addresses
 * are mapped into IPv6 (RFC 4291 section 2.5.5.2), all else is in host order. No structure has a hole.
 */
#pragma once

#include <linux/types.h>

/* Slots of a Maglev table: a prime, as in the paper's section 5.3 for up to some hundred real servers. */
#define RING_SLOTS 65537
/* Real servers that "least connections" looks at for a new flow. */
#define LEAST_MAX 128
/* Looks at the ring before a real server that is full gets the flow all the same. */
#define FULL_LOOKS 4
/* Source ports that full NAT tries for a new flow. */
#define PORT_LOOKS 16
/* The first source port of full NAT, and how many there are from there. */
#define PORT_FIRST 1024
#define PORT_COUNT 64512
/* Fragments of a datagram come within this time (RFC 791: reassembly). */
#define FRAGMENT_NS 30000000000ULL
/* A cookie is good in its own minute and in the next: 2^36 ns are 69 s. */
#define COOKIE_SHIFT 36
/* SYNs are counted in steps of 2^27 ns, 134 ms; after a step with too many, cookies are sent for so many more: 10 s. */
#define RATE_SHIFT 27
#define RATE_STEP_MS 134
#define RATE_STEPS 75
/* What is offered to clients that are answered with a cookie. */
#define COOKIE_MSS4 1460
#define COOKIE_MSS6 1440
/* The hop limit of packets that are made here. */
#define OWN_TTL 64
/* Interfaces whose link addresses are known: a power of two; and addresses of one of them, so that it is a line of the cache. */
#define LINKS 256
#define LINK_ADDRESSES 7
/* A CPU tells senders of used up hop limits so often at most in 2^30 ns (RFC 4443 section 2.4 f). */
#define TOLD_SHIFT 30
#define TOLD_MAX 1000

enum mode { MODE_NAT = 0, MODE_FULL_NAT = 1, MODE_DIRECT = 2, MODE_IPIP = 3, MODE_GUE = 4 };

/* How a slot of the service's part of `rings` is chosen. */
enum choice { CHOICE_HASH = 0, CHOICE_TURN = 1, CHOICE_LEAST = 2 };

enum service_flag {
	SERVICE_RESET = 1,      /* a flow that was idle for too long is reset, not dropped */
	SERVICE_ADOPT_RETURN = 2, /* what real servers send without a flow gets the service's address */
	SERVICE_AFFINITY = 4,   /* a client's next flows go where its first went */
	SERVICE_HASH_PORT = 8,  /* the source port counts in the hash */
	SERVICE_QUIC = 16,      /* connection ids name the real server */
	SERVICE_DROP_REMOVED = 32, /* for user space: flows of real servers that leave are reset */
};

enum real_flag {
	REAL_USABLE = 1, /* gets new flows */
	REAL_FULL = 2,   /* avoided while there are others */
	REAL_RESET = 4,  /* its flows are reset */
	REAL_GONE = 8,   /* for user space: no longer in the plan */
};

struct addr {
	__u32 w[4];
};

struct service_key {
	struct addr addr;
	__u16 port;
	__u8 proto;
	__u8 zero;
};

struct service {
	__u64 idle_ns;
	__u64 affinity_ns;
	__u32 ring;    /* first slot in `rings` */
	__u32 slots;   /* how many slots are in use: 0 if no real server gets new flows */
	__u32 seed;
	__u32 sources; /* first of full NAT's source addresses in `sources` */
	__u32 source_count;
	__u16 port;
	__u16 gue_port;
	struct addr addr;
	struct addr tunnel4; /* outer source of tunnels */
	struct addr tunnel6;
	__u8 mode;
	__u8 choice;
	__u8 flags;
	__u8 proto;
	__u32 used; /* 0: the slot is free */
	__u32 cookies; /* 0: no cookies; 1: each SYN is answered with one; else SYNs a second above which each is */
	__u32 retired; /* for user space: no longer in the plan, but some of its flows go on */
};

struct real {
	struct addr addr;
	__u16 port;
	__u16 flags;
	__u32 service;
	__u32 weight;
	__u32 mtu; /* learned from an ICMP error about a tunnel's packet; 0 if none came */
};

struct flow_key {
	struct addr src, dst;
	__u16 sport, dport;
	__u8 proto;
	__u8 zero[3];
};

enum flow_state {
	FLOW_FIN = 1,      /* the side that sends in this direction has sent FIN */
	FLOW_CLOSED = 2,   /* no longer counted among the real server's */
	FLOW_DEAD = 4,     /* reset for its idleness */
	FLOW_OPENING = 8,  /* the client has proved itself with a cookie, the real server has not answered yet */
	FLOW_SHIFTED = 16, /* what the real server numbers differs from what the client knows by `seq` */
	FLOW_ANSWERED = 32, /* on the way back: the real server has sent something */
};

/* A stranger's packets are not ours although a real server's port sends them. */
enum flow_kind { FLOW_FORWARD = 0, FLOW_RETURN = 1, FLOW_STRANGER = 2 };

/* The way a packet leaves. */
struct hop {
	__u32 ifindex;
	__u16 mtu;
	__u8 to[6], from[6];
	__u16 zero;
};

/* The kernel's routes are asked again after this many ticks of 2^20 ns. */
#define HOP_TICKS 100
/* Destinations whose hop each CPU remembers: a power of two. */
#define HOPS 1024

struct known_hop {
	struct addr dst;
	__u32 tick; /* when it was asked for; 0: never */
	struct hop hop;
};

/* What a packet with the key becomes. */
struct flow {
	struct addr src, dst;
	__u16 sport, dport;
	__u32 real;
	__u64 last; /* CLOCK_MONOTONIC_COARSE, ns */
	__u16 service;
	__u8 mode;
	__u8 kind;
	__u8 state;
	__u8 zero[3];
	/*
	 * FLOW_OPENING: the number that this entry's client (forward) or cookie (return) began with. FLOW_SHIFTED: what is added to
	 * numbers of the cookie to make the real server's. Host order.
	 */
	__u32 seq;
	__u32 mss; /* FLOW_OPENING: the largest segment that the client takes */
};

struct fragment_key {
	struct addr src, dst;
	__u32 id;
	__u8 proto;
	__u8 zero[3];
};

struct affinity_key {
	struct addr client;
	__u32 service;
};

struct affinity {
	__u64 last;
	__u32 real;
	__u32 zero;
};

/* A real server's port in a NAT service: what it sends without a flow belongs to that service. */
struct back_key {
	struct addr addr;
	__u16 port;
	__u8 proto;
	__u8 zero;
};

struct back {
	__u32 service;
	__u32 real;
	__u32 many; /* more than one service: a packet without a flow cannot be told */
};

struct quic_key {
	__u32 service;
	__u16 server_id;
	__u16 zero;
};

/* SYNs to a service lately. */
struct syn_rate {
	__u32 step;  /* the step that is counted */
	__u32 count;
	__u32 until; /* cookies are sent until this step */
	__u32 zero;
};

/* What cookies are made with: nobody else may know it. */
struct secret {
	__u64 k0, k1;
};

/*
 * Whose frames an interface takes: its own link address, those of MACVLAN devices above it, that of the bridge or bond that it belongs to. As
 * numbers, the first octet in the lowest bits.
 */
struct link {
	__u32 ifindex; /* 0: the place is free */
	__u32 count;
	__u64 addresses[LINK_ADDRESSES];
};

/* A line of the processor's cache in the index of recent flows: four entries of two words each. */
struct recent_line {
	__u64 w[8];
};

/* What the index of recent flows is hashed with: nobody else may know it. New keys are an empty index. */
struct recent_keys {
	__u64 keys[22];
	__u32 lines; /* of `recent`; 0: there is no index yet */
	__u32 zero;
};

#define SIZE_BUCKETS 8
/* Upper bounds, exclusive, of the first seven buckets: bytes of a frame. */
#define SIZE_BOUNDS { 75, 128, 256, 512, 1024, 1280, 1515 }

struct counters {
	__u64 flows;
	__u64 in_packets, in_bytes;
	__u64 out_packets, out_bytes;
	__u64 sizes[SIZE_BUCKETS];
};

enum event {
	EVENT_PASSED,       /* not ours */
	EVENT_FORWARDED,
	EVENT_RETURNED,
	EVENT_NO_REAL,      /* nobody gets new flows: left to the stack */
	EVENT_NO_FLOW,      /* no flow, and the choice does not follow from the packet: left to the stack */
	EVENT_ADOPTED,      /* another balancer's flow */
	EVENT_EXPIRED,      /* idle for too long: dropped */
	EVENT_RESET,        /* answered with RST */
	EVENT_TTL,          /* hop limit: the sender is told, or it is dropped */
	EVENT_NO_NEIGHBOUR, /* dropped, or left to the stack, which asks for the neighbour */
	EVENT_NO_ROUTE,     /* dropped */
	EVENT_TOO_BIG,      /* answered with ICMP */
	EVENT_NO_PORT,      /* dropped: full NAT had no source port */
	EVENT_ICMP,         /* an ICMP error passed on */
	EVENT_FRAGMENT,     /* a fragment whose first part was not seen: left to the stack */
	EVENT_PATH_MTU,     /* a tunnel's path MTU learned */
	EVENT_COOKIE,       /* a SYN answered with a cookie */
	EVENT_PROVED,       /* a cookie came back: the flow begins */
	EVENT_FOREIGN,      /* a frame for another machine's link address: left to the stack */
	EVENTS,
};

/*
 * For user space: one packet in is one packet out here, so what is to be sent beside it is sent from there: the RST to the other
 * end of a flow that was reset, the ACK that ends a handshake. Without ports it is about no flow: the link address of the
 * next hop to `dst` is wanted.
 */
struct reset_event {
	struct addr src, dst;
	__u16 sport, dport;
	__u32 seq, ack; /* network order */
	__u8 flags;     /* TCP's */
	__u8 zero[3];
};
