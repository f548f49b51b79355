//go:build ignore

// SPDX-License-Identifier: Apache-2.0
//
// The kernel's part of a hit: a query that comes from a pod's veth is answered from a map, and the answer goes back into the pod. Any
// packet whose query has no answer in the map goes on unchanged. Package entries defines the terms; package bpf,
// in this folder, is the only writer of the maps of answers and addresses.

#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// Bounds. bpf2go generates the Go types from the types below (object_bpfel.go).
#define NAME_WORDS 16   // of a question's name in wire form, zeros behind it
#define TAIL_WORDS 152  // of an answer behind its question: with header and shortest question 1,232 bytes and less
#define TTLS_MOST 80    // records of an answer
#define SMALL_WORDS 24  // of a small slot: with its head four lines of the CPU's cache
#define LARGE_WORDS (NAME_WORDS + TAIL_WORDS + TTLS_MOST / 4)
#define WAYS 8          // places of a bucket: one line of the CPU's cache
#define SERIES_MOST 256 // see struct series
#define SERVED_MOST 256 // addresses with their ports, the self-test's two among them
#define COPIES_MOST 16  // questions of one link that are copied to the agent in COPIES_WINDOW
#define COPIES_WINDOW 26 // 2^26 ns, 67 ms
#define LOOPBACK 1      // the link of test runs (net/bpf/test_run.c); the program is attached to no such link

#define DNS_HEADER 12 // RFC 1035, section 4.1.1
#define TYPE_CLASS 4  // behind a question's name
#define OPT_SIZE 11   // RFC 6891, section 6.1.2, without options
#define UDP_SIZE 512  // RFC 1035, section 2.3.4
#define NANOSECONDS 1000000000ULL

// The times of struct link's samples, see judge. TestSamples has them, too.
#define SAMPLE_DUE (4 * NANOSECONDS)     // after the last answer to a sample
#define SAMPLE_GOOD (8 * NANOSECONDS)    // after it: without another answer, hits end
#define SAMPLE_STANDS (30 * NANOSECONDS) // the same while the agent does not run
#define SAMPLE_WAIT NANOSECONDS          // for an answer, before another query is the sample
#define AGENT_STALE (NANOSECONDS * 5 / 2) // after its last heartbeat, which comes each second

#define RAW_WORDS (NAME_WORDS + 4) // four bytes of zeros, header, name, type, class and OPT
#define RAW_NAME 2                 // the word that the name begins with
#define NAME_MOST (NAME_WORDS * 8)
#define TAIL_MOST (TAIL_WORDS * 8)

#define BIT_QR 0x80 // of the third byte
#define BIT_RD 0x01
#define BIT_AD 0x20 // of the fourth
#define BIT_DO 0x80 // of the first byte of an OPT's flags
#define RCODE 0x0f  // of the fourth
#define NOERROR 0
#define NXDOMAIN 3

// A slot has one answer. The lock keeps who reads it and who writes it apart (D-072): nobody ever sees half of an answer. The head is one line
// of the CPU's cache; behind it are, each from a word of its own on, the question's name in lower case, what comes behind the question, and
// where in that the TTLs stand but for the first, two bytes each. A short answer takes two lines (D-077).
#define HEAD                                                                                                                                  \
	struct bpf_spin_lock lock;                                                                                                            \
	__u32 generation; /* it is good while the control's is the same; 0: the slot is empty */                                              \
	__u32 group;      /* of addresses at which it is the answer */                                                                        \
	__u32 type_class; /* of its question, as they stand there */                                                                          \
	__u64 expires;    /* nanoseconds since boot, time in suspend included */                                                              \
	__u64 until;      /* from then on the question goes on: the agent wants to see it */                                                  \
	__u32 fixed_ttl;  /* seconds; 0: what is left */                                                                                      \
	__u32 turn;       /* answers that were rotated */                                                                                     \
	__u16 tail_size;                                                                                                                      \
	__u16 edns_most; /* largest size of an answer by UDP that the agent's configuration allows */                                         \
	__u16 series;                                                                                                                         \
	__u16 rotate_at;   /* where the first of several addresses stands in the tail */                                                      \
	__u16 rotate_step; /* from one address to the next */                                                                                 \
	__u16 first_ttl;   /* where the first TTL stands in the tail */                                                                       \
	__be16 an, ns, ar; /* numbers of records */                                                                                           \
	__u8 name_size;                                                                                                                       \
	__u8 ttls;                                                                                                                            \
	__u8 rotate_count; /* 0: nothing to rotate */                                                                                         \
	__u8 rotate_words; /* of an address, four bytes each */                                                                               \
	__u8 flags3, flags4 /* of the header, without RD */

