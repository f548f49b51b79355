// Package adoption decides when the agent may send the first test queries (the first trial) of a pod that ran before the plugin was
// installed. It is pure: the caller counts the pods and passes the time.
//
// It starts at most one pod every Pause, so that a node full of pods changes over slowly. It stops while more than 5 % of the tried pods,
// of which there must be MinTried, get no answer: something on the node then keeps pods' queries from the agent, so the other pods stay on
// kube-dns. Once those trials are answered, or the pods end, it goes on. It cannot fail.
package adoption

import (
	"fmt"
	"time"
)

// Pause is the shortest time between the starts of two pods: five pods a second.
const Pause = time.Second / 5

// MinTried is the number of tried pods from which adoption may stop. One pod of 20 is 5 %, so one pod with a policy of its own never
// stops the adoption of a node. With fewer tried pods, unanswered trials do no harm: such a pod stays on kube-dns.
const MinTried = 20

// maxUnanswered is the percentage of tried pods without an answer above which adoption stops.
const maxUnanswered = 5

// Pod is the state of an adopted pod, for counting.
type Pod int

// The states.
const (
	Other      Pod = iota // none of the following: for example, steer.mode does not select it, or an earlier agent tried it
	Waiting               // its first trial is not allowed yet
	Started               // its first trial is allowed, and has no result yet
	Answered              // its trial was answered: it is steered, or about to be
	Unanswered            // bypassed, because its queries are not answered
	pods
)

// Census counts the adopted pods by state. Pods that an earlier agent tried count as Other.
type Census [pods]int

// Stopped reports whether no further pod may be started, because too many of the tried pods get no answer. It is false if no pod waits.
func (c Census) Stopped() bool {
	tried := c[Answered] + c[Unanswered]
	return c[Waiting] > 0 && tried >= MinTried && 100*c[Unanswered] > maxUnanswered*tried
}

// Adoption has the time of the next start, and whether adoption has stopped. The zero value is ready to use.
type Adoption struct {
	next    time.Time // no pod is started before this time
	stopped error     // why adoption has stopped; nil if it goes on
}

// Next reports whether a pod may be started now. ready is true if a waiting pod could be steered at once. again is when the next pod may
// be started; zero if that depends on the result of a trial or on a pod that could be steered. Call Next each time pods were counted,
// because it also ends a stop.
func (a *Adoption) Next(c Census, ready bool, now time.Time) (start bool, again time.Time) {
	switch {
	case !c.Stopped():
		a.stopped = nil
	case a.stopped == nil: // the text keeps the numbers of the moment when adoption stopped, so that the caller logs it once
		a.stopped = fmt.Errorf("adoption of running pods has stopped: %d of the %d pods tried are not answered, more than %d %%; the others "+
			"stay on kube-dns. Let pods reach the steering address: `neardns-agent status` has the reasons, and adoption goes on when the trials "+
			"are answered. A restart of the agent tries twenty more", c[Unanswered], c[Answered]+c[Unanswered], maxUnanswered)
	}
	switch {
	case a.stopped != nil || !ready:
		return false, time.Time{}
	case now.Before(a.next):
		return false, a.next
	}
	a.next = now.Add(Pause)
	return true, a.next
}

// Stopped returns the reason if adoption has stopped; else nil.
func (a *Adoption) Stopped() error { return a.stopped }
