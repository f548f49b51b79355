package adopt

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
)

var start = time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)

const interval = time.Minute

// The steps of an adoption that nothing disturbs: what the zone has after each, how long each waits, and that undo restores all.
func TestSteps(t *testing.T) {
	p := newPrimary(t, two...)
	before := p.lines()
	e := exported(t, p)
	now := start
	for _, want := range []struct {
		after   time.Duration
		step    Step
		updates int
		wait    time.Duration
		done    bool
	}{
		{0, Resting, 0, 15 * time.Second, false},
		{119 * time.Second, Resting, 0, time.Second, false},
		{time.Second, Taking, 2, 0, false},
		{0, Verifying, 0, 15 * time.Second, false},
		{time.Minute, Verifying, 0, 15 * time.Second, false},
		{time.Minute, Verified, 0, 0, true},
		{time.Hour, Verified, 0, 0, true},
	} {
		now = now.Add(want.after)
		a, err := e.Next(p.read(), now, interval)
		same := e.Step == want.step && len(a.Updates) == want.updates && a.Wait == want.wait && a.Done == want.done
		if err != nil || !same || len(a.Foreign) > 0 {
			t.Fatalf("want %+v, have step %s, %+v, %v", want, e.Step, a, err)
		}
		for _, u := range a.Updates {
			if !p.update(u) {
				t.Fatalf("%+v is refused", u)
			}
			e.Sent(u)
		}
	}
	gone := []string{"a-app.example.org. 0 TXT", "aaaa-app.example.org. 0 TXT", `shop.example.org. 60 TXT "heritage`}
	if after := p.lines(); !slices.Equal(after, without(before, gone...)) {
		t.Errorf("taken:\n%s", strings.Join(after, "\n"))
	}
	a, err := e.Undo(p.read())
	if err != nil || len(a.Updates) != 2 || a.Done {
		t.Fatalf("undo: %+v, %v", a, err)
	}
	p.take(a)
	if a, err = e.Undo(p.read()); err != nil || !a.Done {
		t.Errorf("undo again: %+v, %v", a, err)
	}
	if after := p.lines(); !slices.Equal(after, before) {
		t.Errorf("undone:\n%s", strings.Join(after, "\n"))
	}
	if _, err := e.Next(p.read(), now, interval); !errors.Is(err, ErrUndone) {
		t.Errorf("after undo: %v", err)
	}
}

// advance goes on until the export has a step, undisturbed; of Taking, nothing is sent yet. It returns the time two intervals later.
func advance(t *testing.T, p *primary, e *Export, step Step) time.Time {
	t.Helper()
	for now := start; ; now = now.Add(Intervals * interval) {
		a, err := e.Next(p.read(), now, interval)
		testutil.Must(t, err)
		if e.Step == step {
			return now.Add(Intervals * interval)
		}
		for _, u := range a.Updates {
			p.update(u)
			e.Sent(u)
		}
	}
}

// Another program writes at each step: the command refuses, reports it, or has nothing to do with it.
func TestForeignWrites(t *testing.T) {
	const shop, app = "shop.example.org.", "app.example.org."
	for name, tt := range map[string]struct {
		at       Step
		del, add []string
		want     string // in a line of what is reported
		updates  int    // of the next look
	}{
		"an address changes before": {Resting, []string{"shop 0 A 192.0.2.3"}, []string{"shop 0 A 192.0.2.4"},
			"+ " + shop + " 0 A 192.0.2.4", 0},
		"a TTL changes before":        {Resting, nil, []string{"shop 5 A 192.0.2.3"}, "+ " + shop + " 5 A 192.0.2.3", 0},
		"a host is new before":        {Resting, nil, []string{"new 5 A 192.0.2.3", "a-new 0 TXT " + mine}, "+ new.example.org. 5 A", 0},
		"a host's registry goes":      {Resting, []string{"shop 60 TXT " + mine}, nil, "- " + shop + " 60 TXT", 0},
		"another owner's host before": {Resting, []string{"mail 60 A 192.0.2.9"}, nil, "", 2},
		"an address changes meanwhile": {Taking, []string{"shop 0 A 192.0.2.3"}, []string{"shop 0 A 192.0.2.4"},
			shop + " was changed: - " + shop + " 0 A 192.0.2.3", 1},
		"an address more":              {Taking, nil, []string{"shop 0 A 192.0.2.4"}, shop + " was changed: + " + shop + " 0 A 192.0.2.4", 1},
		"a host goes":                  {Taking, []string{"shop 0 A 192.0.2.3"}, nil, shop + " was changed: - shop", 1},
		"an address of another type":   {Taking, nil, []string{"shop 0 AAAA 2001:db8::5"}, "", 2},
		"the registry comes back":      {Verifying, nil, []string{"a-app 0 TXT " + mine}, app + " was changed: - aaaa-app", 0},
		"all of it":                    {Verifying, nil, []string{"shop 60 TXT " + mine}, shop + " still has its registry records", 0},
		"the registry in the new form": {Verifying, nil, []string{"a-shop 0 TXT " + mine}, shop + " was changed: - " + shop + " 60 TXT", 0},
		"an address goes later": {Verifying, []string{"app 300 A 192.0.2.1"}, nil,
			app + " was changed: - " + app + " 300 A 192.0.2.1", 0},
		"a text of a person's": {Verifying, []string{`shop 60 TXT "v=spf1 -all"`}, nil, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPrimary(t, two...)
			e := exported(t, p)
			now := advance(t, p, e, tt.at)
			p.edit(tt.del, tt.add)
			a, err := e.Next(p.read(), now, interval)
			want := map[Step]error{Resting: ErrWrites, Verifying: ErrForeign}[tt.at]
			if tt.want == "" {
				want = nil
			}
			if !errors.Is(err, want) || len(a.Updates) != tt.updates {
				t.Errorf("%v, %+v", err, a)
			}
			if all := strings.Join(a.Foreign, "\n"); !strings.Contains(all, tt.want) || (tt.want == "") != (all == "") {
				t.Errorf("reported: %s", all)
			}
			if !errors.Is(want, ErrWrites) {
				return
			}
			// The export has what is new, and the rest begins again.
			if a, err := e.Next(p.read(), now, interval); err != nil || len(a.Updates) > 0 {
				t.Errorf("after it: %v, %+v", err, a)
			}
			if a, err := e.Next(p.read(), now.Add(2*interval), interval); err != nil || len(a.Updates) != len(e.Hosts) {
				t.Errorf("after its rest: %v, %+v", err, a)
			}
		})
	}
}