struct head {
	HEAD;
};

struct small {
	HEAD;
	__u64 data[SMALL_WORDS];
};

struct slot {
	HEAD;
	__u64 data[LARGE_WORDS];
	__u64 pad[4]; // to whole lines
};

// control is what one write changes for all.
struct control {
	__u32 generation;
	__u32 small; // slots with numbers below are small ones
	__u64 seed, multiplier; // of hashes; a pod that knew them could make questions push out each other
	__u32 mask;   // of a bucket's number
	__u32 copies; // not 0: questions that there is no good answer to are copied to the agent
};

// bucket says where the answers are whose questions' hashes have the same low bits: in each place a hash's high 32 bits, and below them the
// number of a slot and 1; 0: none. It may be wrong at any time, since the question decides.
struct bucket {
	__u64 places[WAYS];
};

// served_address is an address in IPv6's form, ::ffff:0:0/96 for IPv4, and a port.
struct served_address {
	__u8 bytes[16];
	__be16 port;
};

// series counts hits of answers that belong together in the agent's metrics.
struct series {
	__u64 hits;
	__u64 question_bytes, answer_bytes; // sums
	__u64 questions_over_100;           // bytes
	__u64 answers[7];                   // up to 100, 200, 300, 400, 511, 1023 and 2047 bytes
};

// link is what is known of one pod's link. Each word is read and written by itself: where two CPUs meet, a sample or a copy is one too
// many. The copies are bounded so that one pod cannot keep others' queries from the agent.
struct link {
	__u64 hits;
	__u64 nxdomain; // of the hits
	__u64 answered; // when the last answer to a sample came to the pod; 0: none did
	__u64 sampled;  // when the last sample went out
	__u64 sample;   // the pod's port, from bit 16 on the ID, from bit 32 on enum sample; 0: it was answered
	__u64 window;   // the last one in which something was copied
	__u64 copies;   // in it
};

// What became of a query that is a sample.
enum sample {
	SAMPLE_PASSED = 1, // it went on, and the pod waits for the answer
	SAMPLE_CLONED,     // the kernel has answered it, and its clone went on
};

// copied is a question as the agent gets it: behind four zeros the message, and then anything.
struct copied {
	__u32 ifindex;
	__u32 size; // bytes of the message
	__u64 raw[RAW_WORDS];
};

// Why a question to a served address went on. Packets to other addresses are not counted.
enum passed {
	PASSED_PACKET = 1, // IP options, extension headers, fragments, padding, a checksum of no certain kind
	PASSED_QUESTION, // not in the form that is answered here
	PASSED_UNKNOWN,  // no such answer
	PASSED_OLD,      // no longer good, or wanted by the agent
	PASSED_SIZE,     // too large for the client
	PASSED_KERNEL,   // the kernel gave no room
	PASSED_UNANSWERED, // the pod's own queries were not seen to be answered lately, or it is a sample
	COPY_LIMITED,    // of those that went on: not copied, since its link had copies enough
	COPY_FULL,       // the same, since the agent did not read those before
	PASSED_REASONS,
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct control);
} controls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERVED_MOST);
	__type(key, struct served_address);
	__type(value, __u32);
} served SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); // the Go side says how many, a power of two
	__type(key, __u32);
	__type(value, struct bucket);
} places SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); // the Go side says how many
	__type(key, __u32);
	__type(value, struct small);
} smalls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); // the Go side says how many
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); // as many as slots of both kinds
	__type(key, __u32);
	__type(value, __u64);
} heat SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SERIES_MOST);
	__type(key, __u32);
	__type(value, struct series);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32); // a link's index
	__type(value, struct link);
} links SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64); // the agent's last one
} heartbeats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PASSED_REASONS);
	__type(key, __u32);
	__type(value, __u64);
} passes SEC(".maps");

// copies are for the agent to read, of struct copied. Where it is full, a question is not copied: nobody waits.
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096); // the Go side says how many bytes
} copies SEC(".maps");

// packet is a packet that holds a question to a served address.
struct packet {
	__u32 udp;    // where UDP's header begins
	__u32 ports;  // both
	__u32 group;  // of the address
	__u16 size;   // UDP's length
	__u16 check;  // UDP's
	__u64 pseudo; // the sum of UDP's pseudo-header without the length
};

// found is what is known of an answer.
struct found {
	__u32 tail_size, edns_most, series;
	__be32 ttl;
	__u8 flags3, flags4;
	__be16 an, ns, ar;
};

