package secondary

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestFollow: whole, then by steps, whole again where steps do not fit or the zone was restored, kept while the primary is away.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := &primary{now: version(1, "a"), steps: map[uint32]*rfc2136.Transfer{}}, &served{}
		c := New(quiet, zone, filepath.Join(t.TempDir(), "z.zone"), p, s.serve)
		if c.State().Records != 0 || s.n != 0 {
			t.Fatal("served before it was read")
		}
		defer run(t, c)()
		sleep(time.Second)
		s.check(t, "first", version(1, "a"))
		change := func(when string, within time.Duration, f func(*primary)) {
			t.Helper()
			p.set(f)
			sleep(within)
			p.mu.Lock()
			want := p.now
			p.mu.Unlock()
			s.check(t, when, want)
		}
		change("by steps", pollMost, func(p *primary) {
			p.now, p.asked = version(3, "b", "c"), nil
			p.steps[1] = &rfc2136.Transfer{Serial: 3, Steps: []rfc2136.Delta{
				{From: 1, To: 2, SOA: soa(2), Added: []dns.RR{rr("b." + zone + " 60 IN A 192.0.2.1")}},
				{From: 2, To: 3, SOA: soa(3), Deleted: []dns.RR{rr("A." + zone + " 30 IN A 192.0.2.1")}, Added: []dns.RR{rr("c." + zone + " 60 IN A 192.0.2.1")}}}}
		})
		p.set(func(p *primary) {
			if slices.Contains(p.asked, "axfr") {
				t.Errorf("asked %v for steps", p.asked)
			}
		})
		change("steps that do not fit", pollMost, func(p *primary) {
			p.now = version(4, "d")
			p.steps[3] = &rfc2136.Transfer{Serial: 4, Steps: []rfc2136.Delta{{From: 3, To: 4, SOA: soa(4), Deleted: []dns.RR{rr("x." + zone + " 60 IN A 192.0.2.1")}}}}
		})
		change("steps with a gap", pollMost, func(p *primary) {
			p.now = version(6, "e")
			p.steps[4] = &rfc2136.Transfer{Serial: 6, Steps: []rfc2136.Delta{{From: 5, To: 6, SOA: soa(6)}}}
		})
		change("what is there already", pollMost, func(p *primary) {
			p.now = version(7, "f")
			p.steps[6] = &rfc2136.Transfer{Serial: 7, Steps: []rfc2136.Delta{{From: 6, To: 7, SOA: soa(7), Added: []dns.RR{rr("e." + zone + " 60 IN A 192.0.2.1")}}}}
		})
		change("restored from a backup", pollMost, func(p *primary) { p.now = version(2, "old") })
		last := version(2, "old")
		p.set(func(p *primary) { p.fails = errors.New("away") })
		sleep(24 * time.Hour)
		s.check(t, "away for a day", last)
		if age := time.Since(c.State().Current); age < 24*time.Hour-10*time.Second || c.State().Fault == "" {
			t.Errorf("age %s, fault %q after a day", age, c.State().Fault)
		}
		change("back", retryMost, func(p *primary) { p.fails, p.now = nil, version(9, "back") })
		if age := time.Since(c.State().Current); age > retryMost || c.State().Fault != "" {
			t.Errorf("age %s, fault %q", age, c.State().Fault)
		}
		p.set(func(p *primary) { p.now = version(10, "told") })
		c.Notify()
		sleep(lookRest) // at once, but for the rest after a look
		s.check(t, "notified", version(10, "told"))
	})
}

// TestRestored: a primary that comes back from a backup may reach the serial that the copy has before the copy's next query. What it then
// answers about changes since that serial is of another history, and fits all the same. The same is true of a copy that was restarted
// meanwhile.
func TestRestored(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarted=%v", restarted), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, s := &primary{now: version(5, "a", "dead"), steps: map[uint32]*rfc2136.Transfer{}}, &served{}
				file := filepath.Join(t.TempDir(), "z.zone")
				c := New(quiet, zone, file, p, s.serve)
				stop := run(t, c)
				sleep(time.Second)
				s.check(t, "first", p.now)
				p.set(func(p *primary) { p.fails = &rfc2136.Error{Kind: rfc2136.Unreachable, Err: errors.New("away")} })
				sleep(time.Minute)
				s.check(t, "away", version(5, "a", "dead"))
				if restarted {
					stop()
				}
				p.set(func(p *primary) {
					p.fails, p.now, p.asked = nil, version(7, "a", "b"), nil
					p.steps[5] = &rfc2136.Transfer{Serial: 7, Steps: []rfc2136.Delta{{From: 5, To: 7, SOA: soa(7), Added: []dns.RR{rr("b." + zone + " 60 IN A 192.0.2.1")}}}}
				})
				if restarted {
					c = New(quiet, zone, file, p, s.serve)
					stop = run(t, c)
				}
				defer stop()
				sleep(retryMost + pollMost) // and a look after it
				s.check(t, "back", p.now)
				p.set(func(p *primary) {
					if n := len(p.asked); n < 2 || p.asked[0] != "axfr" || slices.Contains(p.asked[1:], "axfr") {
						t.Errorf("asked %v, want one transfer", p.asked)
					}
				})
			})
		})
	}
}

