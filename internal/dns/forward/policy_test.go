package forward

import "testing"

// TestSteps checks the rules of a hedged query in every situation.
func TestSteps(t *testing.T) {
	for e := timerFired; e <= tryEnded; e++ {
		for bits := range 1 << 9 {
			bit := func(i int) bool { return bits>>i&1 == 1 }
			s := situation{e, bit(0), bit(1), bit(2), bit(3), bit(4), bit(5), bit(6), bit(7), bit(8)}
			got := s.next()
			starts := got == stepStart || got == stepStartInBudget
			for rule, kept := range map[string]bool{
				"no try starts if none is left":                                 !starts || s.more,
				"only the timer ends a query":                                   got != stepFinish || e == timerFired,
				"silence ends a query in time":                                  e != timerFired || !s.overdue || s.heard || got == stepFinish,
				"a client that can retry over TCP gets a truncated answer soon": e != timerFired || !s.headOnly || got == stepFinish,
				"a query goes on while a server sends something":                !s.heard || s.headOnly || got != stepFinish,
				"a query goes on while its time is not up":                      s.overdue || s.headOnly || got != stepFinish,
				"a query with a try left never waits for nothing":               e != timerFired || !s.idle || !s.more || got == stepStart || got == stepFinish,
				"a failing server costs the budget nothing":                     e != timerFired || !s.free || !s.more || got == stepStart || got == stepFinish,
				"a lost query is sent once more when its client would":          e != timerFired || !s.alone || !s.overdue || !s.more || got == stepStart || got == stepFinish,
				"another server is tried as soon as one has failed":             e == timerFired || !s.elsewhere || !s.more || got == stepStart,
				"a forged rejection multiplies no query to the same server":     e != tryRejected || s.elsewhere || got == stepWait,
				"a failure is not repeated over the same way":                   e != tryEnded || s.elsewhere || s.otherWay || got == stepWait,
				"a slow server gets a second query only within the budget":      e != timerFired || s.idle || s.free || s.alone && s.overdue || got != stepStart,
			} {
				if !kept {
					t.Errorf("%+v: step %d breaks %q", s, got, rule)
				}
			}
		}
	}
}
