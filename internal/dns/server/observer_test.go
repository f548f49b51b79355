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
)

// watcher is an observer that identifies no client.
type watcher struct {
	mu   sync.Mutex // guards told
	told []queryinfo.Answer
}

func (w *watcher) Identify(netip.Addr) any { return nil }

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