// scratch is a CPU's own. What is in it the verifier knows nothing of, and so it does not look at what follows once for each value.
struct scratch {
	__u64 busy; // a run of the program that interrupts another one's leaves its packet alone
	struct packet packet;
	struct found found;
	__u32 check; // enum check
	__u32 verdict; // enum verdict
	__u32 tail_sum;
	__u32 opt;   // bytes of the question's OPT
	struct copied copied;
	__u64 name[NAME_WORDS];
	__u64 tail[TAIL_WORDS + 2]; // two more for an OPT
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

// words is how many words have so many bytes. Loops count them, not the bytes: a bound that the verifier learns where a loop ends would
// stay with the size, and it would look at all that follows once for each such bound.
static __always_inline __u32 words(__u32 size)
{
	asm volatile("" : "+r"(size)); // a result of its own for each loop
	size = (size + 7) / 8;
	asm volatile("" : "+r"(size));
	return size;
}

// mask has the bytes of the last of so many bytes' words.
static __always_inline __u64 mask(__u32 size)
{
	return ~0ULL >> (-size & 7) * 8;
}

#define barrier() asm volatile("" ::: "memory")

// opaque hides from the compiler what it knows of a value.
#define opaque(x) asm volatile("" : "+r"(x))

// bound returns where a value is outside of its bounds. It compares in the way of which all verifiers learn both bounds.
#define bound(x, least, most, result)    \
	(x) -= (least);                  \
	opaque(x);                       \
	if ((x) > (__u64)(most) - (least)) \
		return result;           \
	opaque(x);                       \
	(x) += (least);                  \
	opaque(x)

// touch reads a word that is wanted later. What memory takes for several of them it takes at one time; behind the lock of a slot it would not.
#define touch(x)                                     \
	do {                                         \
		__u64 v = *(volatile __u64 *)(x);    \
		asm volatile("" : : "r"(v));         \
	} while (0)

static __always_inline void note(__u32 reason)
{
	__u64 *n = bpf_map_lookup_elem(&passes, &reason);
	if (n)
		(*n)++;
}

static __always_inline int pass(__u32 reason)
{
	note(reason);
	return TC_ACT_UNSPEC; // TCX_NEXT: whoever comes next sees the packet as if we were not here
}

// lower changes ASCII letters of eight bytes at once.
static __always_inline __u64 lower(__u64 w)
{
	const __u64 ones = 0x0101010101010101ULL;
	__u64 low = w & (0x7f * ones);
	__u64 from_a = low + (0x80 - 'A') * ones, past_z = low + (0x7f - 'Z') * ones;
	return w | ((from_a ^ past_z) & ~w & (0x80 * ones)) >> 2;
}

// plus is the sum of RFC 1071, of which any multiple of 16 bits may be added.
static __always_inline __u64 plus(__u64 sum, __u64 w)
{
	sum += w;
	return sum + (sum < w);
}

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

// Kinds of checksum. An skb does not tell the program.
enum check { CHECK_NONE, CHECK_PARTIAL, CHECK_FULL };

// read tells whether a packet is UDP to a served address: 1 if it is, 0 if it is not, and -1 for one that is, and has
// something about it that goes on.
static __always_inline int read(struct __sk_buff *skb, struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct served_address to = {.port = bpf_htons(53)};
	struct udphdr *udp;
	__u32 *group;
	int odd;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + ETH_HLEN;
		if ((void *)(ip + 1) + sizeof(*udp) > end || eth->h_proto != bpf_htons(ETH_P_IP) || ip->protocol != IPPROTO_UDP)
			return 0;
		udp = (void *)(ip + 1);
		odd = ip->version != 4 || ip->ihl != 5 || (ip->frag_off & bpf_htons(0x3fff)) || bpf_ntohs(ip->tot_len) + ETH_HLEN != skb->len ||
		      bpf_ntohs(udp->len) + sizeof(*ip) != bpf_ntohs(ip->tot_len);
		*(__u16 *)&to.bytes[10] = 0xffff;
		*(__u32 *)&to.bytes[12] = ip->daddr;
		p->pseudo = (__u64)ip->saddr + ip->daddr;
		p->udp = ETH_HLEN + sizeof(*ip);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = data + ETH_HLEN;
		if ((void *)(ip + 1) + sizeof(*udp) > end || eth->h_proto != bpf_htons(ETH_P_IPV6) || ip->nexthdr != IPPROTO_UDP)
			return 0;
		udp = (void *)(ip + 1);
		// Over IPv6, UDP has a checksum (RFC 8200, section 8.1).
		if (!ip->daddr.in6_u.u6_addr32[0] && !ip->daddr.in6_u.u6_addr32[1] && ip->daddr.in6_u.u6_addr32[2] == bpf_htonl(0xffff))
			return 0; // an IPv4 address's place in the map, and nobody's on a wire
		odd = ip->version != 6 || bpf_ntohs(ip->payload_len) + ETH_HLEN + sizeof(*ip) != skb->len || udp->len != ip->payload_len || !udp->check;
		*(struct in6_addr *)&to = ip->daddr;
		p->pseudo = 0;
		for (__u32 i = 0; i < 4; i++)
			p->pseudo += (__u64)ip->saddr.in6_u.u6_addr32[i] + ip->daddr.in6_u.u6_addr32[i];
		p->udp = ETH_HLEN + sizeof(*ip);
	} else {
		return 0;
	}
	if (!odd) // else it may be no port
		to.port = udp->dest;
	group = bpf_map_lookup_elem(&served, &to);
	if (!group)
		return 0;
	p->group = *group;
	p->pseudo += bpf_htons(IPPROTO_UDP);
	p->ports = *(__u32 *)udp;
	p->size = bpf_ntohs(udp->len);
	p->check = udp->check;
	return odd || skb->gso_size || skb->vlan_present || (skb->pkt_type != PACKET_HOST && skb->pkt_type != PACKET_OTHERHOST) ? -1 : 1;
}

