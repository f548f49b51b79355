package hostsfile

import (
	"time"

	"github.com/neardns/neardns/pkg/nodestate"
)

// Standing is the state of a Service's names in the hosts file.
type Standing string

// The values of Standing, the worst first.
const (
	Missing Standing = "missing" // no line: kube-dns denies the name or has not answered yet, or the file cannot be written
	Foreign Standing = "foreign" // another program's line has at least one of the names
	Stale   Standing = "stale"   // the line is from an old answer, and queries fail now
	Current Standing = "current"
)

// staleAfter is the time without an answer from kube-dns after which a line counts as stale, if queries fail.
const staleAfter = 5 * time.Minute

// StandingOf returns the Standing of a Service, by the state s that a role `hosts` stored, which started at since.
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
