package forward

// event is what has happened to a hedged query.
type event uint8

const (
	timerFired  event = iota // its timer has fired
	tryRejected              // an ICMP error came for the first try's datagram, but the try goes on
	tryEnded                 // a try has ended without a good answer
)

// step is what a hedged query does after an event.
type step uint8

const (
	stepWait          step = iota
	stepStart              // start the next try
	stepStartInBudget      // start the next try if the hedging budget allows it, so that a slow upstream does not get every query twice
	stepFinish             // end the query with the best answer so far, or an error (see finish)
)

// situation has everything on which the next step depends. It has no clock and no servers, so that a test can check all cases.
type situation struct {
	event event

	more      bool // a try is left
	elsewhere bool // the next try goes to another server than the try of the event
	otherWay  bool // the next try uses another connection or protocol than the try of the event, and so may succeed
	idle      bool // no try is running
	free      bool // a running try waits for a failing server, or for its connection and so has not sent the query
	alone     bool // only one try has begun
	overdue   bool // the query has taken silentEnd, so it ends unless heard is true
	heard     bool // a server with a running try has sent something since the query began
	headOnly  bool // there is a truncated answer, the whole one does not come soon, and the client can retry over TCP
}

// next returns the step to take.
func (s situation) next() step {
	switch {
	case s.event == timerFired && (s.headOnly || s.overdue && !s.heard):
		return stepFinish
	case !s.more:
		return stepWait
	case s.event == tryRejected && s.elsewhere, s.event == tryEnded && (s.elsewhere || s.otherWay):
		return stepStart
	case s.event != timerFired:
		return stepWait
	case s.idle, s.free, s.alone && s.overdue:
		return stepStart
	}
	return stepStartInBudget
}
