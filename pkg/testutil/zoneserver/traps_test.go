package zoneserver_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

const (
	mine   = "aaaaaaaa"
	theirs = "bbbbbbbb"
)

// traps are what a writer of a shared zone must know of its server. Each test uses hosts of its own, and returns the words for the
// document's table.
var traps = []struct {
	name string
	try  func(*testing.T, *zoneserver.Server) string
}{
	{"prerequisite on a set: as it is, a part of it, absent", trapPrerequisites},
	{"prerequisite on a TXT in other case", trapCase},
	{"prerequisite on a name that the key may not write", trapForeignPrerequisite},
	{"12 writers at once, 4 records each, one record a message", func(t *testing.T, s *zoneserver.Server) string { return trapWriters(t, s, addOnly) }},
	{"the same, each message replaces the set that was read", func(t *testing.T, s *zoneserver.Server) string { return trapWriters(t, s, blind) }},
	{"the same, if the set is as it was read", func(t *testing.T, s *zoneserver.Server) string { return trapWriters(t, s, comparing) }},
	{"the same, if the SOA is as it was read", func(t *testing.T, s *zoneserver.Server) string { return trapWriters(t, s, bySerial) }},
	{"record 101 of a set", trapManyRecords},
	{"500 records in one message", trapBigMessage},
	{"an A next to a CNAME", func(t *testing.T, s *zoneserver.Server) string {
		return trapNextTo(t, s, "a-cname", "CNAME other.shared.example.", "A 192.0.2.1")
	}},
	{"a CNAME next to an A", func(t *testing.T, s *zoneserver.Server) string {
		return trapNextTo(t, s, "cname-a", "A 192.0.2.1", "CNAME other.shared.example.")
	}},
	{"a second CNAME", func(t *testing.T, s *zoneserver.Server) string {
		return trapNextTo(t, s, "two", "CNAME one.shared.example.", "CNAME two.shared.example.")
	}},
	{"a record with another TTL", trapTTL},
	{"a cluster's key writes another cluster's name", func(t *testing.T, s *zoneserver.Server) string {
		return trapWrites(t, s, s.Key(mine), "foreign."+theirs+"._neardns."+s.Zone())
	}},
	{"the same, next to a change that it may make", func(t *testing.T, s *zoneserver.Server) string {
		return trapWrites(t, s, s.Key(mine), "mixed."+mine+"._neardns."+s.Zone(), "mixed."+theirs+"._neardns."+s.Zone())
	}},
	{"an edge's key writes", func(t *testing.T, s *zoneserver.Server) string { return trapWrites(t, s, s.Edge(), host("edge")) }},
	{"a message without a signature", func(t *testing.T, s *zoneserver.Server) string {
		return trapWrites(t, s, zoneserver.Key{}, host("unsigned"))
	}},
	{"a wrong secret; an unknown key; a clock wrong by ten minutes", trapSignatures},
	{"IXFR after a change", trapIncrement},
	{"NOTIFY after a change; after another", trapNotify},
}

// TestTraps compares the table of traps in fleet/docs/shared-zones-servers.md with what the servers do.
func TestTraps(t *testing.T) {
	testutil.RequireRoot(t) // real servers run
	cells := map[zoneserver.Kind][]string{}
	var mu sync.Mutex // guards cells
	t.Run("servers", func(t *testing.T) {
		for _, kind := range zoneserver.Kinds() {
			t.Run(string(kind), func(t *testing.T) {
				t.Parallel()
				zoneserver.Require(t, kind)
				received, secondary := notified(t)
				c := twoClusters
				c.Notify = []netip.AddrPort{secondary}
				s := zoneserver.Start(t, kind, c)
				notifications.Store(s, received)
				column := make([]string, len(traps))
				for i, trap := range traps {
					t.Run(trap.name, func(t *testing.T) { column[i] = trap.try(t, s) })
				}
				mu.Lock()
				cells[kind] = column
				mu.Unlock()
			})
		}
	})
	if len(cells) < len(zoneserver.Kinds()) || t.Failed() {
		return
	}
	table := "| trap | " + strings.Join(names(zoneserver.Kinds()), " | ") + " |\n| --- | --- | --- | --- |\n"
	for i, trap := range traps {
		row := []string{trap.name}
		for _, kind := range zoneserver.Kinds() {
			row = append(row, cells[kind][i])
		}
		table += "| " + strings.Join(row, " | ") + " |\n"
	}
	golden.Part(t, page, "traps", table)
}