// take copies an answer out of a slot, whose words stand at data, into the scratch, as this client gets it. It returns 0, or why the question
// goes on. Whoever writes the slot waits meanwhile, and the other way round.
static __always_inline int take(struct head *slot, __u64 *data, const __u32 most, struct scratch *s, struct found *f, __u32 generation, __u32 group,
				__u32 type_class, __u32 name_size, __u64 now)
{
	int why = PASSED_UNKNOWN;
	__u32 size, count, step, n;
	__u64 left, to, from, start;

	bpf_spin_lock(&slot->lock);
	if (slot->generation != generation || slot->group != group || slot->type_class != type_class || slot->name_size != name_size)
		goto out;
	for (__u32 i = 0, n = words(name_size); i < NAME_WORDS; i++) {
		if (i >= n)
			break;
		if (data[i] != s->name[i])
			goto out;
	}
	why = PASSED_OLD;
	if (now >= slot->until || now >= slot->expires)
		goto out;
	left = (slot->expires - now + NANOSECONDS - 1) / NANOSECONDS; // the last begun second counts whole, as in wire.Entry.Left
	f->ttl = bpf_htonl(slot->fixed_ttl ? slot->fixed_ttl : (__u32)left);
	f->tail_size = size = slot->tail_size;
	f->edns_most = slot->edns_most;
	f->series = slot->series;
	f->flags3 = slot->flags3;
	f->flags4 = slot->flags4;
	f->an = slot->an;
	f->ns = slot->ns;
	f->ar = slot->ar;
	for (__u32 i = 0, n = words(size), start = words(name_size); i < (most < TAIL_WORDS ? most : TAIL_WORDS); i++) {
		if (i >= n)
			break;
		from = start + i;
		opaque(from);
		if (from >= most)
			break;
		opaque(from);
		s->tail[i] = data[from];
	}
	count = slot->ttls;
	to = slot->first_ttl;
	n = (words(name_size) + words(size)) * 8;
	for (__u32 i = 0; i < (most < TTLS_MOST / 4 ? most * 4 : TTLS_MOST); i++) {
		if (i >= count)
			break;
		opaque(to);
		if (to > TAIL_MOST - 4)
			break;
		opaque(to);
		*(__be32 *)((void *)s->tail + to) = f->ttl;
		from = n + i * 2;
		opaque(from);
		if (from > most * 8 - 2)
			break;
		opaque(from);
		to = *(__u16 *)((void *)data + from);
	}
	count = slot->rotate_count;
	why = 0;
	if (count < 2)
		goto out;
	step = slot->rotate_step;
	size = slot->rotate_at;
	start = words(name_size) * 8 + size;
	n = slot->turn++ % count;
	for (__u32 i = 0; i < TTLS_MOST; i++) {
		if (i >= count)
			break;
		from = start + n * step;
		to = size + i * step;
		opaque(to);
		if (to > TAIL_MOST - 16)
			break;
		opaque(from);
		if (from > most * 8 - 16)
			break;
		opaque(to);
		*(__u32 *)((void *)s->tail + to) = *(__u32 *)((void *)data + from);
		if (slot->rotate_words == 4)
			for (int w = 4; w < 16; w += 4)
				*(__u32 *)((void *)s->tail + to + w) = *(__u32 *)((void *)data + from + w);
		if (++n == count)
			n = 0;
	}
out:
	bpf_spin_unlock(&slot->lock);
	return why;
}

