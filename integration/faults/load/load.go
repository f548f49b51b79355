// Package load sends DNS queries at a fixed pace and keeps book of every one: when it was due, whether the right answer
// came, from whom, and how long after it was due.
//
// A query is due at begin + i/rate whatever became of those before it, and its time counts from then: a server that
// stalls is not spared the queries of that while (no coordinated omission). No query is repeated. A query is lost
// when no answer came within its stream's patience, a second by default, of being sent.
//
// It must never query an address that is not private, link-local or loopback, nor without bounds in time, rate and number.
//
// Failure policy: what the network does to a query is an outcome, never an error; an error is a plan that cannot be
// carried out.
package load

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Way is how queries are sent.
type Way string

// The ways of a stream's queries.
const (
	UDP     Way = "udp"     // over sockets that stay open, one source port each
	OneShot Way = "tcp"     // a connection for each
	Long    Way = "tcplong" // pipelined on connections that stay open; one on which a query timed out is given up
	Pair    Way = "pair"    // A and AAAA at the same moment over UDP, a socket for each lookup
	Flood   Way = "flood"   // UDP, counted and not looked into: what a hostile pod sends
)

// Stream is one client's queries: A records (by Pair, AAAA too) for <Label><number>.<Zone>. A Flood's names have a random number too.
type Stream struct {
	Name    string // in results
	Way     Way
	Server  netip.AddrPort
	Zone    string
	Label   string
	First   int // number of the first name
	Names   int // so many names in turn; 0: every name once
	Rate    int // queries per second
	Sockets int // that the queries take turns on (all but OneShot and Pair)
	// Unsigned: the node's server passes on no record of who answered, so that all right addresses count as the node's.
	Unsigned bool `json:",omitempty"`
	// Patience is how long an answer is waited for; 0: a second.
	Patience time.Duration
}

// Plan is what one run sends, all streams at once.
type Plan struct {
	Streams  []Stream
	Duration time.Duration
}

// A plan beyond these is refused, so that a slip in a number cannot make it an attack.
const (
	maxDuration = time.Minute
	maxRate     = 50_000
	maxSockets  = 64
	maxPatience = 10 * time.Second
	maxStreams  = 8
)

// DefaultPatience is that of a stream that names none.
const DefaultPatience = time.Second

// Check reports what is wrong with a plan.
func (p Plan) Check() error {
	if p.Duration <= 0 || p.Duration > maxDuration {
		return fmt.Errorf("load: %v is not a duration up to %v", p.Duration, maxDuration)
	}
	if n := len(p.Streams); n == 0 || n > maxStreams {
		return fmt.Errorf("load: %d streams are not 1 to %d", n, maxStreams)
	}
	for _, s := range p.Streams {
		if err := s.check(); err != nil {
			return fmt.Errorf("load: stream %q: %w", s.Name, err)
		}
	}
	return nil
}

func (s Stream) check() error {
	a := s.Server.Addr()
	switch {
	case s.Way != UDP && s.Way != OneShot && s.Way != Long && s.Way != Pair && s.Way != Flood:
		return fmt.Errorf("%q is no way to ask", s.Way)
	case s.Rate < 1 || s.Rate > maxRate:
		return fmt.Errorf("%d questions a second are not 1 to %d", s.Rate, maxRate)
	case s.Way != OneShot && s.Way != Pair && (s.Sockets < 1 || s.Sockets > maxSockets):
		return fmt.Errorf("%d sockets are not 1 to %d", s.Sockets, maxSockets)
	case (s.Way == OneShot || s.Way == Pair) && s.Rate > 1000:
		return errors.New("more than 1000 connections or sockets a second")
	case s.Patience < 0 || s.Patience > maxPatience:
		return fmt.Errorf("patience %v is not up to %v", s.Patience, maxPatience)
	case s.First < 0 || s.Names < 0:
		return errors.New("names are counted from 0")
	case s.Label == "" || s.Zone == "":
		return errors.New("names need a label and a zone")
	case !s.Server.IsValid() || !(a.IsPrivate() || a.IsLinkLocalUnicast() || a.IsLoopback()):
		return fmt.Errorf("%s is not an address of a test's own namespaces", s.Server)
	}
	return nil
}

func (s Stream) patience() time.Duration {
	if s.Patience == 0 {
		return DefaultPatience
	}
	return s.Patience
}

// Total is how many queries are due in a time.
func (s Stream) Total(d time.Duration) int { return int(int64(s.Rate) * int64(d) / int64(time.Second)) }

// Due is when query i is due, from the begin.
func (s Stream) Due(i int) time.Duration {
	return time.Duration(int64(i) * int64(time.Second) / int64(s.Rate))
}

// QName is the name that query i has.
func (s Stream) QName(i int) string {
	if s.Names > 0 {
		i %= s.Names
	}
	return fmt.Sprintf("%s%d.%s.", s.Label, s.First+i, s.Zone)
}

// pace calls send for every query when it is due, also for those that the machine made late, and returns the latest.
func (s Stream) pace(begun time.Time, d time.Duration, send func(i int)) (late time.Duration) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range s.Total(d) {
		due := begun.Add(s.Due(i))
		if wait := time.Until(due); wait > 0 {
			timer.Reset(wait)
			<-timer.C
		}
		late = max(late, time.Since(due))
		send(i)
	}
	return late
}
