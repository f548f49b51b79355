package zonefile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/fleet/zones/adopt"
	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// primary serves a zone of these lines. It accepts the given number of updates without applying them, and refuses the others.
func primary(t *testing.T, updates int, lines ...string) *View {
	t.Helper()
	soa, _ := dns.NewRR("example.org. 60 IN SOA ns hostmaster 1 60 60 60 60")
	all := []dns.RR{soa}
	for _, line := range lines {
		rr, err := dns.NewRR(line)
		testutil.Must(t, err)
		all = append(all, rr)
	}
	return &View{client: &rfc2136.Client{Zone: "example.org.", Dial: testutil.Piped(func(c *dns.Conn, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if q.Opcode != dns.OpcodeUpdate {
			m.Answer = slices.Concat(all, []dns.RR{soa})
		} else if updates--; updates < 0 {
			m.Rcode = dns.RcodeRefused
		}
		_ = c.WriteMsg(m)
	})}}
}

// adoption returns an adoption at a step, of the hosts h00, h01 and so on, its export and its output.
func adoption(t *testing.T, step adopt.Step, hosts int) (Adoption, *adopt.Export, *bytes.Buffer) {
	t.Helper()
	out := &bytes.Buffer{}
	a := Adoption{Export: t.TempDir() + "/adopted.json", Registry: adopt.Registry{From: adopt.ExternalDNS, Owner: "me"},
		Interval: time.Minute, Out: out, Log: &bytes.Buffer{}}
	e := &adopt.Export{Registry: a.Registry, Zone: "example.org.", Step: step}
	for i := range hosts {
		name := fmt.Sprintf("h%02d.example.org.", i)
		e.Hosts = append(e.Hosts, adopt.Host{Name: name, Records: []string{name + " 60 A 192.0.2.1"},
			Registry: []string{"a-" + name + ` 60 TXT "heritage=external-dns,external-dns/owner=me"`}})
	}
	testutil.Must(t, a.save(e))
	return a, e, out
}

// Two runs of one export do not work against each other.
func TestAdoptLocks(t *testing.T) {
	a, _, _ := adoption(t, adopt.Verifying, 1)
	v := primary(t, 0, "h00.example.org. 60 IN A 192.0.2.1")
	lock, err := os.Create(a.Export + ".lock")
	testutil.Must(t, err)
	testutil.Must(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	for _, a.Undo = range []bool{false, true} {
		testutil.WantError(t, v.Adopt(t.Context(), a), "another run uses it")
	}
	testutil.Must(t, lock.Close())
	if a.Undo = false; v.Adopt(t.Context(), a) != nil {
		t.Error("the lock outlives its run")
	}
}

// A host that another program changed does not keep the DNSRecords of the others from the user.
func TestAdoptForeign(t *testing.T) {
	a, _, out := adoption(t, adopt.Verifying, 2)
	v := primary(t, 0, "h00.example.org. 60 IN A 192.0.2.1", "h01.example.org. 60 IN A 192.0.2.9")
	if err := v.Adopt(t.Context(), a); !errors.Is(err, adopt.ErrForeign) {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, `"h00.example.org"`) || strings.Contains(text, "h01") {
		t.Errorf("%q", text)
	}
}

// If the server refuses an update, the file has how far the adoption came.
func TestAdoptRefused(t *testing.T) {
	a, e, _ := adoption(t, adopt.Taking, 60)
	v := primary(t, 2)
	var updates []adopt.Update
	for i := range e.Hosts {
		updates = append(updates, adopt.Update{Host: i})
	}
	if _, err := v.send(t.Context(), a, e, updates); err == nil || rfc2136.Unsure(err) {
		t.Fatal(err)
	}
	data, err := atomicfile.Read(a.Export, maxExport)
	testutil.Must(t, err)
	if saved, err := adopt.Decode(data); err != nil || saved.Taken != 2 {
		t.Errorf("%v, %d taken", err, saved.Taken)
	}
}