// find returns the number of the slot that may have the answer to a question with such a hash, or -1.
static __always_inline __s64 find(struct control *c, __u64 hash)
{
	__u32 at = hash & c->mask;
	__u64 tag = hash >> 32, slot = 0;
	struct bucket *b = bpf_map_lookup_elem(&places, &at);

	if (!b)
		return -1;
#pragma unroll
	for (int i = 0; i < WAYS; i++)
		if (b->places[i] >> 32 == tag)
			slot = b->places[i];
	return (__s64)(__u32)slot - 1;
}

// agent_runs is whether the agent's last heartbeat is fresh.
static __always_inline int agent_runs(__u64 now)
{
	__u32 zero = 0;
	__u64 *beat = bpf_map_lookup_elem(&heartbeats, &zero);
	return beat && now < *beat + AGENT_STALE;
}

enum verdict { HIT, HIT_AND_SAMPLE, GOES_ON };

// judge decides whether a query that the map answers is a hit. A pod's network policies see none of its hits, so a hit is
// answered only while the pod's own queries are answered on the path that a miss takes: of those that the map answers, a sample goes on
// in time, and its answer is awaited at the pod's link (neardns_answers). A sample of a pod that is answered is a clone, so a dead agent
// loses none. If the agent does not run, a sample without an answer shows nothing of policies, so the last answer counts for longer.
static __always_inline enum verdict judge(struct link *l, __u32 query, __u64 now)
{
	__u64 answered = l->answered, sample = l->sample;
	int good;

	if (sample && (__u32)sample == query)
		return GOES_ON; // the clone
	if (answered && now < answered + SAMPLE_DUE)
		return HIT;
	good = answered && (now < answered + SAMPLE_GOOD || (now < answered + SAMPLE_STANDS && !agent_runs(now)));
	if (l->sampled && now < l->sampled + SAMPLE_WAIT)
		return good ? HIT : GOES_ON;
	l->sample = query | (__u64)(good ? SAMPLE_CLONED : SAMPLE_PASSED) << 32;
	l->sampled = now;
	return good ? HIT_AND_SAMPLE : GOES_ON;
}

// count notes a hit, for its link and its series.
static __always_inline void count(struct link *l, struct found *f, __u32 question, __u32 answer)
{
	struct series *n = bpf_map_lookup_elem(&counts, &f->series);

	if (l)
		__sync_fetch_and_add(&l->hits, 1);
	if (l && (f->flags4 & RCODE) == NXDOMAIN)
		__sync_fetch_and_add(&l->nxdomain, 1);
	if (n) {
		n->hits++;
		n->question_bytes += question;
		n->answer_bytes += answer;
		n->questions_over_100 += question > 100;
		n->answers[answer <= 100 ? 0 : answer <= 200 ? 1 : answer <= 300 ? 2 : answer <= 400 ? 3 : answer <= 511 ? 4 : answer <= 1023 ? 5 : 6]++;
	}
}

// sum_tail is the sum of what comes behind the question, without the question's OPT, as it stands in the packet.
static __always_inline __u16 sum_tail(struct scratch *s, __u64 tail_size, __u64 name_size)
{
	__u8 *o = (__u8 *)s->copied.raw + RAW_NAME * 8 + name_size + TYPE_CLASS;
	__u64 sum = 0, last = mask(tail_size);

	for (__u32 i = 0, n = words(tail_size); i < TAIL_WORDS + 2; i++) {
		__u64 w;
		if (i >= n)
			break;
		w = s->tail[i];
		if (i + 1 == n)
			w &= last;
		sum = plus(sum, w);
	}
	if (s->opt) // its last byte is zero
		sum = plus(plus(sum, ~*(__u64 *)o), ~(__u64)(*(__u16 *)(o + 8)));
	sum = fold(sum);
	return name_size & 1 ? __builtin_bswap16(sum) : sum;
}

// sum_full is the checksum of an answer whose question had a whole one (RFC 1624): what is new is added, what is gone is taken away.
static __always_inline __u16 sum_full(struct packet *p, struct scratch *s, __u64 *header, __u32 size)
{
	__u64 sum = plus(plus(s->tail_sum, (__u16)~p->check), bpf_htons(size) * 2);

	sum = plus(sum, ~(__u64)(bpf_htons(p->size) * 2));
	sum = plus(plus(sum, header[0]), header[1]);
	sum = plus(plus(sum, ~s->copied.raw[0]), ~s->copied.raw[1]);
	return ~fold(sum);
}

