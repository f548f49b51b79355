package hostsfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

const (
	queryTimeout = time.Second      // for one try, over UDP or TCP
	roundTimeout = 20 * time.Second // for all queries of a round
)

// reply is the outcome of one query: addresses; a denial, without addresses and without an error; or an error.
type reply struct {
	addrs  []netip.Addr
	ttl    time.Duration // the server may answer the same from its cache for this long; 0: unknown
	server int           // index of the server that answered
	err    error
}

func (r reply) denied() bool { return r.err == nil && len(r.addrs) == 0 }

// result returns the reply's label in the metrics.
func (r reply) result() string {
	switch {
	case r.err != nil:
		return "failed"
	case r.denied():
		return "denied"
	}
	return "answered"
}

// resolver queries the servers of the cluster DNS. Several goroutines may use it at once.
type resolver struct {
	domain  string
	servers []netip.AddrPort
	best    atomic.Int64 // index of the server that answered last; it is queried first
}

// round queries all keys concurrently. If a server denies a key that has addresses, round also queries that server for the sentinel;
// trusted reports whether the server knows it.
func (r *resolver) round(ctx context.Context, keys []key, hasAddrs map[key]bool) (replies map[key]reply, trusted map[key]bool) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	replies, trusted = map[key]reply{}, map[key]bool{}
	var mu sync.Mutex // guards both maps
	var wg sync.WaitGroup
	for _, k := range keys {
		wg.Go(func() {
			answer := r.query(ctx, Names(k.service, r.domain)[1], k.qtype)
			mu.Lock()
			defer mu.Unlock()
			replies[k] = answer
		})
	}
	wg.Wait()
	knows := map[int]bool{}
	for k, answer := range replies {
		if !hasAddrs[k] || !answer.denied() {
			continue
		}
		if _, checked := knows[answer.server]; !checked {
			knows[answer.server] = r.knowsSentinel(ctx, answer.server)
		}
		trusted[k] = knows[answer.server]
	}
	return replies, trusted
}

func (r *resolver) knowsSentinel(ctx context.Context, server int) bool {
	return slices.ContainsFunc(qtypes(), func(qtype uint16) bool {
		answer := r.queryOne(ctx, server, sentinel+"."+r.domain, qtype)
		return answer.err == nil && len(answer.addrs) > 0
	})
}

// query tries one server after the other until one answers.
func (r *resolver) query(ctx context.Context, name string, qtype uint16) reply {
	var errs []error
	first := int(r.best.Load())
	for i := range r.servers {
		server := (first + i) % len(r.servers)
		answer := r.queryOne(ctx, server, name, qtype)
		if answer.err == nil {
			r.best.Store(int64(server))
			return answer
		}
		errs = append(errs, fmt.Errorf("%s: %w", r.servers[server], answer.err))
	}
	return reply{err: errors.Join(errs...)}
}

// queryOne queries one server over UDP, and over TCP if UDP brings no usable answer.
func (r *resolver) queryOne(ctx context.Context, server int, name string, qtype uint16) (out reply) {
	for _, network := range []string{"udp", "tcp"} {
		question := new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
		client := dns.Client{Net: network, Timeout: queryTimeout}
		answer, _, err := client.ExchangeContext(ctx, question, r.servers[server].String())
		out = reply{server: server}
		if out.err = shortError(err); err == nil {
			out.addrs, out.err = readAnswer(question, answer)
		}
		if out.err == nil {
			out.ttl = minTTL(answer)
			return out
		}
	}
	return out
}

// shortError removes ports from a network error. They differ in each try, but the same fault must have the same text, so that it is
// logged once.
func shortError(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		if op.Timeout() {
			return fmt.Errorf("no answer over %s", op.Net)
		}
		return fmt.Errorf("over %s: %w", op.Net, op.Err)
	}
	return err
}

// errNoAddress is no denial: kube-dns answers with the alias of an ExternalName alone even if it cannot look up the target.
var errNoAddress = errors.New("its answer has no address of the name")

// readAnswer returns the addresses in an answer. If it returns none and no error, the server denied the name with authority: the name
// does not exist (RFC 8020), or has no address of that family (RFC 2308, section 2.2). Any other answer, or an address that no Service
// can have, is an error.
func readAnswer(question, answer *dns.Msg) ([]netip.Addr, error) {
	q := question.Question[0]
	switch {
	case !answer.Response, answer.Opcode != dns.OpcodeQuery, len(answer.Question) != 1, !strings.EqualFold(answer.Question[0].Name, q.Name),
		answer.Question[0].Qtype != q.Qtype, answer.Question[0].Qclass != q.Qclass:
		return nil, errors.New("it answers another question")
	case answer.Truncated:
		return nil, errors.New("its answer is truncated")
	case answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError:
		return nil, fmt.Errorf("it answers %s", cmp.Or(dns.RcodeToString[answer.Rcode], "with an unknown code"))
	case len(answer.Answer) == 0 && !answer.Authoritative:
		return nil, errors.New("it denies the name without authority")
	case len(answer.Answer) == 0:
		return nil, nil
	case answer.Rcode != dns.RcodeSuccess:
		return nil, errors.New("it denies a name, and answers it")
	}
	var addrs []netip.Addr
	owner := q.Name
	for range answer.Answer { // follow the CNAME records of a Service of type ExternalName, which may be in any order
		for _, rr := range answer.Answer {
			if alias, ok := rr.(*dns.CNAME); ok && strings.EqualFold(alias.Hdr.Name, owner) {
				owner = alias.Target
			}
		}
	}
	for _, rr := range answer.Answer {
		var ip net.IP
		switch rr := rr.(type) {
		case *dns.A:
			ip = rr.A.To4()
		case *dns.AAAA:
			ip = rr.AAAA.To16()
		}
		a, ok := netip.AddrFromSlice(ip)
		if !ok || rr.Header().Rrtype != q.Qtype || !strings.EqualFold(rr.Header().Name, owner) {
			continue
		}
		if !possible(a) {
			return nil, fmt.Errorf("it answers %s, which no Service can have", a)
		}
		addrs = append(addrs, a)
	}
	if len(addrs) == 0 {
		return nil, errNoAddress
	}
	addrs = sorted(addrs)
	return addrs[:min(len(addrs), maxAddresses)], nil
}

// sorted sorts addresses and removes duplicates, so that a server that rotates addresses does not change the file.
func sorted(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// minTTL returns the shortest TTL in an answer: of its records, or for a denial of its SOA (RFC 2308, section 5). It is 0 if there is
// none.
func minTTL(answer *dns.Msg) time.Duration {
	var ttls []uint32
	for _, rr := range answer.Answer {
		ttls = append(ttls, rr.Header().Ttl)
	}
	if len(ttls) == 0 {
		for _, rr := range answer.Ns {
			if soa, ok := rr.(*dns.SOA); ok {
				ttls = append(ttls, min(soa.Hdr.Ttl, soa.Minttl))
			}
		}
	}
	if len(ttls) == 0 {
		return 0
	}
	return time.Duration(slices.Min(ttls)) * time.Second
}
