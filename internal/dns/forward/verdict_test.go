package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/caddy"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestJudge(t *testing.T) {
	msg := func(name string, rcode int, records ...string) *dns.Msg {
		m := new(dns.Msg).SetRcode(new(dns.Msg).SetQuestion(name, dns.TypeA), rcode)
		for _, text := range records {
			rr, err := dns.NewRR(strings.TrimPrefix(text, "ns:"))
			testutil.Must(t, err)
			if strings.HasPrefix(text, "ns:") {
				m.Ns = append(m.Ns, rr)
			} else {
				m.Answer = append(m.Answer, rr)
			}
		}
		return m
	}
	const soa = " 5 IN SOA ns. m. 1 2 3 4 5"
	cut := msg("a.cluster.local.", 0)
	cut.Truncated = true
	for _, tc := range []struct {
		name  string
		m     *dns.Msg
		holds string
		want  verdict
	}{
		{"answer", msg("a.cluster.local.", 0, "a.cluster.local. 5 IN A 10.0.0.1"), "cluster.local.", good},
		{"denial of the zone", msg("a.cluster.local.", 3, "ns:cluster.local."+soa), "cluster.local.", good},
		{"denial of a zone below", msg("a.b.cluster.local.", 3, "ns:b.cluster.local."+soa), "cluster.local.", good},
		{"denial of the root", msg("a.cluster.local.", 3, "ns:."+soa), "cluster.local.", lame},
		{"denial of the zone above", msg("a.cluster.local.", 3, "ns:local."+soa), "cluster.local.", lame},
		{"empty, of the root", msg("a.cluster.local.", 0, "ns:."+soa), "cluster.local.", lame},
		{"empty, of the zone", msg("A.Cluster.Local.", 0, "ns:cluster.local."+soa), "cluster.local.", good},
		{"referral upwards", msg("a.cluster.local.", 0, "ns:. 5 IN NS a.root-servers.net."), "cluster.local.", lame},
		{"denial without a word", msg("a.cluster.local.", 3), "cluster.local.", good},
		{"another zone's name", msg("a.example.", 3, "ns:."+soa), "cluster.local.", good},
		{"no zone is held", msg("a.cluster.local.", 3, "ns:."+soa), "", good},
		{"SERVFAIL", msg("a.cluster.local.", 2), "cluster.local.", servfail},
		{"REFUSED", msg("a.cluster.local.", 5), "", refused},
		{"NOTIMP is an answer", msg("a.cluster.local.", 4), "cluster.local.", good},
		{"truncated", cut, "cluster.local.", truncated},
	} {
		testutil.Equal(t, tc.name, tc.want, judge(tc.m, strings.Fields(tc.holds)))
	}
}

func TestReasons(t *testing.T) {
	seen := map[string]bool{}
	for r := range reasons {
		if l := r.label(); seen[l] || strings.ContainsAny(l, " A-Z") {
			t.Errorf("label %q", l)
		} else {
			seen[l] = true
		}
	}
	for _, tc := range []struct {
		v    verdict
		err  error
		want reason
	}{
		{good, nil, reasonNone}, {truncated, nil, reasonNone}, {servfail, nil, reasonServfail}, {refused, nil, reasonRefused}, {lame, nil, reasonLame},
		{good, context.DeadlineExceeded, reasonSilent}, {good, &net.OpError{Op: "dial", Err: context.DeadlineExceeded}, reasonSilent},
		{good, fmt.Errorf("read: %w", syscall.ECONNREFUSED), reasonRefuses}, {good, syscall.EHOSTUNREACH, reasonUnreachable},
		{good, fmt.Errorf("read: %w", &net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}), reasonTLS},
		{good, &net.OpError{Op: "dial", Err: errors.New("odd")}, reasonUnreachable}, {good, syscall.ECONNRESET, reasonBroken}, {good, errMalformed, reasonMalformed},
	} {
		testutil.Equal(t, fmt.Sprint(tc.v, ", ", tc.err), tc.want, reasonOf(tc.v, tc.err))
	}
}