// patch makes an answer of the packet, which has its new size already.
static __always_inline int patch(struct __sk_buff *skb, struct packet *p, struct scratch *s, struct found *f, enum check check, __u32 total,
				 __u64 tail_size, __u64 name_size, __u32 opt)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 size = total + sizeof(struct udphdr);
	__u64 header[2] = {s->copied.raw[0], 0};
	struct ethhdr *eth = data;
	struct udphdr *udp;
	__u8 mac[ETH_ALEN];
	__u16 *h = (__u16 *)header, port;

	if (data + ETH_HLEN + sizeof(struct iphdr) + sizeof(*udp) + DNS_HEADER > end)
		return -1;

	((__u8 *)header)[6] = f->flags3 | BIT_RD;
	((__u8 *)header)[7] = f->flags4 & (((__u8 *)s->copied.raw)[7] | (__u8)~BIT_AD); // AD for who asks for it (RFC 6840, section 5.8)
	h[4] = bpf_htons(1);
	h[5] = f->an;
	h[6] = f->ns;
	h[7] = opt ? bpf_htons(bpf_ntohs(f->ar) + 1) : f->ar;

	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + ETH_HLEN;
		__be32 from = ip->saddr;
		__be16 length = bpf_htons(size + sizeof(*ip));
		__u64 sum = (__u64)(__u16)~ip->check + (__u16)~ip->tot_len + length;
		ip->saddr = ip->daddr;
		ip->daddr = from;
		ip->tot_len = length;
		ip->check = ~fold(sum);
		udp = (void *)(ip + 1);
	} else {
		struct ipv6hdr *ip = data + ETH_HLEN;
		struct in6_addr from = ip->saddr;
		if ((void *)(ip + 1) + sizeof(*udp) + DNS_HEADER > end)
			return -1;
		ip->saddr = ip->daddr;
		ip->daddr = from;
		ip->payload_len = bpf_htons(size);
		udp = (void *)(ip + 1);
	}
	port = udp->source;
	udp->source = udp->dest;
	udp->dest = port;
	udp->len = bpf_htons(size);
	if (check == CHECK_PARTIAL) {
		udp->check = fold(plus(p->pseudo, bpf_htons(size)));
	} else if (check == CHECK_FULL) {
		__u16 sum = sum_full(p, s, header, size);
		udp->check = sum ? sum : 0xffff;
	}
	__builtin_memcpy(udp + 1, (__u8 *)header + 4, DNS_HEADER);

	bound(tail_size, 1, TAIL_MOST + OPT_SIZE, -1);
	return bpf_skb_store_bytes(skb, p->udp + sizeof(*udp) + DNS_HEADER + name_size + TYPE_CLASS, s->tail, tail_size, 0);
}

