package hostsfile

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/hostsfile"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

func addrs(texts ...string) (out []netip.Addr) {
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

const qname = "registry.shop.svc.cluster.local."

// Each answer is one of three: addresses, an authoritative denial, or of no use.
func TestReadAnswer(t *testing.T) {
	soa := "cluster.local. 30 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 30"
	for name, c := range map[string]struct {
		kind    uint16
		records []string
		change  func(*dns.Msg)
		want    []netip.Addr
		err     string // "": an answer, or a denial where want is empty
	}{
		"an address":           {records: []string{qname + " 30 IN A 10.96.0.5"}, want: addrs("10.96.0.5")},
		"another case":         {records: []string{"Registry.shop.svc.cluster.local. 30 IN A 10.96.0.5"}, want: addrs("10.96.0.5")},
		"some, in any order":   {records: []string{qname + " 30 IN A 10.0.0.2", qname + " 30 IN A 10.0.0.1", qname + " 30 IN A 10.0.0.2"}, want: addrs("10.0.0.1", "10.0.0.2")},
		"IPv6":                 {kind: dns.TypeAAAA, records: []string{qname + " 30 IN AAAA fd00::5"}, want: addrs("fd00::5")},
		"an alias":             {records: []string{"a.example. 30 IN A 192.0.2.1", qname + " 30 IN CNAME b.example.", "b.example. 30 IN CNAME a.example."}, want: addrs("192.0.2.1")},
		"without authority":    {records: []string{qname + " 30 IN A 10.96.0.5"}, change: func(m *dns.Msg) { m.Authoritative = false }, want: addrs("10.96.0.5")},
		"denied":               {change: func(m *dns.Msg) { m.Rcode = dns.RcodeNameError }},
		"none of the family":   {},
		"denied, no authority": {change: func(m *dns.Msg) { m.Rcode, m.Authoritative = dns.RcodeNameError, false }, err: "without authority"},
		"none, no authority":   {change: func(m *dns.Msg) { m.Authoritative = false }, err: "without authority"},
		"denied and answered":  {records: []string{qname + " 30 IN A 10.96.0.5"}, change: func(m *dns.Msg) { m.Rcode = dns.RcodeNameError }, err: "denies a name, and answers"},
		"SERVFAIL":             {change: func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure }, err: "SERVFAIL"},
		"an unknown code":      {change: func(m *dns.Msg) { m.Rcode = 3841 }, err: "unknown code"},
		"REFUSED":              {change: func(m *dns.Msg) { m.Rcode = dns.RcodeRefused }, err: "REFUSED"},
		"truncated":            {records: []string{qname + " 30 IN A 10.96.0.5"}, change: func(m *dns.Msg) { m.Truncated = true }, err: "truncated"},
		"no answer at all":     {change: func(m *dns.Msg) { m.Response = false }, err: "another question"},
		"another name": {records: []string{"x. 30 IN A 10.96.0.5"}, change: func(m *dns.Msg) { m.Question[0].Name = "x." },
			err: "another question"},
		"another type":   {change: func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeTXT }, err: "another question"},
		"no question":    {change: func(m *dns.Msg) { m.Question = nil }, err: "another question"},
		"another's":      {records: []string{"x. 30 IN A 10.96.0.5"}, err: "no address of the name"},
		"other type":     {records: []string{qname + " 30 IN AAAA fd00::5"}, err: "no address of the name"},
		"loopback":       {records: []string{qname + " 30 IN A 127.0.0.1"}, err: "no Service can have"},
		"unspecified":    {records: []string{qname + " 30 IN A 0.0.0.0"}, err: "no Service can have"},
		"multicast":      {records: []string{qname + " 30 IN A 224.0.0.1"}, err: "no Service can have"},
		"broadcast":      {records: []string{qname + " 30 IN A 255.255.255.255"}, err: "no Service can have"},
		"link-local":     {records: []string{qname + " 30 IN A 169.254.20.10"}, err: "no Service can have"},
		"IPv6 loopback":  {kind: dns.TypeAAAA, records: []string{qname + " 30 IN AAAA ::1"}, err: "no Service can have"},
		"mapped":         {kind: dns.TypeAAAA, records: []string{qname + " 30 IN AAAA ::ffff:10.96.0.5"}, err: "no Service can have"},
		"one impossible": {records: []string{qname + " 30 IN A 10.96.0.5", qname + " 30 IN A 127.0.0.1"}, err: "no Service can have"},
	} {
		t.Run(name, func(t *testing.T) {
			kind := c.kind
			if kind == 0 {
				kind = dns.TypeA
			}
			q := new(dns.Msg).SetQuestion(qname, kind)
			answer := new(dns.Msg).SetReply(q)
			answer.Authoritative = true
			for _, text := range c.records {
				rr, err := dns.NewRR(text)
				testutil.Must(t, err)
				answer.Answer = append(answer.Answer, rr)
			}
			if len(answer.Answer) == 0 {
				rr, _ := dns.NewRR(soa)
				answer.Ns = append(answer.Ns, rr)
			}
			if c.change != nil {
				c.change(answer)
			}
			got, err := readAnswer(q, answer)
			testutil.Equal(t, "entries", c.want, got)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
}

func FuzzReadAnswer(f *testing.F) {
	q := new(dns.Msg).SetQuestion(qname, dns.TypeA)
	wire, _ := q.Pack()
	f.Add(wire)
	f.Fuzz(func(t *testing.T, wire []byte) {
		answer := new(dns.Msg)
		if answer.Unpack(wire) != nil {
			return
		}
		got, err := readAnswer(q, answer)
		for _, a := range got {
			if err != nil || !a.Is4() || !possible(a) {
				t.Fatalf("%v, %v", got, err)
			}
		}
	})
}

var conf = Config{Services: []string{"shop/registry"}, Domain: "cluster.local"}

// The answers of some rounds, and which addresses stay.
func TestMemory(t *testing.T) {
	denied, failed := reply{}, reply{err: errors.New("no answer")}
	at := func(s string) reply { return reply{addrs: addrs(s)} }
	type round struct {
		after   time.Duration
		reply   reply
		trusted bool
	}
	old := addrs("10.96.0.5")
	for name, c := range map[string]struct {
		rounds []round
		want   []netip.Addr
	}{
		"no answer":                            {want: old},
		"another address":                      {[]round{{0, at("10.96.0.6"), false}}, addrs("10.96.0.6")},
		"failures for a day":                   {[]round{{0, failed, true}, {12 * time.Hour, failed, true}, {12 * time.Hour, failed, true}, {time.Hour, failed, true}}, old},
		"denied twice":                         {[]round{{0, denied, true}, {time.Hour, denied, true}}, old},
		"denied thrice too soon":               {[]round{{0, denied, true}, {time.Minute, denied, true}, {time.Minute, denied, true}}, old},
		"denied for three minutes":             {[]round{{0, denied, true}, {time.Minute, denied, true}, {2 * time.Minute, denied, true}}, nil},
		"denied, the domain is wrong":          {[]round{{0, denied, false}, {time.Hour, denied, false}, {time.Hour, denied, false}, {time.Hour, denied, false}}, old},
		"the server learns the sentinel again": {[]round{{0, denied, true}, {time.Hour, denied, false}, {0, denied, true}, {time.Minute, denied, true}, {time.Minute, denied, true}}, old},
		"answered between":                     {[]round{{0, denied, true}, {time.Minute, denied, true}, {time.Minute, at("10.96.0.5"), false}, {time.Minute, denied, true}, {time.Minute, denied, true}}, old},
		"failures between do not help":         {[]round{{0, denied, true}, {time.Minute, failed, true}, {time.Minute, denied, true}, {time.Minute, denied, true}}, nil},
		"made again":                           {[]round{{0, denied, true}, {time.Minute, denied, true}, {2 * time.Minute, denied, true}, {time.Hour, at("10.96.0.9"), true}}, addrs("10.96.0.9")},
	} {
		t.Run(name, func(t *testing.T) {
			m := memory{}
			m.recall(conf, []hostsfile.Entry{{Addr: old[0], Names: Names("shop/registry", "cluster.local")}})
			now := time.Unix(1e9, 0)
			for _, r := range c.rounds {
				now = now.Add(r.after)
				m.learn(key{"shop/registry", dns.TypeA}, r.reply, r.trusted, now, defaultPatience)
				m.learn(key{"shop/registry", dns.TypeAAAA}, denied, true, now, defaultPatience)
			}
			var got []netip.Addr
			for _, e := range m.entries(conf) {
				got = append(got, e.Addr)
			}
			testutil.Equal(t, "entries", c.want, got)
		})
	}
}

// An alias without an address is no failure of a family that has no address, but it removes none either.
func TestAliasAlone(t *testing.T) {
	m, now, alone := memory{}, time.Unix(1e9, 0), reply{err: fmt.Errorf("10.96.0.10:53: %w", errNoAddress)}
	a, aaaa := key{"shop/registry", dns.TypeA}, key{"shop/registry", dns.TypeAAAA}
	m.learn(a, reply{addrs: addrs("192.0.2.1")}, false, now, defaultPatience)
	for range 2 * enoughDenials {
		now = now.Add(defaultPatience)
		m.learn(a, alone, true, now, defaultPatience)
		m.learn(aaaa, alone, true, now, defaultPatience)
	}
	if f := m[aaaa]; f.failed != "" || !f.answered.Equal(now) {
		t.Errorf("AAAA: %+v", f)
	}
	if f := m[a]; f.failed == "" || len(f.addrs) != 1 {
		t.Errorf("A: %+v", f)
	}
}

// The lines of the file are the last good answers, as far as they can be ones.
func TestRecall(t *testing.T) {
	two := Config{Services: []string{"shop/registry", "shop/proxy"}, Domain: "cluster.local"}
	m := memory{}
	line := func(addr string, names ...string) hostsfile.Entry {
		return hostsfile.Entry{Addr: netip.MustParseAddr(addr), Names: names}
	}
	m.recall(two, []hostsfile.Entry{line("10.96.0.7", "registry.shop.svc"), line("fd00::5", "registry.shop.svc.cluster.local"), line("10.96.0.5", Names("shop/registry", "cluster.local")...),
		line("127.0.0.1", "proxy.shop.svc"), line("10.0.0.1", "gone.shop.svc")})
	want := []hostsfile.Entry{line("10.96.0.5", Names("shop/registry", "cluster.local")...), line("10.96.0.7", Names("shop/registry", "cluster.local")...),
		line("fd00::5", Names("shop/registry", "cluster.local")...)}
	testutil.Equal(t, "entries", want, m.entries(two))
}

func TestStanding(t *testing.T) {
	now := time.Unix(1e9, 0)
	for _, c := range []struct {
		s    nodestate.HostsService
		want Standing
	}{
		{nodestate.HostsService{}, Missing},
		{nodestate.HostsService{Addresses: []string{"10.0.0.1"}, Answered: now}, Current},
		{nodestate.HostsService{Addresses: []string{"10.0.0.1"}, Left: []string{"a"}}, Foreign},
		{nodestate.HostsService{Addresses: []string{"10.0.0.1"}, Failed: "x", Answered: now.Add(-time.Minute)}, Current},
		{nodestate.HostsService{Addresses: []string{"10.0.0.1"}, Failed: "x", Answered: now.Add(-time.Hour)}, Stale},
		{nodestate.HostsService{Addresses: []string{"10.0.0.1"}, Failed: "x"}, Stale}, // of a file from before a restart
	} {
		testutil.Equal(t, fmt.Sprintf("%+v", c.s), c.want, StandingOf(c.s, now.Add(-30*time.Minute), now))
	}
}
