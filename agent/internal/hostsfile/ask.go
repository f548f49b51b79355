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

// Times of one question.
const (
	askTimeout   = time.Second      // of one try, over UDP or TCP
	roundTimeout = 20 * time.Second // of all together
)

// reply is what came of one question: addresses, a denial (neither addresses nor an error), or an error.
type reply struct {
	addrs  []netip.Addr
	ttl    time.Duration // how long the server may go on saying so without a look at the cluster; 0: it does not say
	server int           // that said so
	err    error
}

func (r reply) denied() bool { return r.err == nil && len(r.addrs) == 0 }

// asker asks servers. It may be used by many goroutines.
type asker struct {
	domain  string
	servers []netip.AddrPort
	best    atomic.Int64 // the server that answered last: it is asked first
}

// round asks for each key, all at one time. known tells what a denial would take away: then the server that denied is asked for the
// sentinel, too, and trusted tells whether it was answered.
func (a *asker) round(ctx context.Context, keys []key, known map[key]bool) (replies map[key]reply, trusted map[key]bool) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	replies, trusted = map[key]reply{}, map[key]bool{}
	var mu sync.Mutex // guards both maps
	var wg sync.WaitGroup
	for _, k := range keys {
		wg.Go(func() {
			r := a.ask(ctx, Names(k.service, a.domain)[1], k.family)
			mu.Lock()
			defer mu.Unlock()
			replies[k] = r
		})
	}
	wg.Wait()
	knows := map[int]bool{}
	for k, r := range replies {
		if !known[k] || !r.denied() {
			continue
		}
		if _, asked := knows[r.server]; !asked {
			knows[r.server] = a.knowsSentinel(ctx, r.server)
		}
		trusted[k] = knows[r.server]
	}
	return replies, trusted
}

func (a *asker) knowsSentinel(ctx context.Context, server int) bool {
	for _, f := range families() {
		if r := a.askOne(ctx, server, sentinel+"."+a.domain, f); r.err == nil && len(r.addrs) > 0 {
			return true
		}
	}
	return false
}

// ask asks the servers until one answers.
func (a *asker) ask(ctx context.Context, name string, f family) reply {
	var errs []error
	first := int(a.best.Load())
	for i := range a.servers {
		server := (first + i) % len(a.servers)
		r := a.askOne(ctx, server, name, f)
		if r.err == nil {
			a.best.Store(int64(server))
			return r
		}
		errs = append(errs, fmt.Errorf("%s: %w", a.servers[server], r.err))
	}
	return reply{err: errors.Join(errs...)}
}

// askOne asks one server, over UDP and, where nothing usable comes, over TCP.
func (a *asker) askOne(ctx context.Context, server int, name string, f family) (r reply) {
	kind := dns.TypeA
	if f == v6 {
		kind = dns.TypeAAAA
	}
	for _, network := range []string{"udp", "tcp"} {
		question := new(dns.Msg).SetQuestion(dns.Fqdn(name), kind)
		client := dns.Client{Net: network, Timeout: askTimeout}
		answer, _, err := client.ExchangeContext(ctx, question, a.servers[server].String())
		r = reply{server: server}
		if r.err = shorter(err); err == nil {
			r.addrs, r.err = judge(question, answer)
		}
		if r.err == nil {
			r.ttl = lifetime(answer)
			return r
		}
	}
	return r
}

// shorter leaves out of a network error what changes from try to try, so that the same fault reads the same.
func shorter(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		if op.Timeout() {
			return fmt.Errorf("no answer over %s", op.Net)
		}
		return fmt.Errorf("over %s: %w", op.Net, op.Err)
	}
	return err
}

// judge takes the addresses out of an answer to a question. None, and no error, is an authoritative denial: the name does not exist
// (RFC 8020), or has no address of that family (RFC 2308, section 2.2). Whatever is anything else, or holds an address that no Service
// can have, is an error.
func judge(question, answer *dns.Msg) ([]netip.Addr, error) {
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
	for range answer.Answer { // a Service of type ExternalName: its aliases may stand in any order
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
		return nil, errors.New("its answer has no address of the name")
	}
	addrs = sorted(addrs)
	return addrs[:min(len(addrs), mostAddresses)], nil
}

// lifetime is the least TTL of an answer: of its records, or of a denial (RFC 2308, section 5).
func lifetime(answer *dns.Msg) time.Duration {
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

// sorted orders addresses, each once, so that a server that turns them round changes nothing.
func sorted(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
