package hostsfile

import (
	"time"

	"github.com/neardns/neardns/pkg/nodestate"
)

// Standing is the state of a Service in the file.
type Standing string

// The standings, worst first.
const (
	Missing Standing = "missing" // no line: kube-dns denies it, or has not answered yet
	Foreign Standing = "foreign" // another program's line has one of its names, or both
	Stale   Standing = "stale"   // its line comes from an old answer
	Current Standing = "current"
)

// staleAfter is how long kube-dns may be silent.
const staleAfter = 5 * time.Minute

// StandingOf judges a Service by the state of a role that started at since.
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
