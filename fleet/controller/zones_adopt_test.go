package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/controller/internal/zonefile"
	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// asController makes this test's program the controller.
const asController = "NEARDNS_TEST_AS_CONTROLLER"

func TestMain(m *testing.M) {
	if os.Getenv(asController) != "" {
		main()
	}
	os.Exit(m.Run())
}

// point is a place in a run at which the process is killed: at its nth message of a kind, before the server has it or after it has
// answered.
type point struct {
	update bool // an UPDATE; else a transfer
	n      int
	after  bool
}

func (p point) String() string {
	kind, when := "transfer", "before"
	if p.update {
		kind = "update"
	}
	if p.after {
		when = "after"
	}
	return fmt.Sprintf("%s %s %d", when, kind, p.n)
}

// relay passes a process's messages to the server, and stops at one point.
type relay struct {
	net.Listener
	server string

	mu      sync.Mutex
	stop    point
	seen    map[bool]int
	before  func(update int) // called before each UPDATE is passed on; nil: nothing
	reached chan struct{}    // the relay is at the point
	dropped chan struct{}    // closed by the test: the message's connection ends
}

func newRelay(t *testing.T, server string) *relay {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	r := &relay{Listener: l, server: server}
	r.arm(point{})
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go r.serve(conn)
		}
	}()
	return r
}

func (r *relay) arm(p point) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stop, r.seen, r.reached, r.dropped = p, map[bool]int{}, make(chan struct{}), make(chan struct{})
}

// note counts a message, and returns what halts the relay if it is to stop at it; else nil.
func (r *relay) note(wire []byte) (stop point, halt func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	update := wire[2]>>3&0xf == dns.OpcodeUpdate
	r.seen[update]++
	if update && r.before != nil {
		r.before(r.seen[update])
	}
	if r.stop.n != r.seen[update] || r.stop.update != update {
		return r.stop, nil
	}
	reached, dropped := r.reached, r.dropped
	return r.stop, func() {
		close(reached)
		<-dropped
	}
}

// count returns how many messages came since the relay was armed.
func (r *relay) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[false] + r.seen[true]
}

func (r *relay) interfere(before func(update int)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before = before
}

func (r *relay) serve(conn net.Conn) {
	defer conn.Close()
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return
	}
	wire := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(conn, wire); err != nil {
		return
	}
	stop, halt := r.note(wire)
	if halt != nil && !stop.after {
		halt()
		return
	}
	server, err := net.Dial("tcp", r.server) //nolint:noctx // it ends with the server
	if err != nil {
		return
	}
	defer server.Close()
	_, _ = server.Write(append(size[:], wire...))
	if halt != nil {
		_, _ = io.ReadFull(server, size[:]) // the server has made it
		halt()
		return
	}
	go func() { // BIND keeps a connection that its client does not close, and takes no more than 150
		_, _ = io.Copy(io.Discard, conn)
		server.Close()
	}()
	_, _ = io.Copy(conn, server)
}

// adoption is a zone of external-dns' on a real server, and the command that adopts it.
type adoption struct {
	*testing.T
	server *zoneserver.Server
	relay  *relay
	client *rfc2136.Client
	folder string
	serial uint32   // of the last look
	before []string // the zone's records
}

func newAdoption(t *testing.T, kind zoneserver.Kind, hosts int) *adoption {
	t.Helper()
	var lines []string
	const heritage = `TXT "heritage=external-dns,external-dns/owner=default,external-dns/resource=service/shop/h"`
	for i := range hosts {
		lines = append(lines, fmt.Sprintf("h%d %d A 10.1.%d.%d", i, i%3*60, i/256, i%256), fmt.Sprintf("a-h%d 0 %s", i, heritage))
		if i%10 == 0 { // and as older versions wrote it
			lines = append(lines, fmt.Sprintf("h%d 60 AAAA 2001:db8::%x", i, i+1), fmt.Sprintf("aaaa-h%d 0 %s", i, heritage))
			lines = append(lines, fmt.Sprintf("h%d 0 %s", i, heritage))
		}
	}
	lines = append(lines, "www 60 CNAME h1", "cname-www 0 "+heritage, "mine 60 A 192.0.2.99")
	s := zoneserver.Start(t, kind, zoneserver.Config{Records: lines})
	key := rfc2136.Key{Name: s.Operator().Name, Algorithm: dns.HmacSHA256, Secret: s.Operator().Secret}
	a := &adoption{T: t, server: s, relay: newRelay(t, s.Addr().String()), folder: t.TempDir(),
		client: &rfc2136.Client{Server: s.Addr().String(), Zone: s.Zone(), Key: func() (rfc2136.Key, error) { return key, nil }}}
	testutil.Must(t, os.WriteFile(a.path("zone.yaml"), fmt.Appendf(nil, `apiVersion: neardns.io/v1alpha1
kind: DNSZone
metadata: {name: shared}
spec:
  zone: %s
  primary: %s
  tsig: {secretName: key}
  publishers: [{namespaces: ["*"], hosts: ["*.%[1]s"], targets: [0.0.0.0/0, "::/0"]}]
---
apiVersion: v1
kind: Secret
metadata: {name: key, namespace: neardns-zones}
stringData: {name: %[3]s, secret: %s}
`, strings.TrimSuffix(s.Zone(), "."), a.relay.Addr(), strings.TrimSuffix(key.Name, "."), key.Secret), 0o600))
	a.before = a.lines()
	return a
}

