package cache_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/pkg/testutil"
)

// counting answers every name with an address that shows the name, and reports how often it was queried.
type counting struct{ asked atomic.Int64 }

func (*counting) Name() string { return "forward" }

func (u *counting) ServeDNS(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	n := u.asked.Add(1)
	m := new(dns.Msg).SetReply(r)
	name := r.Question[0].Name
	switch name[0] {
	case 'd':
		m.Rcode = dns.RcodeNameError
		m.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: "example.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 1}, Ns: "ns.example.", Mbox: name, Minttl: 1}}
	case 'f':
		if n%2 == 0 {
			return dns.RcodeServerFailure, errNoReply
		}
		m.Rcode = dns.RcodeServerFailure
	default:
		m.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 1}, Txt: []string{name}}}
	}
	if err := w.WriteMsg(m); err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, nil
}

// right checks that an answer is the one to its query and to no other.
func right(q, m *dns.Msg) error {
	name := q.Question[0].Name
	switch {
	case m == nil:
		return fmt.Errorf("%s: no reply", name)
	case m.Id != q.Id || len(m.Question) != 1 || m.Question[0] != q.Question[0]:
		return fmt.Errorf("%s, id %d: an answer to another question: %v", name, q.Id, m)
	case name[0] == 'd' && (m.Rcode != dns.RcodeNameError || len(m.Ns) != 1 || m.Ns[0].(*dns.SOA).Mbox != name):
		return fmt.Errorf("%s: not its denial: %v", name, m)
	case name[0] == 'f' && m.Rcode != dns.RcodeServerFailure:
		return fmt.Errorf("%s: not its failure: %v", name, m)
	case name[0] == 'n' && (m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 || m.Answer[0].(*dns.TXT).Txt[0] != name):
		return fmt.Errorf("%s: not its record: %v", name, m)
	}
	return nil
}

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

// TestScenarioStress sends queries from many goroutines for the same and for different names, with and without sockets, while the
// configuration is reloaded and snapshots are taken. Every answer must be the one to its query, and no goroutine may be left.
func TestScenarioStress(t *testing.T) {
	const clients, rounds = 16, 600
	p := ours().open(t, nil, answers.Boot{}).(*ourProcess)
	up := new(counting)
	blocks := []string{
		"cache {\n    serve_stale 1h immediate\n    prefetch 2 1m 50%\n}",
		"cache {\n    success 1024 2 0\n    denial 1024 2 0\n    servfail 1s\n}",
	}
	var server atomic.Pointer[dnsserver.Server]
	load := func(block string) error {
		s, err := serve(p.setup(), block, up)
		if err == nil {
			server.Store(s)
		}
		return err
	}
	testutil.Must(t, load(blocks[0]))
	addr := testutil.ServeBoth(t, func(w dns.ResponseWriter, r *dns.Msg) {
		at := server.Load()
		at.ServeDNS(context.WithValue(context.Background(), dnsserver.Key{}, at), w, r)
	})
	caught := panics(t)

	errs := make(chan error, clients+2)
	var asking, beside sync.WaitGroup
	done := make(chan struct{})
	reload, peek := make(chan struct{}, 1), make(chan struct{}, 1) // have a value now and then, after so many queries
	inTurn := func(turn <-chan struct{}, do func(i int) error) {
		beside.Go(func() {
			for i := 1; ; i++ {
				if err := do(i); err != nil {
					errs <- err
					return
				}
				select {
				case <-done:
					return
				case <-turn:
				}
			}
		})
	}
	inTurn(reload, func(i int) error { return load(blocks[i/8%2]) })
	inTurn(peek, func(int) error { return p.peek() })
	for c := range clients {
		asking.Go(func() {
			wire := &dns.Client{Net: []string{"udp", "tcp"}[c%2], Timeout: time.Hour} // the test's own end is the only bound
			for i := range rounds {
				if i%40 == 0 {
					for _, turn := range []chan struct{}{reload, peek} {
						select {
						case turn <- struct{}{}:
						default: // the one before is still to be taken
						}
					}
				}
				q := new(dns.Msg).SetQuestion(fmt.Sprintf("%c%d.example.", "ndf"[(c+i)%3], (i*7+c)%(10+i)), dns.TypeTXT)
				q.Id = uint16(c*rounds + i)
				if i%2 == 0 {
					q.SetEdns0(1232, i%4 == 0)
				}
				var m *dns.Msg
				var err error
				if c < 2 && i%4 == 0 {
					m, _, err = wire.Exchange(q, addr)
				} else {
					var r reply
					r, err = exchange(server.Load(), newClient(c%2 == 0), q)
					m = r.msg
				}
				if err = errors.Join(err, right(q, m)); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	asking.Wait()
	close(done)
	beside.Wait()
	_, err := p.snapshot(answers.Boot{})
	testutil.Check(t, err)
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	testutil.Equal(t, "panics", caught, panics(t))
	if up.asked.Load() >= clients*rounds {
		t.Errorf("%d questions to the upstream for %d of clients: nothing was cached", up.asked.Load(), clients*rounds)
	}
}