// TestAnotherHistory: a primary that was restored between two looks, and brought to the copy's serial by others' writes before the second,
// is distinguished by a whole transfer from time to time, and not in between.
func TestAnotherHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := &primary{now: version(5, "a", "dead")}, &served{}
		c := New(quiet, zone, filepath.Join(t.TempDir(), "z.zone"), p, s.serve)
		defer run(t, c)()
		sleep(time.Second)
		p.set(func(p *primary) { p.now, p.asked = version(5, "a"), nil })
		sleep(wholeMost / 2)
		s.check(t, "soon", version(5, "a", "dead"))
		p.set(func(p *primary) {
			if slices.Contains(p.asked, "axfr") {
				t.Error("transferred whole, and nothing had changed")
			}
		})
		sleep(wholeMost)
		s.check(t, "later", version(5, "a"))
	})
}

// TestFollowAnother: a copy that is given another primary transfers the zone whole from it, also where the serials are one and the old
// primary hangs; until then it serves what it has, again.
func TestFollowAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, s := &hanging{primary: primary{now: version(5, "a")}}, &served{}
		c := New(quiet, zone, filepath.Join(t.TempDir(), "z.zone"), old, s.serve)
		c.Follow(old) // no check runs yet
		defer run(t, c)()
		sleep(time.Second)
		s.check(t, "first", version(5, "a"))
		old.hangs.Store(true)
		sleep(3 * time.Second)
		next := &primary{now: version(5, "b"), fails: errors.New("away")}
		before := s.n
		c.Follow(next)
		synctest.Wait() // at once: no time passes
		s.check(t, "the new primary is away", version(5, "a"))
		if s.n != before+1 || c.State().Fault == "" {
			t.Errorf("served %d times, fault %q", s.n-before, c.State().Fault)
		}
		sleep(time.Minute)
		if s.n != before+1 {
			t.Errorf("served %d times while nothing changed", s.n-before)
		}
		next.set(func(p *primary) { p.fails = nil })
		sleep(retryMost)
		s.check(t, "the new primary is there", version(5, "b"))
		sleep(time.Minute)
		next.set(func(p *primary) {
			if n := len(slices.DeleteFunc(slices.Clone(p.asked), func(what string) bool { return what == "serial" })); p.asked[len(p.asked)-1] != "serial" || n > 13 {
				t.Errorf("asked %v", p.asked)
			}
		})
	})
}

// hanging is a primary that, while hangs is set, answers no query for the serial until the query's context ends.
type hanging struct {
	primary
	hangs atomic.Bool
}

func (h *hanging) Serial(ctx context.Context) (uint32, error) {
	if h.hangs.Load() {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return h.primary.Serial(ctx)
}

// TestSOA: a change of the SOA alone comes with the steps: how long denials are kept is in it.
func TestSOA(t *testing.T) {
	p, s := &primary{now: version(1, "a"), steps: map[uint32]*rfc2136.Transfer{}}, &served{}
	c := New(quiet, zone, filepath.Join(t.TempDir(), "z.zone"), p, s.serve)
	testutil.Must(t, c.look(t.Context()))
	next := version(2, "a")
	next[0].(*dns.SOA).Minttl, next[0].(*dns.SOA).Ns = 5, "other."+zone
	p.set(func(p *primary) {
		p.now, p.asked = next, nil
		p.steps[1] = &rfc2136.Transfer{Serial: 2, Steps: []rfc2136.Delta{{From: 1, To: 2, SOA: next[0].(*dns.SOA)}}}
	})
	testutil.Must(t, c.look(t.Context()))
	s.check(t, "an SOA with other fields", next)
	if slices.Contains(p.asked, "axfr") {
		t.Errorf("asked %v", p.asked)
	}
}

// TestNotifyFlood: a program that writes the primary's address as the sender of NOTIFYs has it queried ten times a second at most.
func TestNotifyFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := &primary{now: version(1, "a")}, &served{}
		c := New(quiet, zone, filepath.Join(t.TempDir(), "z.zone"), p, s.serve)
		defer run(t, c)()
		sleep(time.Second)
		p.set(func(p *primary) { p.asked = nil })
		for range 10_000 {
			c.Notify()
			sleep(time.Millisecond)
		}
		p.set(func(p *primary) {
			if n := len(p.asked); n < 90 || n > 101 {
				t.Errorf("asked %d times in 10 s", n)
			}
		})
	})
}