func (a *adoption) path(name string) string { return filepath.Join(a.folder, name) }

// lines are the zone's records, sorted, without the SOA.
func (a *adoption) lines() (all []string) {
	a.Helper()
	var rrs []dns.RR
	testutil.Eventually(a, func() (err error) {
		rrs, err = a.server.Transfer()
		return err
	})
	for _, rr := range rrs {
		if rr.Header().Rrtype != dns.TypeSOA {
			all = append(all, rr.String())
		}
	}
	slices.Sort(all)
	return all
}

// minus are the lines of one that are not in other.
func minus(one, other []string) []string {
	have := map[string]bool{}
	for _, l := range other {
		have[l] = true
	}
	return slices.DeleteFunc(slices.Clone(one), func(l string) bool { return have[l] })
}

// others reports whether a record is of those that another program deletes.
func others(line string) bool {
	return strings.HasSuffix(line, "\t10.1.0.77") || strings.HasSuffix(line, "\t10.1.0.177") || strings.HasSuffix(line, "\t10.1.200.1")
}

func (a *adoption) start(more ...string) (*testutil.Process, *bytes.Buffer) {
	a.Helper()
	self, err := os.Executable()
	testutil.Must(a, err)
	args := []string{"zones", "adopt", "--file", a.path("zone.yaml"), "--export", a.path("export.json"),
		"--from", "external-dns", "--owner", "default", "--interval", "50ms"}
	cmd := exec.CommandContext(a.Context(), self, append(args, more...)...)
	cmd.Env = append(os.Environ(), asController+"=1")
	out := new(bytes.Buffer)
	cmd.Stdout = out
	return testutil.StartHere(a, cmd), out
}

// kill runs the command and kills it at a point; false if it ended before.
func (a *adoption) kill(at point, more ...string) bool {
	a.Helper()
	a.relay.arm(at)
	p, _ := a.start(more...)
	defer close(a.relay.dropped)
	if !a.reached(p, at) {
		a.Logf("%s: ended by itself: %s", at, p.Output())
		return false
	}
	p.Kill()
	a.look()
	a.served()
	return true
}

// reached waits until the process is at the relay's point; false if it ends before. Each message has Patience, because a server writes
// hundreds of changes to the disk one by one; but there are at most five messages for each record.
func (a *adoption) reached(p *testutil.Process, what any) bool {
	a.Helper()
	for before, now := -1, 0; now > before && now < 5*len(a.before); now = a.relay.count() {
		before = now
		select {
		case <-a.relay.reached:
			return true
		case <-p.Exited():
			return false
		case <-testutil.Context(a).Done():
		}
	}
	a.Fatalf("%v: neither reached nor ended after %d messages: %s", what, a.relay.count(), p.Output())
	return false
}

// run runs the command to its end.
func (a *adoption) run(code int, want string, more ...string) string {
	a.Helper()
	a.relay.arm(point{})
	p, out := a.start(more...)
	a.reached(p, more)
	a.look()
	if have := p.Cmd.ProcessState.ExitCode(); have != code || !strings.Contains(p.Output(), want) {
		a.Fatalf("%v ends with %d, want %d and %q: %s", more, have, code, want, p.Output())
	}
	return out.String()
}

// served fails if an address of before is gone, other than the one that another program changed.
func (a *adoption) served() {
	a.Helper()
	for _, l := range minus(a.before, a.lines()) {
		if !strings.Contains(l, "\tTXT\t") && !others(l) {
			a.Errorf("not served: %s", l)
		}
	}
}

// look reads each change of the zone since the last look: none deletes an address, but that other program's.
func (a *adoption) look() {
	a.Helper()
	var t *rfc2136.Transfer
	testutil.Eventually(a, func() (err error) { // a server may be busy
		t, err = a.client.IXFR(a.Context(), a.serial)
		return err
	})
	a.serial = t.Serial
	deleted := []dns.RR{}
	for _, d := range t.Steps {
		deleted = append(deleted, d.Deleted...)
	}
	if len(t.Full) > 0 {
		var now []string
		for _, rr := range t.Full {
			now = append(now, rr.String())
		}
		for _, l := range minus(a.before, now) {
			rr, _ := dns.NewRR(l)
			deleted = append(deleted, rr)
		}
	}
	for _, rr := range deleted {
		if t := rr.Header().Rrtype; t != dns.TypeTXT && t != dns.TypeSOA && !others(rr.String()) {
			a.Errorf("at serial %d: gone: %s", a.serial, rr)
		}
	}
}

func (a *adoption) foreign(del, add string) {
	a.Helper()
	var changes []dns.RR
	for text, class := range map[string]uint16{del: dns.ClassNONE, add: dns.ClassINET} {
		if text == "" {
			continue
		}
		rr, err := dns.NewRR(text)
		testutil.Must(a, err)
		if rr.Header().Class = class; class == dns.ClassNONE {
			rr.Header().Ttl = 0
		}
		changes = append(changes, rr)
	}
	testutil.Eventually(a, func() error { return a.client.Update(a.Context(), nil, changes) })
}

