package main

import (
	"fmt"
	"slices"
	"time"
)

// halfCut cuts half of all clusters off for ten heartbeats: that is the network, or those that are left.
func halfCut(s *stand, c *cell, sz size) {
	beat := max(2, sz.clusters/10)
	clusters := s.startAll(sz.clusters, clusterOptions{Key: s.server.Operator(), Heartbeat: beat, Removal: true, Poll: "1s"})
	s.together(c, "before", clusters, removalRecords)
	for _, cl := range clusters[:len(clusters)/2] {
		cl.relay.behave(faults{Cut: true})
	}
	wait := 10 * time.Duration(beat) * time.Second
	s.stays(c, "half cut off", wait, clusters)
	for _, cl := range clusters[:len(clusters)/2] {
		cl.relay.behave(faults{})
	}
	s.stays(c, "back", wait/2, clusters)
	c.Text = fmt.Sprintf("%d of %d clusters cut off for %s, and back: lost %.0f", len(clusters)/2, len(clusters), wait, c.Figures["lost"])
}

// removerCut cuts off the one cluster that may remove others, which all live. Then one dies, so that the remover is seen to be one.
func removerCut(s *stand, c *cell, sz size) {
	o := clusterOptions{Key: s.server.Operator(), Heartbeat: 2, Poll: "500ms"}
	clusters := s.startAll(5, o)
	o.Removal = true
	remover := s.cluster(name(5), o)
	remover.write()
	remover.start()
	all := append(slices.Clone(clusters), remover)
	s.together(c, "before", all, removalRecords)
	for range sz.cuts {
		remover.relay.behave(faults{Cut: true})
		s.stays(c, "the remover is cut off", 20*time.Second, all)
		remover.relay.behave(faults{})
		s.stays(c, "the remover is back", 8*time.Second, all)
	}
	clusters[0].process.Kill()
	took, lost, left := s.zoneIs(patience, all[1:]...)
	c.wrong("one died", lost, left)
	c.figure("removed after, seconds", took.Seconds())
	c.Text = fmt.Sprintf("the remover cut off for 20 s, %d times: lost %.0f; one that died removed after %s", sz.cuts, c.Figures["lost"], seconds(took))
}