// TestTooLarge: a zone that grew beyond the bound changes nothing, and what is wrong is reported.
func TestTooLarge(t *testing.T) {
	p, s := &primary{now: version(1, "a")}, &served{}
	c := New(quiet, zone, filepath.Join(t.TempDir(), "z.zone"), p, s.serve)
	testutil.Must(t, c.look(t.Context()))
	p.set(func(p *primary) {
		p.now, p.asked = version(2, "b"), nil
		p.tooLarge = &rfc2136.Error{Kind: rfc2136.TooLarge, Err: errors.New("more than 9 records")}
	})
	err := c.look(t.Context())
	if rfc2136.KindOf(err) != rfc2136.TooLarge {
		t.Errorf("%v", err)
	}
	c.note(err)
	s.check(t, "too large", version(1, "a"))
	if slices.Contains(p.asked, "axfr") {
		t.Errorf("asked %v: a zone that is too large is read once a look", p.asked)
	}
	// Many changes of one record are large, and the zone is small.
	if err := c.look(t.Context()); err != nil || !slices.Contains(p.asked, "axfr") {
		t.Errorf("%v, asked %v", err, p.asked)
	}
	s.check(t, "whole", version(2, "b"))
}

// TestStaysTooLarge: a zone that stays too large is not transferred every few seconds, even if each change is notified.
func TestStaysTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := &primary{now: version(1, "a"), fails: &rfc2136.Error{Kind: rfc2136.TooLarge, Err: errors.New("more than 9 records")}}, &served{}
		c := New(quiet, zone, filepath.Join(t.TempDir(), "z.zone"), p, s.serve)
		defer run(t, c)()
		for range 3600 {
			c.Notify()
			sleep(time.Second)
		}
		p.set(func(p *primary) {
			if n := len(p.asked); n > 4+30 {
				t.Errorf("transferred %d times in an hour", n)
			}
			p.fails = nil
		})
		sleep(together + retryMost)
		s.check(t, "small again", version(1, "a"))
	})
}

// TestTooLargeElsewhere: a copy whose zone stays too large reads another primary at once.
func TestTooLargeElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := &primary{fails: &rfc2136.Error{Kind: rfc2136.TooLarge, Err: errors.New("more than 9 records")}}, &served{}
		c := New(quiet, zone, filepath.Join(t.TempDir(), "z.zone"), p, s.serve)
		defer run(t, c)()
		sleep(time.Minute)
		c.Follow(&primary{now: version(1, "a")})
		synctest.Wait() // at once: no time passes
		s.check(t, "another primary", version(1, "a"))
	})
}

// TestGrows: a zone that incremental changes make too large, by the number or the size of its records, is served as before.
func TestGrows(t *testing.T) {
	for name, added := range map[string][]dns.RR{
		"many":  version(2, "b", "c", "d")[2:],
		"large": {&dns.TXT{Hdr: dns.RR_Header{Name: "b." + zone, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 60}, Txt: slices.Repeat([]string{strings.Repeat("x", 255)}, 5)}},
	} {
		p, s := &primary{now: version(1, "a"), steps: map[uint32]*rfc2136.Transfer{}}, &served{}
		c := New(quiet, zone, filepath.Join(t.TempDir(), "z.zone"), p, Bounded(s.serve, 5))
		testutil.Must(t, c.look(t.Context()))
		p.set(func(p *primary) {
			p.now = append(version(2, "a"), added...)
			p.steps[1] = &rfc2136.Transfer{Serial: 2, Steps: []rfc2136.Delta{{From: 1, To: 2, SOA: soa(2), Added: added}}}
		})
		testutil.WantError(t, c.look(t.Context()), "at most 5 records", name)
		s.check(t, name, version(1, "a"))
	}
}