// Hosts that clusters publish change by their own; undo waits until they are left, whether that left the addresses or not.
func TestPublished(t *testing.T) {
	for name, adopted := range map[string]bool{"without adopt": false, "with adopt": true} {
		t.Run(name, func(t *testing.T) {
			p := newPrimary(t, two...)
			before := p.lines()
			e := exported(t, p)
			now := advance(t, p, e, Verifying)
			for _, h := range e.Hosts {
				p.publish(h.Name, adopted, h.addresses())
			}
			if a, err := e.Next(p.read(), now, interval); err != nil || !a.Done {
				t.Errorf("published: %v, %+v", err, a)
			}
			a, err := e.Undo(p.read())
			if !errors.Is(err, ErrForeign) || len(a.Foreign) != 2 || !strings.Contains(a.Foreign[0], "is published by aaaaaaaa") {
				t.Errorf("undone while published: %v, %+v", err, a)
			}
			for _, h := range e.Hosts {
				p.publish(h.Name, adopted, nil)
			}
			if left := p.set("app.example.org.", dns.TypeA); (len(left) == 0) != adopted {
				t.Fatalf("left by the cluster: %v", left)
			}
			if a, err = e.Undo(p.read()); err != nil || len(a.Updates) != 2 {
				t.Fatalf("undo: %v, %+v", err, a)
			}
			p.take(a)
			if after := p.lines(); !slices.Equal(after, before) {
				t.Errorf("undone: %v", differences(before, after))
			}
		})
	}
}

// publish does what a cluster does that publishes a host, or leaves it. Its changes also delete whole RRsets.
func (p *primary) publish(host string, adopted bool, addresses []netip.Addr) {
	me := zone.Writer{Identity: zone.Identity{Cluster: "aaaaaaaa", Instance: "a"}}
	want := zone.Publication{Host: host, Strategy: zone.Simple, TTL: 60, Adopt: adopted, Addresses: addresses}
	for _, rr := range p.read().Plan(me, zone.Memory{}, want.Normal()).Message.Changes {
		if h := rr.Header(); h.Class == dns.ClassANY {
			for _, k := range p.set(dns.CanonicalName(h.Name), h.Rrtype) {
				delete(p.sets, k)
			}
			continue
		}
		p.update(Update{Changes: []dns.RR{rr}})
	}
}