// answer answers the question of a packet, or returns why it goes on as a negative number.
static __always_inline int answer(struct __sk_buff *skb, struct packet *p, struct scratch *s)
{
	__u32 zero = 0, type_class, opt, edns = 0, slot_at, at, total, most, ifindex = skb->ifindex;
	__u64 size = p->size, sum, hash, last, now, name_size, tail_size;
	__s64 place;
	__u64 *hits;
	struct small *small = NULL;
	struct slot *slot = NULL;
	struct control *c = bpf_map_lookup_elem(&controls, &zero);
	struct found *f = &s->found;
	struct link *l;
	enum check check;
	__u8 *raw = (__u8 *)s->copied.raw, *o, opt_flags = 0;
	int why;

	if (!c)
		return -PASSED_KERNEL;

	// The message behind four zeros: its numbers of records are one word, and its name begins with one.
	size -= sizeof(struct udphdr);
	bound(size, DNS_HEADER + 1 + TYPE_CLASS, DNS_HEADER + NAME_MOST + TYPE_CLASS + OPT_SIZE, -PASSED_QUESTION);
	s->copied.raw[(4 + size) / 8] = 0; // what is behind it in its last word
	if (bpf_skb_load_bytes(skb, p->udp + sizeof(struct udphdr), raw + 4, size))
		return -PASSED_KERNEL;

	// One question and no record but an OPT; the bits RD, which must be there, and AD.
	if (raw[6] != BIT_RD || (raw[7] & ~BIT_AD))
		return -PASSED_QUESTION;
	if (s->copied.raw[1] == bpf_cpu_to_be64(1ULL << 48))
		opt = 0;
	else if (s->copied.raw[1] == bpf_cpu_to_be64(1ULL << 48 | 1))
		opt = OPT_SIZE;
	else
		return -PASSED_QUESTION;
	s->opt = opt;
	barrier();
	opt = s->opt;
	name_size = size - DNS_HEADER - TYPE_CLASS - opt;
	bound(name_size, 1, NAME_MOST, -PASSED_QUESTION);
	o = raw + RAW_NAME * 8 + name_size;
	type_class = *(__u32 *)o;
	if (opt) {
		o += TYPE_CLASS;
		// Root, type 41, version 0, DO clear, without options (RFC 6891, section 6.1).
		if (o[0] || *(__u16 *)(o + 1) != bpf_htons(41) || *(__u16 *)(o + 5) || (o[7] & BIT_DO) || *(__u16 *)(o + 9))
			return -PASSED_QUESTION;
		edns = bpf_ntohs(*(__u16 *)(o + 3));
		opt_flags = o[7];
	}

	hash = c->seed ^ type_class ^ (__u64)p->group << 32;
	last = mask(name_size);
	for (__u32 i = 0, n = words(name_size); i < NAME_WORDS; i++) {
		__u64 w;
		if (i >= n)
			break;
		w = s->copied.raw[RAW_NAME + i];
		if (i + 1 == n)
			w &= last;
		s->name[i] = w = lower(w);
		hash = (hash ^ w) * c->multiplier;
		hash ^= hash >> 32;
	}
	place = find(c, hash);
	if (place < 0)
		return -PASSED_UNKNOWN;
	slot_at = place;
	at = slot_at - c->small;
	hits = bpf_map_lookup_elem(&heat, &slot_at);
	if (slot_at < c->small)
		small = bpf_map_lookup_elem(&smalls, &slot_at);
	else
		slot = bpf_map_lookup_elem(&slots, &at);
	if (!hits)
		return -PASSED_UNKNOWN;
	touch(hits);
	if (small) {
		touch(&small->expires);
		touch(small->data);
	} else if (slot) {
		touch(&slot->expires);
		touch(slot->data);
	}

	// A checksum that is yet to be made is the pseudo-header's sum. One that is that sum and right is of no certain kind.
	sum = plus(plus(p->pseudo, bpf_htons(p->size) * 2), p->ports);
	sum = plus(plus(plus(sum, p->check), s->copied.raw[0]), s->copied.raw[1]);
	for (__u32 i = 0, n = words(size - DNS_HEADER); i < RAW_WORDS - RAW_NAME; i++) {
		if (i >= n)
			break;
		sum = plus(sum, s->copied.raw[RAW_NAME + i]);
	}
	why = fold(sum) == 0xffff;
	if (!p->check)
		check = CHECK_NONE;
	else if (p->check == fold(plus(p->pseudo, bpf_htons(p->size))))
		check = CHECK_PARTIAL;
	else
		check = CHECK_FULL;
	s->check = check;
	if ((check == CHECK_PARTIAL && why) || (check == CHECK_FULL && !why))
		return -PASSED_PACKET;

	now = bpf_ktime_get_boot_ns();
	if (small)
		why = take((struct head *)small, small->data, SMALL_WORDS, s, f, c->generation, p->group, type_class, name_size, now);
	else if (slot)
		why = take((struct head *)slot, slot->data, LARGE_WORDS, s, f, c->generation, p->group, type_class, name_size, now);
	else
		why = PASSED_UNKNOWN;
	if (why)
		return -why;

	tail_size = f->tail_size;
	bound(tail_size, 1, TAIL_MOST, -PASSED_UNKNOWN);
	if (edns > f->edns_most)
		edns = f->edns_most;
	most = opt && edns > UDP_SIZE ? edns : UDP_SIZE;
	total = DNS_HEADER + name_size + TYPE_CLASS + tail_size + opt;
	if (total > most)
		return -PASSED_SIZE;
	l = bpf_map_lookup_elem(&links, &ifindex);
	s->verdict = ifindex == LOOPBACK ? HIT : !l ? GOES_ON : judge(l, (__u16)p->ports | (__u32)((__u16 *)raw)[2] << 16, now);
	barrier();
	if (s->verdict == GOES_ON)
		return -PASSED_UNANSWERED;
	__sync_fetch_and_add(hits, 1);
	if (opt) { // the client's own, without its options, as the chain has it
		o = (__u8 *)s->tail + tail_size;
		o[0] = 0;
		*(__u16 *)(o + 1) = bpf_htons(41);
		*(__u16 *)(o + 3) = bpf_htons(edns);
		*(__u16 *)(o + 5) = 0;
		o[7] = opt_flags;
		o[8] = 0;
		*(__u16 *)(o + 9) = 0;
		tail_size += OPT_SIZE;
	}

	if (s->check == CHECK_FULL)
		s->tail_sum = sum_tail(s, tail_size, name_size);

	// Up to here the packet is as it came. Its clone comes back to this program, which lets it go on.
	if (s->verdict == HIT_AND_SAMPLE && bpf_clone_redirect(skb, ifindex, BPF_F_INGRESS))
		s->verdict = HIT; // the kernel gave no room: the next sample comes in SAMPLE_WAIT
	if (bpf_skb_change_tail(skb, p->udp + sizeof(struct udphdr) + total, 0))
		return -PASSED_KERNEL;
	if (patch(skb, p, s, f, s->check, total, tail_size, name_size, opt))
		return TC_ACT_SHOT; // nobody may see half of an answer
	if (skb->pkt_type != PACKET_HOST) // a bridge's port: the frame was for the bridge
		bpf_skb_change_type(skb, PACKET_HOST);
	if (s->verdict == HIT) // else the agent or kube-dns counts the clone
		count(l, f, size, total);
	return bpf_redirect_peer(skb->ifindex, 0);
}

