package node

import "time"

// When the leases go because the agent cannot ask, and when they come back.
//
// An agent that answers probes may still be unable to ask kube-dns: the host's own filter, its routes or a policy keep the node
// from what they let pods do. Then every name that is not cached fails, and pods are better off with kube-dns. What is known comes
// in rounds of about two seconds: a real question of the agent's own, asked again and again in every way, and beside it the proof
// that kube-dns answers pods. One question answered in a round is enough, and so is one answered client; a lost packet, a slow
// kube-dns or a pod that asks for dead names never fails a round.
//
// Where neither way works, which is kube-dns's own outage most of the time, giving back would only take what the cache still has.
// The leases stay, but for a turn now and then: a policy may admit pods' addresses where it drops the node's and the prober's. In
// a turn a pod's own question decides at once; where none can be asked, the turn lasts, and pods' own repetitions find out.
const (
	turnFirst = 8 * time.Second // with the round before it, longer than most restarts of kube-dns take
	turnEvery = 50 * time.Second
	turnLong  = 10 * time.Second
	unserved  = 10 * time.Second // kube-dns does not answer those who were given back to it, either
)

// stand is what is done with the leases that one cluster DNS address stands behind.
type stand int

const (
	seeking  stand = iota // nothing was answered yet: no lease
	asking                // the agent can ask
	given                 // it cannot, and kube-dns answers pods: no lease
	stranded              // neither: the leases stay, but for their turns
)

// told is what somebody said to a question: nothing certain, yes or no.
type told int

const (
	unsaid told = iota
	yes
	no
)

// finding is what one round of questions found.
type finding struct {
	asked bool // a question of the agent's own was answered
	proof told // whether kube-dns answered the prober, throughout the round
	pod   told // whether it answered a pod's own address; unsaid under a lease, which would catch the question
}

// outlook says whether pods are better off with us. The zero value seeks a first answer.
type outlook struct {
	stand  stand
	turn   bool      // stranded: a turn is on, without leases
	next   time.Time // stranded: when a turn begins, or this one ends
	quick  int       // rounds answered in a row
	losses int       // not forgiven yet
	until  time.Time // given: it rests
	held   time.Time // asking: since when, for forgiving
	alone  time.Time // given: since when kube-dns does not answer either
}

// allows reports whether leases may be held.
func (o *outlook) allows() bool { return o.stand == asking || o.stand == stranded && !o.turn }

// weigh takes one round in.
func (o *outlook) weigh(f finding, now time.Time) {
	if f.asked {
		o.quick++
		switch {
		case o.stand == asking && o.losses > 0 && now.Sub(o.held) >= forgiven:
			o.losses = 0
		case o.stand == asking, o.stand == given && (now.Before(o.until) || o.quick < quickInARow):
		default:
			o.stand, o.turn, o.held = asking, false, now
		}
		return
	}
	o.quick = 0
	served := f.proof == yes || f.pod == yes
	switch {
	case served && o.stand == given:
		o.alone = time.Time{}
	case served:
		if o.stand != seeking {
			o.losses++
		}
		o.stand, o.turn, o.alone = given, false, time.Time{}
		o.until = now.Add(max(restSilent, rest(o.losses)))
	case o.stand == seeking && f.proof == no:
		o.stand, o.turn, o.next = stranded, true, now.Add(turnLong) // nothing is taken from anybody
	case o.stand == asking && f.proof == no:
		o.stand, o.turn, o.next = stranded, false, now.Add(turnFirst)
	case o.stand == given && o.alone.IsZero():
		o.alone = now
	case o.stand == given && now.Sub(o.alone) >= unserved, o.stand == stranded && o.turn && (f.pod == no || !now.Before(o.next)):
		o.stand, o.turn, o.next = stranded, false, now.Add(turnEvery)
	case o.stand == stranded && !o.turn && !now.Before(o.next):
		o.turn, o.next = true, now.Add(turnLong)
	}
}
