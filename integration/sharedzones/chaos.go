package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// chaos changes, kills, stops and cuts off clusters at random, and the primary too; all come back at the end.
func chaos(s *stand, c *cell, sz size) {
	random := rand.New(rand.NewPCG(sz.seed, 0))
	clusters := s.startAll(sz.writers, clusterOptions{})
	labels := []string{"app", "shop", "mail"}
	pick := func(int) (out []record) {
		for _, label := range labels {
			var all []netip.Addr
			for n := range 6 {
				if random.IntN(3) == 0 {
					all = append(all, ip(18, slices.Index(labels, label), n))
				}
			}
			if len(all) > 0 {
				out = append(out, record{Label: label, Addresses: all})
			}
		}
		return out
	}
	steps, kills, outages := 0, 0, 0
	for end := time.Now().Add(sz.chaos); time.Now().Before(end); steps++ {
		i := random.IntN(len(clusters))
		cl := clusters[i]
		switch step := random.IntN(20); {
		case step < 8:
			cl.publish(pick(i)...)
		case step < 11:
			cl.process.Kill()
			cl.start()
			kills++
		case step < 12:
			cl.process.Stop()
			pause(time.Duration(random.IntN(300)) * time.Millisecond)
			cl.process.Cont()
		case step < 14:
			cl.relay.behave(faults{LoseBefore: 0.2, LoseAfter: 0.3, Delay: time.Duration(random.IntN(50)) * time.Millisecond})
		case step < 15:
			cl.relay.behave(faults{Cut: true})
		case step < 18:
			cl.relay.behave(faults{})
		case step < 19:
			s.server.Process().Stop()
			pause(time.Duration(random.IntN(500)) * time.Millisecond)
			s.server.Process().Cont()
			outages++
		case random.IntN(4) == 0:
			s.server.Kill()
			s.server.Run()
			kills++
		}
		pause(time.Duration(random.IntN(100)) * time.Millisecond)
	}
	for i, cl := range clusters {
		cl.relay.behave(faults{})
		if i%3 == 0 {
			cl.publish() // a third leaves
		}
	}
	took, lost, left := s.zoneIs(patience, clusters...)
	c.wrong(fmt.Sprintf("seed %d: %s", sz.seed, s.unsettled()), lost, left)
	c.figure("steps", float64(steps))
	c.figure("kills", float64(kills))
	c.figure("whole after, seconds", took.Seconds())
	c.Text = fmt.Sprintf("%d clusters, %d steps, %d kills, %d outages: lost %.0f, left over %.0f, whole after %s, %d messages",
		len(clusters), steps, kills, outages, c.Figures["lost"], c.Figures["left over"], seconds(took), s.counted().Updates)
}
