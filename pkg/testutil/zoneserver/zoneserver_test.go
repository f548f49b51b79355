package zoneserver_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

var twoClusters = zoneserver.Config{Clusters: []string{"aaaaaaaa", "bbbbbbbb"}, Hosts: []string{"app", "shop"}}

// insert are changes that add records, given in zone file form.
func insert(records ...string) func(*dns.Msg) {
	return func(m *dns.Msg) { m.Insert(parse(records...)) }
}

// holds are prerequisites: these sets have these records, and no other.
func holds(records ...string) func(*dns.Msg) {
	return func(m *dns.Msg) { m.Used(parse(records...)) }
}

func both(f ...func(*dns.Msg)) func(*dns.Msg) {
	return func(m *dns.Msg) {
		for _, f := range f {
			f(m)
		}
	}
}

func parse(records ...string) []dns.RR {
	var out []dns.RR
	for _, text := range records {
		rr, err := dns.NewRR(text)
		if err != nil || rr == nil {
			panic(fmt.Sprintf("%q: %v", text, err)) // a test's own text
		}
		out = append(out, rr)
	}
	return out
}

// isLocked recognizes an answer of PowerDNS whose message may be sent again: SQLite is locked while PowerDNS itself writes, which it does
// at its start and after each NOTIFY.
func isLocked(s *zoneserver.Server, answer *dns.Msg) bool {
	return s.Kind() == zoneserver.PowerDNS && answer.Rcode == dns.RcodeServerFailure
}

// persist sends one message until the server is not locked. PowerDNS answers a message without a signature with the same code, locked or
// not, so that one is sent once.
func persist(t *testing.T, s *zoneserver.Server, key zoneserver.Key, fill func(*dns.Msg)) (answer *dns.Msg) {
	t.Helper()
	testutil.Eventually(t, func() (err error) {
		if answer, err = try(s, key, 0, fill); err != nil {
			t.Fatalf("%s: %v", s.Kind(), err)
		}
		return testutil.ErrorIf(key.Name != "" && isLocked(s, answer), "the server is locked")
	})
	return answer
}

// try sends one message whose clock is off by skew; the zero key signs none. A refusal by TSIG is an answer, not an error.
func try(s *zoneserver.Server, key zoneserver.Key, skew time.Duration, fill func(*dns.Msg)) (*dns.Msg, error) {
	m := new(dns.Msg).SetUpdate(s.Zone())
	fill(m)
	if key.Name != "" {
		m.SetTsig(key.Name, dns.HmacSHA256, 300, time.Now().Add(skew).Unix())
	}
	conn, err := s.Dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	conn.TsigSecret = map[string]string{key.Name: key.Secret}
	_ = conn.SetDeadline(time.Now().Add(testutil.Patience()))
	if err := conn.WriteMsg(m); err != nil {
		return nil, err
	}
	answer, err := conn.ReadMsg()
	if answer != nil && answer.Rcode == dns.RcodeNotAuth {
		err = nil
	}
	return answer, err
}

// set is what the zone holds: the data of each record of a set, sorted.
func set(t *testing.T, s *zoneserver.Server, name string, qtype uint16) []string {
	t.Helper()
	zone, err := s.Transfer()
	testutil.Must(t, err)
	out := []string{}
	for _, rr := range zone {
		if strings.EqualFold(rr.Header().Name, name) && rr.Header().Rrtype == qtype {
			out = append(out, strings.TrimPrefix(rr.String(), rr.Header().String()))
		}
	}
	slices.Sort(out)
	return out
}
