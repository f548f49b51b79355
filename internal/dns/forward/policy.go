package forward

// event is what a hedged query reacts to.
type event uint8

const (
	timerFired  event = iota // its timer has fired
	tryRejected              // the network has rejected a try's datagram, but the try goes on
	tryEnded                 // a try has ended without a good answer
)

// step is what a hedged query does next.
type step uint8

const (
	stepWait          step = iota
	stepStart              // start the next try
	stepStartInBudget      // start the next try if the hedging budget allows it, which keeps a slow upstream from getting every query twice
	stepFinish             // the client gets what there is
)

// situation is all that the next step depends on. It has no clock and no server, so that a test walks through every case.
type situation struct {
	event event

	more      bool // a try is left
	elsewhere bool // it goes to another server than the try of the event
	otherWay  bool // it goes over another connection or protocol than that try, and that may work
	idle      bool // no try is running
	free      bool // a running try waits for a failing server, or for a connection and so has not sent the query
	alone     bool // only one try has begun
	overdue   bool // the time is up for servers that send nothing: a client would retry by itself now
	heard     bool // a server that the query waits for has sent something since the query began
	headOnly  bool // there is a truncated answer, its rest does not come soon, and the client can retry over TCP
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
