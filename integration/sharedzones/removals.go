package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// removalHosts are what each cluster publishes where others may remove it: several hosts, so that a removal has a middle.
var removalHosts = []string{"app", "shop", "mail"}

func removalRecords(i int) (out []record) {
	for n, label := range removalHosts {
		out = append(out, record{Label: label, Addresses: []netip.Addr{ip(18, n, i)}})
	}
	return out
}

// removal freezes clusters until the others have begun to remove them, and thaws them amid that. Who was not frozen stays all the time.
func removal(s *stand, c *cell, sz size) {
	n, random := min(2*sz.thaws+2, 12), rand.New(rand.NewPCG(sz.seed, 0))
	clusters := s.startAll(n, clusterOptions{Key: s.server.Operator(), Heartbeat: 2, Removal: true, Poll: "500ms"})
	s.together(c, "before", clusters, removalRecords)
	for _, cl := range clusters {
		cl.relay.behave(faults{Delay: 10 * time.Millisecond}) // a removal takes time
	}
	thaws, amid := 0, 0
	moves := &moves{beats: map[string]string{}, at: map[string]time.Time{}}
	var removed, back time.Duration
	for thaws < sz.thaws {
		order := random.Perm(n)
		frozen, others := pick(clusters, order[:n/4]), pick(clusters, order[n/4:])
		for _, cl := range frozen {
			cl.process.Stop()
		}
		start := time.Now()
		rest := s.removalBegins(c, frozen, others, moves)
		removed = max(removed, time.Since(start))
		pause(time.Duration(random.IntN(60)) * time.Millisecond)
		before := s.beats()
		for _, cl := range frozen {
			cl.process.Cont()
		}
		testutil.Eventually(s.t, func() error { // until its counter moves it is as dead as before
			now := s.beats()
			for _, cl := range frozen {
				if b := now[cl.id]; b == "" || b == before[cl.id] {
					return fmt.Errorf("the heartbeat of %s does not move", cl.id)
				}
			}
			return nil
		})
		took, lost, left := s.zoneIs(patience, clusters...)
		c.wrong("thawed", lost, left)
		back = max(back, took)
		thaws += len(frozen)
		if rest {
			amid++
		}
	}
	c.figure("thaws", float64(thaws))
	c.figure("rounds in which a part was still there", float64(amid))
	c.figure("removal begun after, seconds", removed.Seconds())
	c.figure("back after, seconds", back.Seconds())
	c.Text = fmt.Sprintf("heartbeat 2 s, %d clusters, %d thawed amid their removal: removal begun after %s, back after %s; others found removed that the machine had starved: %.0f times",
		n, thaws, seconds(removed), seconds(back), c.Figures["looks at a starved one"])
}

// beats are the heartbeats in the zone, by cluster.
func (s *stand) beats() (out map[string]string) {
	s.t.Helper()
	testutil.Eventually(s.t, func() error {
		zone, err := s.server.Transfer()
		out = beatsOf(s.server.Zone(), zone)
		return err
	})
	return out
}

func beatsOf(origin string, zone []dns.RR) map[string]string {
	out := map[string]string{}
	for _, rr := range zone {
		if cluster, rest, _ := strings.Cut(strings.ToLower(rr.Header().Name), "."); rest == "_neardns."+origin {
			out[cluster] = rr.String()
		}
	}
	return out
}

func pick(clusters []*cluster, at []int) (out []*cluster) {
	for _, i := range at {
		out = append(out, clusters[i])
	}
	return out
}

// moves has when each heartbeat was seen to change last.
type moves struct {
	beats map[string]string
	at    map[string]time.Time
}

func (m *moves) note(zone map[string]string) {
	for cluster, b := range zone {
		if m.beats[cluster] != b {
			m.beats[cluster], m.at[cluster] = b, time.Now()
		}
	}
}

// removalBegins waits until something of a frozen cluster is gone, and reports whether something of them is left then. Nothing may ever be
// gone of the others while their counters move: on a machine that is too busy for them for six periods they are as good as frozen.
func (s *stand) removalBegins(c *cell, frozen, others []*cluster, m *moves) (rest bool) {
	s.t.Helper()
	testutil.Eventually(s.t, func() error {
		zone, err := s.server.Transfer()
		if err != nil {
			return err
		}
		got := held(s.server.Zone(), zone)
		m.note(beatsOf(s.server.Zone(), zone))
		for _, cl := range others {
			silent := time.Since(m.at[cl.id])
			switch lost := missing(got, []*cluster{cl}); {
			case len(lost) == 0:
			case silent < 10*time.Second: // it was seen to move by then, however slow this machine is
				c.miss("taken from a cluster whose counter moved %s ago: %s", seconds(silent), few(lost))
			default:
				c.figure("looks at a starved one", c.Figures["looks at a starved one"]+1)
			}
		}
		lost := missing(got, frozen)
		if rest = len(lost) < len(frozen)*len(removalHosts); len(lost) == 0 {
			return fmt.Errorf("nothing is removed of %d frozen clusters", len(frozen))
		}
		return nil
	})
	return rest
}

// missing lists the addresses of clusters that a zone lacks.
func missing(got map[string][]string, clusters []*cluster) (lost []string) {
	for _, cl := range clusters {
		for _, x := range cl.said() {
			for _, a := range x.Addresses {
				if !slices.Contains(got[x.Host+" A"], a.String()) {
					lost = append(lost, x.Host+" "+a.String())
				}
			}
		}
	}
	return lost
}

// stays looks for a while whether all is there.
func (s *stand) stays(c *cell, when string, d time.Duration, clusters []*cluster) {
	s.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end) && len(c.Missed) == 0; {
		_, lost, left := s.zoneIs(5*time.Second, clusters...)
		c.wrong(when, lost, left)
		pause(200 * time.Millisecond)
	}
}
