package secondary

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

const zone = "shared.example."

var quiet = slog.New(slog.DiscardHandler)

func rr(text string) dns.RR {
	out, err := dns.NewRR(text)
	if err != nil {
		panic(err)
	}
	return out
}

// soa returns the SOA of version(serial).
func soa(serial int) *dns.SOA { return version(serial)[0].(*dns.SOA) }

// version is a zone with a serial and one address for each of names.
func version(serial int, names ...string) []dns.RR {
	out := []dns.RR{rr(fmt.Sprintf("%s 60 IN SOA ns.%s h.%s %d 60 60 3600 60", zone, zone, zone, serial)), rr(zone + " 60 IN NS ns." + zone)}
	for _, n := range names {
		out = append(out, rr(n+"."+zone+" 60 IN A 192.0.2.1"))
	}
	return out
}

// primary is a Primary with scripted answers. It is safe for concurrent use.
type primary struct {
	mu    sync.Mutex
	now   []dns.RR
	steps map[uint32]*rfc2136.Transfer // answers to IXFR, by the serial of the client's copy
	fails error
	asked []string

	tooLarge error // the error of IXFR; nil: none
}

func (p *primary) set(change func(*primary)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

func (p *primary) note(what string) error {
	p.asked = append(p.asked, what)
	return p.fails
}

func (p *primary) Serial(context.Context) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now[0].(*dns.SOA).Serial, p.note("serial")
}

func (p *primary) AXFR(context.Context) (*rfc2136.Transfer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.note("axfr"); err != nil {
		return nil, err
	}
	return &rfc2136.Transfer{Serial: p.now[0].(*dns.SOA).Serial, Full: p.now}, nil
}

func (p *primary) IXFR(_ context.Context, since uint32) (*rfc2136.Transfer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.note("ixfr"); err != nil {
		return nil, err
	}
	if p.tooLarge != nil {
		return nil, p.tooLarge
	}
	if t := p.steps[since]; t != nil {
		return t, nil
	}
	return &rfc2136.Transfer{Serial: p.now[0].(*dns.SOA).Serial}, nil
}

// served records the calls of serve.
type served struct {
	mu   sync.Mutex
	last []string
	n    int
}

func texts(list []dns.RR) (out []string) {
	for _, r := range list {
		out = append(out, r.String())
	}
	slices.Sort(out)
	return out
}

func (s *served) serve(list []dns.RR) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.n = texts(list), s.n+1
	return nil
}

func (s *served) check(t *testing.T, when string, want []dns.RR) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	testutil.Equal(t, when, texts(want), s.last)
}

// run runs a copy until the test ends or stop is called.
func run(t *testing.T, c *Copy) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