// A server does not fail for silence while this process was stopped.
func TestStoodStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		r := hedgedQuery{a: new(Block), req: new(dns.Msg), began: time.Now().Add(-time.Hour), end: time.Now().Add(-time.Hour), count: 1, next: 1}
		r.tries[0] = try{server: s, state: ended, why: reasonSilent, err: context.DeadlineExceeded}
		r.settle(-1)
		if s.health.fails.Load() != 0 {
			t.Error("a server was blamed after we had stood still")
		}
		// The same if the process was stopped during the query, while the TCP connection was made.
		r = hedgedQuery{a: new(Block), req: new(dns.Msg), began: time.Now().Add(-time.Second), end: time.Now().Add(time.Second), count: 2, next: 2}
		r.checkLate(time.Now().Add(-time.Second + hedgeAfter))
		r.tries = [maxTries]try{{server: s, state: running, stream: true, began: r.began, connected: new(atomic.Bool)}, {server: s, state: ended, again: true}}
		if r.settle(1); s.health.streamFails.Load() != 0 {
			t.Error("a stream is held to have failed after we had stood still")
		}
		r.late = false
		if r.settle(1); s.health.streamFails.Load() != 1 {
			t.Error("a stream that did not come about is not noted")
		}
	})
}

func TestParse(t *testing.T) {
	type parsed struct {
		Servers, Resorts, Holds []string
		TCP                     bool
		Mark                    int
	}
	for text, want := range map[string]parsed{
		"ask 10.0.0.1": {Servers: []string{"10.0.0.1:53"}},
		"ask 10.0.0.1:5353 fd00::1 [fd00::2]:54 [fd00::3]":   {Servers: []string{"10.0.0.1:5353", "[fd00::1]:53", "[fd00::2]:54", "[fd00::3]:53"}},
		"ask tls://9.9.9.9 tls://9.9.9.9%dns.quad9.net:8853": {Servers: []string{"tls://9.9.9.9:853", "tls://9.9.9.9%dns.quad9.net:8853"}},
		"ask 10.0.0.1 10.0.0.1:53 {\n tcp\n holds Cluster.Local\n last_resort 10.0.0.1 10.96.0.10\n mark 0x10\n}": {
			Servers: []string{"10.0.0.1:53"}, Resorts: []string{"10.96.0.10:53"}, Holds: []string{"cluster.local."}, TCP: true, Mark: 16},
	} {
		a, err := parse(caddy.NewTestController("dns", text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got := parsed{TCP: a.stream, Holds: a.holds}
		for _, s := range a.specs {
			got.Servers = append(got.Servers, s.String())
		}
		for _, s := range a.resorts {
			got.Resorts = append(got.Resorts, s.String())
			got.Mark = s.mark
		}
		testutil.Equal(t, text, want, got)
	}
	for text, want := range map[string]string{
		"ask":                                               "argument",
		"ask kube-dns":                                      "not a server",
		"ask 10.0.0.1\nask 10.0.0.2":                        "once",
		"ask 10.0.0.1 {\n tcp now\n}":                       "argument",
		"ask 10.0.0.1 {\n holds\n}":                         "argument",
		"ask 10.0.0.1 {\n last_resort\n}":                   "argument",
		"ask 10.0.0.1 {\n mark 1\n}":                        "last_resort",
		"ask 10.0.0.1 {\n policy random\n}":                 "unknown property",
		"ask" + strings.Repeat(" 10.0.0.1", 16):             "at most 15",
		"ask 10.0.0.1 {\n last_resort 10.0.0.2\n mark x\n}": "write a number",
	} {
		_, err := parse(caddy.NewTestController("dns", text))
		testutil.WantError(t, err, want, text)
	}
}

// FuzzRead: any bytes give an answer to the query or an error.
func FuzzRead(f *testing.F) {
	q := new(dns.Msg).SetQuestion("a.example.", dns.TypeTXT)
	q.Id = 7
	wire, err := answersAs("x")(q, false).Pack()
	testutil.Must(f, err)
	f.Add(wire)
	f.Add(wire[:20])
	f.Fuzz(func(t *testing.T, wire []byte) {
		m, err := read(wire, q, 7)
		if err == nil && (m.Id != 7 || !m.Response || !sameQuestion(m, q)) {
			t.Errorf("%v", m)
		}
		if err == nil {
			judge(m, []string{"example."})
		}
	})
}

func (v verdict) String() string {
	return [...]string{"answered", "truncated", "SERVFAIL", "REFUSED", "answers for another zone"}[v]
}