func names(kinds []zoneserver.Kind) (out []string) {
	for _, k := range kinds {
		out = append(out, string(k))
	}
	return out
}

// host returns the name of a host below a host of the zone. Each trap uses a label of its own.
func host(label string) string { return label + ".app." + zoneserver.DefaultZone }

// code is an answer's code, or TSIG's where that is why it was refused.
func code(answer *dns.Msg) string {
	if tsig := answer.IsTsig(); tsig != nil && tsig.Error != dns.RcodeSuccess {
		return dns.RcodeToString[int(tsig.Error)]
	}
	return dns.RcodeToString[answer.Rcode]
}

func send(t *testing.T, s *zoneserver.Server, key zoneserver.Key, f ...func(*dns.Msg)) string {
	t.Helper()
	return code(persist(t, s, key, both(f...)))
}

func trapPrerequisites(t *testing.T, s *zoneserver.Server) string {
	a, b := host("pre")+" 60 A 192.0.2.1", host("pre")+" 60 A 192.0.2.2"
	send(t, s, s.Operator(), insert(a, b))
	other := insert(host("pre-other") + " 60 A 192.0.2.1")
	absent := func(m *dns.Msg) { m.RRsetNotUsed(parse(a)) }
	return send(t, s, s.Operator(), holds(a, b), other) + ", " + send(t, s, s.Operator(), holds(a), other) + ", " + send(t, s, s.Operator(), absent, other)
}

func trapCase(t *testing.T, s *zoneserver.Server) string {
	name := "case.app." + mine + "._neardns." + s.Zone()
	send(t, s, s.Operator(), insert(name+` 60 TXT "v=a"`))
	if got := send(t, s, s.Operator(), holds(name+` 60 TXT "v=A"`), insert(name+` 60 TXT "more"`)); got != "NOERROR" {
		return got
	}
	return "holds"
}

func trapForeignPrerequisite(t *testing.T, s *zoneserver.Server) string {
	foreign := theirs + "._neardns." + s.Zone() + ` 60 TXT "1"`
	send(t, s, s.Operator(), insert(foreign))
	if got := send(t, s, s.Key(mine), holds(foreign), insert(host("allowed")+" 60 A 192.0.2.1")); got != "NOERROR" || len(set(t, s, host("allowed"), dns.TypeA)) != 1 {
		return got
	}
	return "allowed"
}

// way is how a writer adds a record to a set: fill writes the message's prerequisites and changes, from the zone as it was read.
type way struct {
	label string
	fill  func(zone, own []dns.RR, name string, m *dns.Msg)
}

var (
	addOnly = way{"add", func(_, own []dns.RR, _ string, m *dns.Msg) { m.Insert(own) }}
	blind   = way{"blind", func(zone, own []dns.RR, name string, m *dns.Msg) { replace(zone, own, name, m) }}
	// Used, Insert and Remove write into the records that they are given, so that each gets copies.
	comparing = way{"compare", func(zone, own []dns.RR, name string, m *dns.Msg) {
		if old := among(zone, name, dns.TypeA); len(old) > 0 {
			m.Used(old)
		} else {
			m.RRsetNotUsed(parse(name + " 60 A 192.0.2.1"))
		}
		replace(zone, own, name, m)
	}}
	bySerial = way{"serial", func(zone, own []dns.RR, name string, m *dns.Msg) {
		m.Used(among(zone, zoneserver.DefaultZone, dns.TypeSOA))
		replace(zone, own, name, m)
	}}
)

func replace(zone, own []dns.RR, name string, m *dns.Msg) {
	m.RemoveRRset(parse(name + " 60 A 192.0.2.1"))
	m.Insert(append(among(zone, name, dns.TypeA), own...))
}

// among are copies of a set's records.
func among(zone []dns.RR, name string, qtype uint16) []dns.RR {
	var out []dns.RR
	for _, rr := range zone {
		if rr.Header().Name == name && rr.Header().Rrtype == qtype {
			out = append(out, dns.Copy(rr))
		}
	}
	return out
}

