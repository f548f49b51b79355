package hostsfile

import (
	"time"

	"github.com/neardns/neardns/pkg/nodestate"
)

// Standing is how a Service stands in the file.
type Standing string

// The standings, worst first.
const (
	Missing Standing = "missing" // no line: kube-dns denies it, or has not answered for it yet
	Foreign Standing = "foreign" // a line that is not ours has one of its names, or both
	Stale   Standing = "stale"   // its line is from an answer of long ago
	Current Standing = "current"
)

// staleAfter is how long kube-dns may be silent.
const staleAfter = 5 * time.Minute

// StandingOf judges one, as the role that began at since left it.
func StandingOf(s nodestate.HostsService, since, now time.Time) Standing {
	heard := s.Answered
	if heard.Before(since) {
		heard = since
	}
	switch {
	case len(s.Left) > 0:
		return Foreign
	case len(s.Addresses) == 0:
		return Missing
	case s.Failed != "" && now.Sub(heard) > staleAfter:
		return Stale
	}
	return Current
}
