package main

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// rows are the lines of the table, with the bars of the requirements.
var rows = []row{
	{"at-once", "all clusters join, change and leave one host at once",
		"0 lost, 0 left over; change 1.0 message a cluster, join and leave at most 2", atOnce, many("app")},
	{"pairs", "the same, where two clusters share each address",
		"0 lost, 0 left over; change at most 1.6 messages a cluster", pairs, many("app")},
	{"seeds-loop", "the proposal's own loop, which writes blind", "its figures", seedsLoop, many("app")},
	{"cold-start", "all clusters start at once on an empty zone", "at most 30 s and 500 messages", coldStart, manyHosts},
	{"full-set", "three clusters with 50 addresses each at one host",
		"BIND serves 100 addresses, the other clusters report RRsetFull, and none retries in a loop", fullSet, many("app")},
	{"chaos", "changes, kills, cuts and outages at random",
		"the zone is the union of the clusters that are there, references are exact, 0 dead ends", chaos, many("app", "shop", "mail")},
	{"strategies", "two clusters with two strategies for each host",
		"exactly one wins; the loser writes nothing and gives its reason within 5 s", strategies, manyHosts},
	{"default-geos", "two clusters with two default regions for each host",
		"both publish and report it within 10 s; no message after", defaultGeos, manyHosts},
	{"clone", "a second cluster with the id of the first", "the clone writes nothing", clone, many("app")},
	{"restored", "the zone of an hour ago comes back", "whole within 10 s", restored, many("app")},
	{"away", "the primary is away, and all clusters change", "writes wait, whole within 10 s after the primary is back", away, many("app")},
	{"stalls", "the primary's disk stalls each write",
		"writes wait, whole within 10 s after the primary answers again", stalls, many("app")},
	{"removal", "clusters thaw amid their removal", "0 removed while its counter moves; back by itself", removal, many(removalHosts...)},
	{"half-cut", "half of the clusters are cut off for ten heartbeats", "none removed", halfCut, many(removalHosts...)},
	{"remover-cut", "the cluster that may remove others is cut off", "none removed but the dead one", removerCut, many(removalHosts...)},
	{"keys", "a cluster's key writes what is another's", "foreign names unchanged; NotPermitted", keys, many("app")},
	{"at-rest", "an hour without a change, the clock 60 times as fast",
		"at most 15 messages a cluster and hour, all heartbeats", atRest, many("app")},
}

func many(hosts ...string) func(size) (int, []string) {
	return func(sz size) (int, []string) { return max(sz.clusters, sz.writers), hosts }
}

func manyHosts(sz size) (int, []string) {
	var hosts []string
	for i := range sz.hosts {
		hosts = append(hosts, fmt.Sprintf("h%d", i))
	}
	return max(sz.clusters, 2), hosts
}

// patience is how long a zone may take to become what it must be, where the bar names no time.
const patience = time.Minute

func ip(a, b, c int) netip.Addr { return netip.AddrFrom4([4]byte{198, byte(a), byte(b), byte(c)}) }

// pause lets time pass that a row is about, such as an outage's, or between two looks at another process.
func pause(d time.Duration) { <-time.After(d) }

// startAll makes and starts n clusters that publish nothing yet, and waits until each has read the zone.
func (s *stand) startAll(n int, o clusterOptions) []*cluster {
	s.t.Helper()
	var out []*cluster
	for i := range n {
		c := s.cluster(name(i), o)
		c.write()
		c.start()
		out = append(out, c)
	}
	for _, c := range out {
		testutil.Eventually(s.t, func() error {
			if st := c.status.of(s.server.Zone()); !st.Programmed {
				return fmt.Errorf("%s has not read the zone: %+v\n%s", c.id, st, c.process.Output())
			}
			return nil
		})
	}
	return out
}