// trapWriters has 12 writers add four records each at the same time, and reports whether records are lost. A writer whose prerequisite
// failed reads the zone and tries again.
func trapWriters(t *testing.T, s *zoneserver.Server, w way) string {
	const writers, rounds = 12, 4
	name := host(w.label)
	var writing errgroup.Group
	for writer := range writers {
		writing.Go(func() error {
			for round := range rounds {
				for {
					zone, err := s.Transfer()
					if busy := new(dns.Error); errors.As(err, &busy) {
						continue // BIND has no more than transfers-out at once, 10 by default, and answers SERVFAIL to others
					} else if err != nil {
						return err
					}
					own := parse(fmt.Sprintf("%s 60 A 198.51.100.%d", name, 1+writer*rounds+round))
					answer, err := try(s, s.Operator(), 0, func(m *dns.Msg) { w.fill(zone, own, name, m) })
					if err != nil {
						return err
					}
					if answer.Rcode == dns.RcodeSuccess {
						break
					}
					if !isLocked(s, answer) && answer.Rcode != dns.RcodeNXRrset && answer.Rcode != dns.RcodeYXRrset {
						return fmt.Errorf("answer %s", code(answer))
					}
				}
			}
			return nil
		})
	}
	testutil.Must(t, writing.Wait())
	lost := writers*rounds - len(set(t, s, name, dns.TypeA))
	if lost > 0 {
		return "some are lost"
	}
	return "none lost"
}

func trapManyRecords(t *testing.T, s *zoneserver.Server) string {
	var all []string
	for i := range 100 {
		all = append(all, fmt.Sprintf("%s 60 A 198.51.100.%d", host("many"), i))
	}
	if got := send(t, s, s.Operator(), insert(all...)); got != "NOERROR" {
		t.Fatalf("100 records: %s", got)
	}
	got := send(t, s, s.Operator(), insert(host("many")+" 60 A 198.51.100.100"), insert(host("many-beside")+" 60 A 192.0.2.1"))
	return got + ", " + counted(len(set(t, s, host("many"), dns.TypeA))-100+len(set(t, s, host("many-beside"), dns.TypeA)), 2)
}

// counted reports how much of a message was applied.
func counted(n, of int) string {
	switch n {
	case 0:
		return "nothing is applied"
	case of:
		return "all is applied"
	}
	return "the rest is applied"
}

func trapBigMessage(t *testing.T, s *zoneserver.Server) string {
	var all []string
	for i := range 500 {
		all = append(all, fmt.Sprintf("h%d.%s 60 A 192.0.2.1", i, host("big")))
	}
	got := send(t, s, s.Operator(), insert(all...))
	zone, err := s.Transfer()
	testutil.Must(t, err)
	there := 0
	for _, rr := range zone {
		if strings.HasSuffix(rr.Header().Name, "."+host("big")) {
			there++
		}
	}
	return got + ", " + counted(there, 500)
}

func trapNextTo(t *testing.T, s *zoneserver.Server, label, first, second string) string {
	name := host(label)
	send(t, s, s.Operator(), insert(name+" 60 "+first))
	got := send(t, s, s.Operator(), insert(name+" 60 "+second))
	data := append(set(t, s, name, dns.TypeA), set(t, s, name, dns.TypeCNAME)...)
	switch _, text, _ := strings.Cut(second, " "); {
	case len(data) != 1:
		return fmt.Sprintf("%s, holds %v", got, data)
	case data[0] == text:
		return got + ", replaces the first"
	}
	return got + ", dropped"
}

func trapTTL(t *testing.T, s *zoneserver.Server) string {
	name := host("ttl")
	send(t, s, s.Operator(), insert(name+" 60 A 192.0.2.1"))
	got := send(t, s, s.Operator(), insert(name+" 90 A 192.0.2.2"))
	zone, err := s.Transfer()
	testutil.Must(t, err)
	var ttls []uint32
	for _, rr := range among(zone, name, dns.TypeA) {
		ttls = append(ttls, rr.Header().Ttl)
	}
	if slices.Equal(ttls, []uint32{90, 90}) {
		return got + ", changes the whole set's"
	}
	return fmt.Sprintf("%s, TTLs %v", got, ttls)
}

// trapWrites writes a record for each name in one message. No key may write the last name.
func trapWrites(t *testing.T, s *zoneserver.Server, key zoneserver.Key, names ...string) string {
	var changes []string
	for _, name := range names {
		changes = append(changes, name+` 60 TXT "1"`)
	}
	got, applied := send(t, s, key, insert(changes...)), 0
	for _, name := range names {
		applied += len(set(t, s, name, dns.TypeTXT))
	}
	if last := names[len(names)-1]; len(set(t, s, last, dns.TypeTXT)) > 0 {
		t.Errorf("%s was written", last)
	}
	return got + ", " + counted(applied, len(names))
}