// Undo restores TTLs, and keeps records that another program wrote.
func TestUndo(t *testing.T) {
	for name, tt := range map[string]struct {
		del, add []string
		foreign  bool
	}{
		"another TTL":        {nil, []string{"shop 77 A 192.0.2.3"}, false},
		"no address":         {[]string{"shop 0 A 192.0.2.3"}, nil, false},
		"another address":    {[]string{"shop 0 A 192.0.2.3"}, []string{"shop 0 A 192.0.2.4"}, true},
		"one more":           {nil, []string{"shop 0 A 192.0.2.4"}, true},
		"a CNAME":            {[]string{"shop 0 A 192.0.2.3"}, []string{"shop 0 CNAME app"}, true},
		"of another type":    {[]string{"shop 0 A 192.0.2.3"}, []string{"shop 0 AAAA 2001:db8::9"}, true},
		"another registry's": {nil, []string{"a-shop 0 TXT " + mine}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPrimary(t, two...)
			before := p.lines()
			e := exported(t, p)
			for i := range e.Hosts {
				p.update(e.take(p.read(), i))
			}
			p.edit(tt.del, tt.add)
			a, _ := e.Undo(p.read())
			if (len(a.Foreign) == 1) != tt.foreign || len(a.Updates)+len(a.Foreign) != 2 {
				t.Fatalf("%+v", a)
			}
			p.take(a)
			if after := p.lines(); !tt.foreign && !slices.Equal(after, before) {
				t.Errorf("%v", differences(before, after))
			}
			if a, err := e.Undo(p.read()); !a.Done || errors.Is(err, ErrForeign) != tt.foreign {
				t.Errorf("again: %+v, %v", a, err)
			}
		})
	}
}

// An export is what this program wrote: others are refused, and none makes it fail.
func FuzzDecode(f *testing.F) {
	p := newPrimary(f, two...)
	data, _ := exported(f, p).Encode()
	f.Add(data)
	f.Add(bytes.Replace(data, []byte("heritage"), []byte("x"), 1))
	f.Add([]byte(`{"from": "kuadrant", "step": "taking", "taken": 1, "hosts": [{"host": "x"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := Decode(data)
		if err != nil {
			return
		}
		p := &primary{t, p.sets}
		for range 3 {
			if _, err := e.Next(p.read(), start, 0); err != nil {
				break
			}
		}
		_, _ = e.Undo(p.read())
	})
}

func TestDecodeRefuses(t *testing.T) {
	data, _ := exported(t, newPrimary(t, two...)).Encode()
	for from, to := range map[string]string{`"taken": 0`: `"taken": 9`, `"exported"`: `"begun"`, `"left"`: `"right"`, "192.0.2.1": "192.0.2",
		`"owner": "me"`: `"owner": ""`} {
		if !bytes.Contains(data, []byte(from)) {
			t.Fatalf("no %s in %s", from, data)
		}
		if _, err := Decode(bytes.Replace(data, []byte(from), []byte(to), 1)); err == nil {
			t.Errorf("%s is taken", to)
		}
	}
}

// A write that comes between the look at the zone and the message makes the server refuse it.
func TestPrerequisites(t *testing.T) {
	// An address of a type that the export does not have refuses only what restores the host.
	const another = "shop 60 AAAA 2001:db8::7"
	for _, line := range []string{"app 300 A 192.0.2.7", "app 300 AAAA 2001:db8::7", `a-app 0 TXT "x"`, `aaaa-app 0 TXT "x"`, another} {
		p := newPrimary(t, two...)
		e, rr, host := exported(t, p), records(t, line)[0], 0
		if line == another {
			host = 1
		}
		u := e.take(p.read(), host)
		p.sets[key(rr)] = rr
		if p.update(u) != (line == another) {
			t.Errorf("%s: taken: %t", line, line != another)
		}
		delete(p.sets, key(rr))
		if line != another && !p.update(u) {
			t.Errorf("%s: not taken", line)
		}
		u = e.restore(p.read(), host)
		p.sets[key(rr)] = rr
		if p.update(u) {
			t.Errorf("%s: restored", line)
		}
	}
}

// A host that a cluster publishes next to the other controller has the cluster's addresses, which must not be exported as the other's.
func TestPublishedBefore(t *testing.T) {
	p := newPrimary(t, two...)
	host := exported(t, p).Hosts[1]
	p.publish(host.Name, true, host.addresses())
	e := exported(t, p)
	const reason = "published by aaaaaaaa: delete its DNSRecord first"
	if len(e.Hosts) != 1 || len(e.Left) != 1 || e.Left[0].Reason != reason {
		t.Errorf("%+v, left %+v", e.Hosts, e.Left)
	}
	p.publish(e.Hosts[0].Name, true, e.Hosts[0].addresses())
	_, err := New(e.Registry, p.read(), start)
	if err == nil || !strings.Contains(err.Error(), "example.org.: neardns already publishes all 2 hosts of external-dns") ||
		!strings.HasSuffix(err.Error(), reason) {
		t.Errorf("each has a publisher: %v", err)
	}
}

// The hosts that another program changed are in Changed at the end.
func TestChanged(t *testing.T) {
	p := newPrimary(t, two...)
	e := exported(t, p)
	now := advance(t, p, e, Verifying)
	p.edit(nil, []string{"shop 0 A 192.0.2.4", "a-app 0 TXT " + mine, "aaaa-app 0 TXT " + mine})
	a, err := e.Next(p.read(), now, interval)
	if !errors.Is(err, ErrForeign) || !a.Changed["shop.example.org."] || !a.Changed["app.example.org."] {
		t.Errorf("%v, %+v", err, a)
	}
}