// copy gives the agent a question that there is no good answer to, where it wants that.
static __always_inline void copy(__u32 ifindex, struct scratch *s)
{
	__u32 zero = 0;
	struct control *c = bpf_map_lookup_elem(&controls, &zero);
	struct link *l;
	__u64 window;

	if (!c || !c->copies)
		return;
	l = bpf_map_lookup_elem(&links, &ifindex);
	if (!l)
		return;
	window = bpf_ktime_get_boot_ns() >> COPIES_WINDOW;
	if (l->window != window) {
		l->window = window;
		l->copies = 0;
	}
	if (l->copies >= COPIES_MOST) {
		note(COPY_LIMITED);
		return;
	}
	__sync_fetch_and_add(&l->copies, 1);
	s->copied.ifindex = ifindex;
	s->copied.size = s->packet.size - sizeof(struct udphdr);
	if (bpf_ringbuf_output(&copies, &s->copied, sizeof(s->copied), 0))
		note(COPY_FULL);
}

SEC("tc")
int neardns_hits(struct __sk_buff *skb)
{
	struct packet p = {};
	struct scratch *s;
	__u32 zero = 0;
	int done = read(skb, &p);

	if (!done)
		return TC_ACT_UNSPEC;
	if (done < 0)
		return pass(PASSED_PACKET);
	s = bpf_map_lookup_elem(&scratches, &zero);
	if (!s || s->busy)
		return pass(PASSED_KERNEL);
	s->busy = 1;
	s->packet = p;
	done = answer(skb, &s->packet, s);
	if (done == -PASSED_UNKNOWN || done == -PASSED_OLD)
		copy(skb->ifindex, s);
	s->busy = 0;
	return done < 0 ? pass(-done) : done;
}

// neardns_answers sees what goes to a pod, and notes in its link when a sample is answered. The answer of a clone is one that the pod has
// already: it goes to no MAC address of the pod's, and so the pod's kernel drops it. Dropped here, it would count as an error of the
// sender's.
SEC("tc")
int neardns_answers(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex, at = ETH_HLEN;
	struct {
		__u16 from, to, size, check, id;
		__u8 flags3, flags4;
	} answer;
	__u8 none[ETH_ALEN] = {};
	struct iphdr ip;
	struct link *l;
	__u64 sample;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.protocol != IPPROTO_UDP || (ip.frag_off & bpf_htons(0x1fff)))
			return TC_ACT_UNSPEC;
		at += ip.ihl * 4;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		__u8 next;
		if (bpf_skb_load_bytes(skb, at + offsetof(struct ipv6hdr, nexthdr), &next, 1) || next != IPPROTO_UDP)
			return TC_ACT_UNSPEC;
		at += sizeof(struct ipv6hdr);
	} else {
		return TC_ACT_UNSPEC;
	}
	l = bpf_map_lookup_elem(&links, &ifindex);
	if (!l)
		return TC_ACT_UNSPEC;
	sample = l->sample;
	if (!sample || bpf_skb_load_bytes(skb, at, &answer, sizeof(answer)) || (__u32)sample != (answer.to | (__u32)answer.id << 16) ||
	    !(answer.flags3 & BIT_QR))
		return TC_ACT_UNSPEC;
	// What the map answers has one of these codes. A proxy that denies a name answers with another one (REFUSED).
	if ((answer.flags4 & RCODE) == NOERROR || (answer.flags4 & RCODE) == NXDOMAIN) {
		l->answered = bpf_ktime_get_boot_ns();
		l->sample = 0;
	}
	if (sample >> 32 == SAMPLE_CLONED)
		bpf_skb_store_bytes(skb, 0, none, ETH_ALEN, 0);
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Apache-2.0";