// TestAdopt: 1,000 hosts of external-dns (100 on PowerDNS) are adopted and restored by a process that kill -9 ends many times: no address
// is ever gone, a foreign write is reported and stays, and undo restores all else.
func TestAdopt(t *testing.T) {
	testutil.RequireRoot(t)
	for kind, hosts := range map[zoneserver.Kind]int{zoneserver.BIND: 1000, zoneserver.Knot: 1000, zoneserver.PowerDNS: 100} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			zoneserver.Require(t, kind)
			a := newAdoption(t, kind, hosts)
			serial, err := a.client.Serial(a.Context())
			testutil.Must(t, err)
			a.serial = serial
			a.adopt(hosts)
			a.undo(hosts)
		})
	}
}

func (a *adoption) adopt(hosts int) {
	if !a.kill(point{n: 1}) || !a.kill(point{n: 1, after: true}) {
		a.Fatal("the export was not interrupted")
	}
	manifests := a.run(cli.Good, fmt.Sprintf("%d hosts are exported", hosts))
	f, err := zonefile.Parse([]byte(testutil.ReadFile(a, a.path("zone.yaml")) + manifests))
	if err != nil || len(f.Records) != hosts {
		a.Fatalf("DNSRecords: %v", err)
	}
	for k, r := range f.Plan.Records {
		if !r.Good() {
			a.Fatalf("DNSRecord %s: %+v", k, r)
		}
	}
	// external-dns still writes: nothing is taken.
	a.foreign("", "h5."+a.server.Zone()+" 120 A 10.1.200.1") // the TTL of the set, which has one
	a.run(cli.Failed, "still writes", "--interval", "1h")
	a.foreign("h5."+a.server.Zone()+" 120 A 10.1.200.1", "")
	a.run(cli.Failed, "still writes", "--interval", "1h")
	a.served()

	for _, p := range []point{{n: 1}, {n: 2, after: true}} {
		if !a.kill(p, "--interval", "20s") {
			a.Errorf("rest: not killed %s", p)
		}
	}
	if n := len(minus(a.before, a.lines())); n > 0 {
		a.Fatalf("%d records were taken before the rest", n)
	}
	// Killed before and after messages, from the first to the last one; meanwhile another program changes a host.
	a.relay.interfere(func(update int) {
		if update == 7 {
			a.foreign("h77."+a.server.Zone()+" 120 A 10.1.0.77", "h77."+a.server.Zone()+" 120 A 10.1.0.177")
		}
	})
	for _, p := range []point{{true, 1, false}, {true, 1, true}, {true, 2, false}, {true, 9, true},
		{true, hosts / 4, false}, {true, hosts / 5, true}} {
		if !a.kill(p) {
			a.Errorf("not killed %s", p)
		}
	}
	a.relay.interfere(nil)
	for a.kill(point{true, hosts / 6, true}) {
	}
	if e, _ := os.ReadFile(a.path("export.json")); !a.kill(point{n: 2}, "--interval", "20s") || !bytes.Contains(e, []byte(`"verifying"`)) {
		a.Errorf("verify: not killed, or not the step: %.300s", e)
	}
	a.run(cli.Failed, "h77."+a.server.Zone()+" was changed", "--interval", "1ms")
	// external-dns writes after that: it is reported, and stays.
	back := `a-h3.` + a.server.Zone() + ` 0 TXT "heritage=external-dns,external-dns/owner=default,external-dns/resource=service/shop/h"`
	a.foreign("", back)
	a.run(cli.Failed, "h3."+a.server.Zone()+" still has its registry records, or has them again", "--interval", "1ms")
	a.foreign(back, "")
	for _, l := range a.lines() {
		registry := strings.Contains(l, "heritage=") && !strings.HasPrefix(l, "cname-www.") && !strings.HasPrefix(l, "a-h77.")
		if registry {
			a.Errorf("not taken: %s", l)
		}
	}
	a.served()
}

// undo restores the hosts; the host that another program changed only when its change is gone.
func (a *adoption) undo(hosts int) {
	for _, p := range []point{{false, 1, true}, {true, 1, false}, {true, 1, true}, {true, hosts / 3, false}, {true, hosts / 4, true}} {
		if !a.kill(p, "--undo") {
			a.Errorf("undo: not killed %s", p)
		}
	}
	a.run(cli.Failed, "h77."+a.server.Zone()+" was changed", "--undo")
	a.foreign("h77."+a.server.Zone()+" 120 A 10.1.0.177", "h77."+a.server.Zone()+" 120 A 10.1.0.77")
	a.run(cli.Good, "", "--undo")
	after := a.lines()
	if gone, more := minus(a.before, after), minus(after, a.before); len(gone)+len(more) > 0 {
		a.Errorf("undo: gone %q, more %q", gone, more)
	}
	a.run(cli.Failed, "this adoption is undone")
}
