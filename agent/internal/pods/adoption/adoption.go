// Package adoption decides when the agent may try a running pod for the first time. It is pure: the caller counts the pods and passes the
// time.
//
// It starts one pod every Pause, so that a node full of pods changes over slowly. It starts none while more than 5 % of the pods that it
// started are not answered: something on the node then keeps pods from the agent, and the other pods stay on kube-dns. When the trials of
// those pods are answered, or the pods end, it goes on.
//
// It cannot fail.
package adoption

import (
	"fmt"
	"time"
)

// Pause is the shortest time between two pods: five pods a second.
const Pause = time.Second / 5

// MinTried is the least number of tried pods that stops adoption. It is the smallest number of which one pod is no more than 5 %, so that
// one pod with a policy of its own never stops a node. Until then, pods without an answer cost nothing: each stays on kube-dns.
const MinTried = 20

// maxUnanswered is the percentage of the tried pods above which adoption stops.
const maxUnanswered = 5

// Pod is the state of an adopted pod.
type Pod int

// The states.
const (
	Other      Pod = iota // steer.mode does not select it, or it is never steered
	Waiting               // not started
	Started               // its first trial has not ended
	Answered              // steered, or about to be
	Unanswered            // bypassed
	pods
)

// Census counts the adopted pods by state. Only pods that this agent started are Started, Answered or Unanswered.
type Census [pods]int

// Stopped reports whether no further pod may be started. It is false if none waits.
func (c Census) Stopped() bool {
	tried := c[Answered] + c[Unanswered]
	return c[Waiting] > 0 && tried >= MinTried && 100*c[Unanswered] > maxUnanswered*tried
}

// Adoption remembers when the last pod was started, and whether adoption has stopped. The zero value is ready to use.
type Adoption struct {
	next    time.Time // the earliest time of the next pod
	stopped error
}

// Next reports whether a pod may be started now. If not, again is the time to try again; zero: not before a trial ends, or a pod is ready.
// ready: a waiting pod could be steered at once. Call it at each look, because it also ends a stop.
func (a *Adoption) Next(c Census, ready bool, now time.Time) (start bool, again time.Time) {
	switch {
	case !c.Stopped():
		a.stopped = nil
	case a.stopped == nil: // the text stays as it was when adoption stopped, so that it is logged once
		a.stopped = fmt.Errorf("adoption of running pods has stopped: %d of the %d pods tried are not answered, more than %d %%; the others "+
			"stay on kube-dns. Let pods reach the steering address: `neardns-agent pods` has the reasons, and adoption goes on when the trials "+
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

// Stopped returns why adoption has stopped; nil if it has not.
func (a *Adoption) Stopped() error { return a.stopped }
