package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// restored brings back the zone of an hour ago.
func restored(s *stand, c *cell, sz size) {
	clusters := s.startAll(sz.clusters, clusterOptions{})
	publish := func(version int) {
		s.together(c, "publish", clusters, func(i int) []record {
			return []record{{Label: "app", Addresses: []netip.Addr{ip(18, version, i)}}}
		})
	}
	publish(1)
	restore := s.server.Snapshot()
	publish(2)
	s.anHour()
	publish(3)
	restore()
	took, lost, left := s.zoneIs(patience, clusters...)
	c.wrong("restored", lost, left)
	c.figure("whole after, seconds", took.Seconds())
	c.Text = fmt.Sprintf("%d clusters: whole %s after an older zone came back, lost %.0f, left over %.0f", len(clusters), seconds(took), c.Figures["lost"], c.Figures["left over"])
	sz.within(c, 10*time.Second, "whole", took)
}

// anHour raises the zone's serial as an hour of heartbeats does: 12 of each cluster. A serial that is only a little older than the one that
// clusters know would be theirs again as soon as some of them have restored the zone.
func (s *stand) anHour() {
	s.t.Helper()
	rr := &dns.TXT{Hdr: dns.RR_Header{Name: "hour." + s.server.Zone(), Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 60}, Txt: []string{"beat"}}
	for range 6 * len(s.all) {
		for _, change := range []func(*dns.Msg, []dns.RR){(*dns.Msg).Insert, (*dns.Msg).RemoveRRset} {
			m := new(dns.Msg).SetUpdate(s.server.Zone())
			change(m, []dns.RR{dns.Copy(rr)})
			if _, err := exchange(context.Background(), s.server, m); err != nil {
				s.t.Fatalf("raise the serial: %v", err)
			}
		}
	}
}

// away changes what all publish while the primary is away.
func away(s *stand, c *cell, sz size) {
	clusters := s.startAll(sz.clusters, clusterOptions{})
	s.together(c, "before", clusters, func(i int) []record { return []record{{Label: "app", Addresses: []netip.Addr{ip(18, 0, i)}}} })
	s.server.Kill()
	for i, cl := range clusters {
		cl.publish(record{Label: "app", Addresses: []netip.Addr{ip(18, 1, i)}})
	}
	wait := sz.chaos
	pause(wait)
	s.server.Run()
	took, lost, left := s.zoneIs(patience, clusters...)
	c.wrong("after", lost, left)
	c.figure("whole after, seconds", took.Seconds())
	c.Text = fmt.Sprintf("%d clusters, primary away for %s: whole %s after it came back", len(clusters), seconds(wait), seconds(took))
	sz.within(c, 10*time.Second, "whole", took)
}

// stalls has each write of the primary wait for its disk: strace, which the kernel lets delay a system call, stands for the disk. The
// stall is longer than the five seconds that a cluster with such a heartbeat waits for an answer, so that is not known which messages were
// taken.
func stalls(s *stand, c *cell, sz size) {
	clusters := s.startAll(sz.clusters, clusterOptions{Heartbeat: 50})
	publish := func(version int) {
		for i, cl := range clusters {
			cl.publish(record{Label: "app", Addresses: []netip.Addr{ip(18, version, i)}})
		}
	}
	s.together(c, "before", clusters, func(i int) []record { return []record{{Label: "app", Addresses: []netip.Addr{ip(18, 0, i)}}} })
	const calls = "fsync,fdatasync,msync,sync_file_range"
	trace := testutil.StartHere(s.t, exec.CommandContext(context.Background(), "strace", "-f", "-qq", "-c", "-S", "calls", "-e", "trace="+calls,
		"-e", "inject="+calls+":delay_enter=6s", "-p", strconv.Itoa(s.server.Process().PID())))
	pause(time.Second) // strace does not report that it has attached
	publish(1)
	pause(sz.stall)
	publish(2)
	pause(sz.stall)
	trace.Signal(os.Interrupt)
	_ = trace.Wait()
	free := time.Now()
	testutil.Eventually(s.t, func() error { // PowerDNS works off first what no client waits for any more
		_, err := s.server.Transfer()
		return err
	})
	busy := time.Since(free)
	took, lost, left := s.zoneIs(patience, clusters...)
	c.wrong("after: "+s.unsettled(), lost, left)
	stalled := 0
	for line := range strings.Lines(trace.Output()) {
		if f := strings.Fields(line); len(f) >= 5 && strings.Contains(calls, f[len(f)-1]) {
			n, _ := strconv.Atoi(f[3])
			stalled += n
		}
	}
	c.figure("stalled calls", float64(stalled))
	c.figure("server busy, seconds", busy.Seconds())
	c.figure("whole after, seconds", took.Seconds())
	c.Text = fmt.Sprintf("%d clusters, each write of the primary's to its disk takes 6 s, %d did: it answers %s after the last, whole %s after that",
		len(clusters), stalled, seconds(busy), seconds(took))
	if stalled == 0 {
		c.miss("no write was stalled: %s", trace.Output())
	}
	sz.within(c, 10*time.Second, "whole", took)
}