func trapSignatures(t *testing.T, s *zoneserver.Server) string {
	change := insert(host("signed") + " 60 A 192.0.2.1")
	wrong, unknown := s.Operator(), s.Operator()
	wrong.Secret = s.Edge().Secret
	unknown.Name = "nobody." + s.Zone()
	var out []string
	for _, c := range []struct {
		key  zoneserver.Key
		skew time.Duration
	}{{wrong, 0}, {unknown, 0}, {s.Operator(), 10 * time.Minute}} {
		answer, err := try(s, c.key, c.skew, change)
		testutil.Must(t, err)
		out = append(out, code(answer))
	}
	if got := set(t, s, host("signed"), dns.TypeA); len(got) > 0 {
		t.Errorf("%v was applied", got)
	}
	return strings.Join(out, ", ")
}

func trapIncrement(t *testing.T, s *zoneserver.Server) string {
	zone, err := s.Transfer()
	testutil.Must(t, err)
	soa := zone[0].(*dns.SOA)
	send(t, s, s.Operator(), insert(host("increment")+" 60 A 192.0.2.1"))
	conn, err := s.Dial()
	testutil.Must(t, err)
	defer conn.Close()
	key := s.Edge()
	m := new(dns.Msg).SetIxfr(s.Zone(), soa.Serial, soa.Ns, soa.Mbox)
	m.SetTsig(key.Name, dns.HmacSHA256, 300, time.Now().Unix())
	transfer := dns.Transfer{Conn: conn, TsigSecret: map[string]string{key.Name: key.Secret}, ReadTimeout: testutil.Patience()}
	envelopes, err := transfer.In(m, s.Addr().String())
	testutil.Must(t, err)
	var all []dns.RR
	for e := range envelopes {
		if e.Error != nil {
			t.Fatal(e.Error)
		}
		all = append(all, e.RR...)
	}
	if len(all) > 1 && all[1].Header().Rrtype == dns.TypeSOA {
		return "the change"
	}
	return "the whole zone"
}

// notification is what a server's NOTIFY has. The serial is 0 if it has none.
type notification struct {
	zone   string
	serial uint32
}

// notifications has the channel of each server's notifications.
var notifications sync.Map

// notified listens as a secondary does.
func notified(t *testing.T) (<-chan notification, netip.AddrPort) {
	t.Helper()
	received := make(chan notification, 10000)
	at := testutil.ServeBoth(t, func(w dns.ResponseWriter, m *dns.Msg) { // Knot notifies over TCP
		if m.Opcode == dns.OpcodeNotify && len(m.Question) == 1 {
			n := notification{zone: m.Question[0].Name}
			for _, rr := range m.Answer {
				if soa, ok := rr.(*dns.SOA); ok {
					n.serial = soa.Serial
				}
			}
			received <- n
			answer := new(dns.Msg).SetReply(m)
			answer.Authoritative = true
			_ = w.WriteMsg(answer)
		}
	})
	return received, netip.MustParseAddrPort(at)
}

// serialOf is the zone's serial now.
func serialOf(t *testing.T, s *zoneserver.Server) uint32 {
	t.Helper()
	zone, err := s.Transfer()
	if err != nil || len(zone) == 0 {
		t.Fatalf("%d records: %v", len(zone), err)
	}
	return zone[0].(*dns.SOA).Serial
}

// trapNotify makes two changes, one right after the other, and waits for the notification of each. TestTimingNotify has how soon they come.
func trapNotify(t *testing.T, s *zoneserver.Server) string {
	found, _ := notifications.Load(s)
	received := found.(<-chan notification)
	var out []string
	for i := range 2 {
		send(t, s, s.Operator(), insert(fmt.Sprintf("%s 60 A 192.0.2.%d", host("notify"), i)))
		changed := serialOf(t, s)
		for {
			n := testutil.Receive(t, received)
			if n.zone != s.Zone() {
				t.Errorf("notified of %s", n.zone)
			}
			// Notifications of earlier traps may come first: the serial shows that. Only PowerDNS's have none.
			if n.serial == 0 || n.serial-changed < 1<<31 {
				break
			}
		}
		out = append(out, "sent")
	}
	return strings.Join(out, "; ")
}