// TestCrowdedSteps: a change of a name with tens of thousands of records is read whole: in steps each record would be looked for among all.
func TestCrowdedSteps(t *testing.T) {
	var many []dns.RR
	for i := range 50_000 {
		many = append(many, &dns.A{Hdr: dns.RR_Header{Name: "a." + zone, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(10, 9, byte(i>>8), byte(i))})
	}
	p, s := &primary{now: version(1), steps: map[uint32]*rfc2136.Transfer{}}, &served{}
	c := New(quiet, zone, filepath.Join(t.TempDir(), "z.zone"), p, s.serve)
	testutil.Must(t, c.look(t.Context()))
	p.set(func(p *primary) {
		p.now, p.asked = append(version(2), many...), nil
		p.steps[1] = &rfc2136.Transfer{Serial: 2, Steps: []rfc2136.Delta{{From: 1, To: 2, SOA: soa(2), Added: many}}}
	})
	testutil.Must(t, c.look(t.Context()))
	s.check(t, "crowded", p.now)
	if !slices.Contains(p.asked, "axfr") {
		t.Errorf("asked %v: the zone is transferred whole", p.asked)
	}
}

// TestFaulty: what is no whole zone changes nothing.
func TestFaulty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := &primary{now: version(1, "a")}, &served{}
		c := New(quiet, zone, filepath.Join(t.TempDir(), "z.zone"), p, s.serve)
		defer run(t, c)()
		sleep(time.Second)
		for name, list := range map[string][]dns.RR{
			"a record of another zone": append(version(2), rr("a.example. 60 IN A 192.0.2.1")),
			"another zone's SOA":       {version(2)[0], rr("other." + zone + " 60 IN SOA a. b. 2 1 1 1 1")},
			"two serials":              append(version(2), version(3)...),
		} {
			p.set(func(p *primary) { p.now = list })
			sleep(10 * time.Second)
			s.check(t, name, version(1, "a"))
			if c.State().Fault == "" {
				t.Errorf("%s: nothing is said", name)
			}
		}
	})
}

// TestFaultIsLogged: an error is logged once, although its text has the local port of each connection.
func TestFaultIsLogged(t *testing.T) {
	var log strings.Builder
	s := &served{}
	c := New(slog.New(slog.NewTextHandler(&log, nil)), zone, filepath.Join(t.TempDir(), "z.zone"), &primary{}, s.serve)
	silent := func(port string) error {
		return &rfc2136.Error{Kind: rfc2136.NoAnswer, Err: errors.New("read tcp 192.0.2.1:" + port + "->192.0.2.53:53: i/o timeout")}
	}
	for i, step := range []struct {
		err    error
		logged int
	}{
		{silent("1"), 1}, {silent("2"), 1}, {&rfc2136.Error{Kind: rfc2136.Unreachable, Err: errors.New("refused")}, 2}, {errors.New("serve: a"), 3},
		{errors.New("serve: b"), 4}, {nil, 5}, {nil, 5}, {silent("3"), 6},
	} {
		c.note(step.err)
		if n := strings.Count(log.String(), "\n"); n != step.logged {
			t.Errorf("step %d: logged %d times, want %d:\n%s", i, n, step.logged, log.String())
		}
		if step.err != nil && c.State().Fault != step.err.Error() {
			t.Errorf("step %d: the state has %q", i, c.State().Fault)
		}
	}
}

func TestMetrics(t *testing.T) {
	s := &served{}
	read := New(quiet, zone, filepath.Join(t.TempDir(), "a"), &primary{now: version(7, "a")}, s.serve)
	testutil.Must(t, read.look(t.Context()))
	read.note(nil)
	never := New(quiet, "never.example.", filepath.Join(t.TempDir(), "b"), &primary{fails: errors.New("away")}, s.serve)
	r := prometheus.NewPedanticRegistry()
	reloads := new(Reloads)
	all := Collector(func() []*Copy { return []*Copy{read, never} }, reloads)
	r.MustRegister(all)
	if problems, err := promtest.GatherAndLint(r); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	if n := promtest.CollectAndCount(all, "neardns_edge_zone_serial", "neardns_edge_zone_age_seconds"); n != 2 {
		t.Errorf("%d series of what was read, want 2: a zone that was never read has neither serial nor age", n)
	}
	for i, step := range []struct {
		do   func()
		want int
	}{{func() {}, 1}, {func() { reloads.Count(false) }, 0}, {func() { reloads.Count(true) }, 1}} {
		step.do()
		if err := promtest.CollectAndCompare(all, strings.NewReader(fmt.Sprintf("# HELP neardns_edge_config_ok 1: the edge uses the current configuration. "+
			"0: it refused that and uses the one before, or it started without its geo.database.\n# TYPE neardns_edge_config_ok gauge\nneardns_edge_config_ok %d\n", step.want)), "neardns_edge_config_ok"); err != nil {
			t.Errorf("step %d: %v", i, err)
		}
	}
}
