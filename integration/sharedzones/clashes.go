package main

import (
	"fmt"
	"net/netip"
	"time"
)

// strategies has two clusters publish each host with another strategy at once.
func strategies(s *stand, c *cell, sz size) {
	clusters := s.startAll(2, clusterOptions{})
	publish := func(i int) (out []record) {
		for h := range sz.hosts {
			out = append(out, record{Label: fmt.Sprintf("h%d", h), Addresses: []netip.Addr{ip(18, h, i)}, Balanced: i == 1, Weight: i})
		}
		return out
	}
	start := time.Now()
	for i, cl := range clusters {
		cl.write(publish(i)...)
	}
	for _, cl := range clusters {
		cl.read()
	}
	var slowest time.Duration
	decided := func(host string) (winners, losers int) {
		for _, cl := range clusters {
			switch st := cl.status.of(host); {
			case st.Programmed:
				winners++
			case st.Conflict != "":
				losers++
			}
		}
		return winners, losers
	}
	wins := [2]int{}
	for h := range sz.hosts {
		host := s.host(fmt.Sprintf("h%d", h))
		for time.Since(start) < patience {
			if w, l := decided(host); w == 1 && l == 1 {
				break
			}
			pause(5 * time.Millisecond)
		}
		w, l := decided(host)
		if w != 1 || l != 1 {
			c.miss("%s: %d winners, %d losers: %+v, %+v", host, w, l, clusters[0].status.of(host), clusters[1].status.of(host))
		}
		for i, cl := range clusters {
			if cl.status.of(host).Programmed {
				wins[i]++
			}
		}
		slowest = max(slowest, time.Since(start))
	}
	// The zone has each host from its winner alone.
	var all []said
	for _, cl := range clusters {
		for _, x := range cl.said() {
			if cl.status.of(x.Host).Programmed {
				all = append(all, x)
			}
		}
	}
	zone, err := s.server.Transfer()
	if err != nil {
		c.miss("%v", err)
		return
	}
	lost, left := differences(expected(s.server.Zone(), all), held(s.server.Zone(), zone))
	c.wrong("winners", lost, left)
	// The winners leave: the losers go on by themselves.
	clusters[0].publish()
	took, lost, left := s.zoneIs(patience, clusters...)
	c.wrong("after one cluster left", lost, left)
	c.figure("seconds until decided", slowest.Seconds())
	c.Text = fmt.Sprintf("%d hosts: %d won by Simple, %d by LoadBalanced, decided after %s; the other took over in %s after it left",
		sz.hosts, wins[0], wins[1], seconds(slowest), seconds(took))
	sz.within(c, 5*time.Second, "decided", slowest)
}

// defaultGeos has two clusters call two regions of each host the default at once: both publish, both report it, and neither goes on
// writing.
func defaultGeos(s *stand, c *cell, sz size) {
	clusters := s.startAll(2, clusterOptions{})
	publish := func(i int) (out []record) {
		for h := range sz.hosts {
			out = append(out, record{Label: fmt.Sprintf("h%d", h), Addresses: []netip.Addr{ip(18, h, i)}, Balanced: true, Weight: 1,
				Geo: []string{"IE", "US"}[i], DefaultGeo: true})
		}
		return out
	}
	start := time.Now()
	s.together(c, "two default regions", clusters, publish)
	told := func(want string) bool {
		for h := range sz.hosts {
			for _, cl := range clusters {
				if st := cl.status.of(s.host(fmt.Sprintf("h%d", h))); !st.Programmed || st.Reason != want {
					return false
				}
			}
		}
		return true
	}
	for !told("ConflictingDefaultGeo") && time.Since(start) < patience {
		pause(20 * time.Millisecond)
	}
	took := time.Since(start)
	if !told("ConflictingDefaultGeo") {
		c.miss("not both report ConflictingDefaultGeo of each host: %+v, %+v", clusters[0].status.of(s.host("h0")), clusters[1].status.of(s.host("h0")))
	}
	before := s.counted()
	pause(10 * time.Second)
	after := s.counted().minus(before).Updates
	one := publish(1)
	for i := range one {
		one[i].DefaultGeo = false
	}
	clusters[1].publish(one...)
	end := time.Now().Add(patience)
	for !told("") && time.Now().Before(end) {
		pause(20 * time.Millisecond)
	}
	if !told("") {
		c.miss("the conflict does not end: %+v", clusters[0].status.of(s.host("h0")))
	}
	c.figure("seconds until told", took.Seconds())
	c.figure("messages in ten seconds after", float64(after))
	c.Text = fmt.Sprintf("%d hosts: all addresses there, both clusters report ConflictingDefaultGeo after %s, %d messages in ten seconds after", sz.hosts, seconds(took), after)
	sz.within(c, 10*time.Second, "reported", took)
	if after > 0 {
		c.miss("%d messages after", after)
	}
}

// clone starts a second cluster with the id of the first.
func clone(s *stand, c *cell, sz size) {
	first := s.startAll(1, clusterOptions{})[0]
	first.publish(record{Label: "app", Addresses: []netip.Addr{ip(18, 0, 1)}})
	_, lost, left := s.zoneIs(patience, first)
	c.wrong("before", lost, left)
	second := s.cluster(first.id, clusterOptions{Instance: "theclone"})
	second.write(record{Label: "app", Addresses: []netip.Addr{ip(18, 0, 2)}})
	start := time.Now()
	second.start()
	for second.status.of(s.host("app")).Conflict == "" && time.Since(start) < patience {
		pause(10 * time.Millisecond)
	}
	took := time.Since(start)
	pause(2 * time.Second)
	_, lost, left = s.zoneIs(time.Second, first)
	c.wrong("after", lost, left)
	st := second.status.of(s.host("app"))
	sent := second.relay.counted()
	c.figure("seconds", took.Seconds())
	c.figure("messages of the clone", float64(sent.Updates+sent.Heartbeats))
	c.Text = fmt.Sprintf("the clone reports %s after %s, and sent %d messages", st.Conflict, seconds(took), sent.Updates+sent.Heartbeats)
	if st.Conflict == "" || sent.Updates > 0 {
		c.miss("the clone reports %+v and sent %+v", st, sent)
	}
}
