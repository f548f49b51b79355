package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// zoneIs waits until the zone holds exactly what these clusters say, and returns what it differs by when it does not within the time.
func (s *stand) zoneIs(timeout time.Duration, clusters ...*cluster) (took time.Duration, lost, left []string) {
	s.t.Helper()
	var all []said
	for _, c := range clusters {
		all = append(all, c.said()...)
	}
	want := expected(s.server.Zone(), all)
	start := time.Now()
	deadline := start.Add(timeout * testutil.Slowness())
	for {
		look := time.Now()
		zone, err := s.server.Transfer()
		if err == nil {
			if lost, left = differences(want, held(s.server.Zone(), zone)); len(lost)+len(left) == 0 {
				return time.Since(start), nil, nil
			}
		}
		if time.Now().After(deadline) {
			if err != nil {
				lost = append(lost, err.Error())
			}
			return time.Since(start), lost, left
		}
		pause(max(20*time.Millisecond, 2*time.Since(look))) // a look at a large zone must not slow down what is looked at
	}
}

// unsettled reports which clusters are not where their files want them.
func (s *stand) unsettled() string {
	var out []string
	for _, c := range s.all {
		c.status.mu.Lock()
		for _, st := range c.status.last {
			if !st.Programmed && !st.Left {
				out = append(out, fmt.Sprintf("%s: %+v", c.id, st))
			}
		}
		c.status.mu.Unlock()
	}
	return strings.Join(out, "; ")
}

// counted sums the traffic of all clusters.
func (s *stand) counted() (sum traffic) {
	for _, c := range s.all {
		sum = sum.plus(c.relay.counted())
	}
	return sum
}
