package server_test

import (
	"log/slog"
	"net/netip"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	mdns "github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/queryinfo"
	"github.com/neardns/neardns/internal/dns/searchpath"
)

// watcher is an observer that identifies every client as the same pod.
type watcher struct {
	mu   sync.Mutex // guards the fields below
	pod  any
	told []queryinfo.Answer
}

func (w *watcher) Identify(netip.Addr) any {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

func (w *watcher) set(pod any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pod = pod
}

func (w *watcher) Record(a queryinfo.Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, a)
}

// next returns the one answer that was recorded since the last call, without its size.
func (w *watcher) next(t *testing.T) queryinfo.Answer {
	t.Helper()
	waitFor(t, "an answer is told", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.told) > 0
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.told) != 1 {
		t.Errorf("told %d times: %+v", len(w.told), w.told)
	}
	a := w.told[0]
	w.told = nil
	return a
}

// TestObserver sends queries over UDP and TCP that the cache has and has not, that fail, and that no block answers. Each query is recorded
// once, with the client's answer.
func TestObserver(t *testing.T) {
	up := newUpstream(t, func(q *mdns.Msg) *mdns.Msg {
		switch q.Question[0].Name {
		case "gone.cluster.local.":
			return new(mdns.Msg).SetRcode(q, mdns.RcodeNameError)
		case "sick.cluster.local.":
			return new(mdns.Msg).SetRcode(q, mdns.RcodeServerFailure)
		}
		return address("10.0.0.1")(q)
	})
	for _, network := range []string{"udp", "tcp"} {
		w := new(watcher)
		cfg := config(t, up)
		s := observed(slog.New(slog.DiscardHandler), w)
		if err := s.Start(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			name  string
			rcode int
			level queryinfo.Level
		}{
			{"a.cluster.local.", 0, queryinfo.Miss}, {"a.cluster.local.", 0, queryinfo.Hit}, {"A.Cluster.LOCAL.", 0, queryinfo.Hit},
			{"gone.cluster.local.", mdns.RcodeNameError, queryinfo.Miss},
			{"sick.cluster.local.", mdns.RcodeServerFailure, queryinfo.Miss},
			{"x.probe.neardns.invalid.", mdns.RcodeNameError, queryinfo.Miss}, // only the prober may query there
		} {
			m := ask(t, network, addressOf(cfg), question(tc.name, mdns.TypeA))
			got := w.next(t)
			m.Compress = true // as it came
			if got.Size != m.Len() {
				t.Errorf("%s %s: %d bytes told of %d", network, tc.name, got.Size, m.Len())
			}
			if tc.name == "x.probe.neardns.invalid." {
				tc.rcode = m.Rcode
			}
			got.Size = 0
			want := queryinfo.Answer{Client: netip.MustParseAddr("127.0.0.1"), Rcode: tc.rcode, Level: tc.level}
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("%s %s (-want +got):\n%s", network, tc.name, diff)
			}
		}
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}
}

// searching is a pod whose queries are completed.
type searching struct{ list *searchpath.Search }

func (s searching) Search() *searchpath.Search              { return s.list }
func (s searching) SearchNow(netip.Addr) *searchpath.Search { return s.list }

// TestObserverOfCompletion: if the agent walks the search path for a pod, only the client's query is recorded, and not the walk's own
// queries. It counts as a hit, because the cache has the last name of the walk when the client gets its answer.
func TestObserverOfCompletion(t *testing.T) {
	up := newUpstream(t, func(q *mdns.Msg) *mdns.Msg {
		if q.Question[0].Name == "www.example.com." {
			return address("10.0.0.1")(q)
		}
		m := new(mdns.Msg).SetRcode(q, mdns.RcodeNameError)
		header := mdns.RR_Header{Name: "cluster.local.", Rrtype: mdns.TypeSOA, Class: mdns.ClassINET, Ttl: 30}
		m.Ns = []mdns.RR{&mdns.SOA{Hdr: header, Ns: "ns.", Mbox: "m.", Minttl: 30}}
		return m
	})
	list := []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local"}
	w := &watcher{pod: searching{searchpath.NewSearch(list, 5, false, "cluster.local")}}
	cfg := config(t, up)
	s := observed(slog.New(slog.DiscardHandler), w)
	if err := s.Start(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	defer s.Stop() //nolint:errcheck // at the end
	for range 3 {
		for _, network := range []string{"udp", "tcp"} {
			m := ask(t, network, addressOf(cfg), question("www.example.com.shop.svc.cluster.local.", mdns.TypeA))
			if len(m.Answer) != 2 {
				t.Fatalf("not completed: %v", m)
			}
			// The walk has queried its last name, so the cache has it.
			if got := w.next(t); got.Level != queryinfo.Hit || got.Rcode != 0 || got.Identity == nil {
				t.Errorf("told %+v", got)
			}
		}
	}
	w.set(searching{nil})
	m := ask(t, "udp", addressOf(cfg), question("www.example.com.shop.svc.cluster.local.", mdns.TypeA))
	if got := w.next(t); m.Rcode != mdns.RcodeNameError || got.Rcode != mdns.RcodeNameError || got.Level != queryinfo.Miss {
		t.Errorf("for a pod that wants none: %v, told %+v", m, got)
	}
}
