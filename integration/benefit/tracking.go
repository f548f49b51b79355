package main

import (
	"regexp"
	"strconv"

	"github.com/neardns/neardns/pkg/testutil"
)

// tracking has the counters of the host's conntrack.
type tracking struct {
	Entries int // for port 53, now
	Lost    int // packets whose entry could not be inserted, and that were dropped for it, since the namespace was made
	Clashed int // packets whose entry was found to be in the way of another one's, and that were saved
}

func (s *stand) tracking() tracking {
	s.t.Helper()
	t := parseStats(s.node.Host.Run("conntrack", "-S"))
	t.Entries = len(testutil.Conntrack(s.node.Host))
	return t
}

var stat = regexp.MustCompile(`\b(insert_failed|clash_resolve)=(\d+)`)

// parseStats sums up the counters of each CPU in `conntrack -S`.
func parseStats(text string) (t tracking) {
	for _, m := range stat.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[2]) // matched as a number
		if m[1] == "insert_failed" {
			t.Lost += n
		} else {
			t.Clashed += n
		}
	}
	return t
}
