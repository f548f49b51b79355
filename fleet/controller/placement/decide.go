package placement

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
)

// The types of those conditions of a NodeDNS that are about the cache, and their reasons.
const (
	ConditionAccepted  = "Accepted"  // the placement is in effect
	ConditionApplied   = "Applied"   // nodes have, or have lost, the cache as required; of a node that is down, only the label counts
	ConditionAvailable = "Available" // an eligible node has a Ready cache

	Accepted         = "Accepted"
	Invalid          = "Invalid"
	NoEligibleNodes  = "NoEligibleNodes"
	Applied          = "Applied"
	Moving           = "Moving"
	NoReadyCache     = "NoReadyCache"
	NoUpstream       = "NoUpstream"
	DeadlineExceeded = "DeadlineExceeded"
	Available        = "Available"
)

// Reasons returns all reasons of each condition, so that each can have a metric series.
func Reasons() map[string][]string {
	return map[string][]string{
		ConditionAccepted:  {Accepted, Invalid, NoEligibleNodes},
		ConditionApplied:   {Applied, Moving, NoReadyCache, NoUpstream, DeadlineExceeded},
		ConditionAvailable: {Available, NoReadyCache, NoEligibleNodes},

		ConditionDNSAvailable:   {Available, TooFewReady},
		ConditionDNSProgressing: {AsExpected, DryRun, RollingOut, NotApplied},
		ConditionDNSDegraded: {AsExpected, Invalid, NoWorkload, ManagedElsewhere, FieldTaken, Paused, NotEnoughNodes, UnsafeRollout,
			WriteRefused, RolloutFailed},
		ConditionWorkersIsolated: {Isolated, WorkersQueried},
	}
}

// Deadline is how long the condition Applied may be False, after a change of the placement or of nodes, before its reason becomes
// DeadlineExceeded. The controller goes on.
const Deadline = 10 * time.Minute

// Condition is a condition of a NodeDNS, without the times.
type Condition struct {
	Type    string
	True    bool
	Reason  string
	Message string
}

// Warns reports whether the condition's Event is a warning: ClusterDNSDegraded if it is True, ClusterDNSProgressing never, and any other
// condition if it is False, except for the reason Moving.
func (c *Condition) Warns() bool {
	switch c.Type {
	case ConditionDNSProgressing:
		return false
	case ConditionDNSDegraded:
		return c.True
	}
	return !c.True && c.Reason != Moving
}

// Decision is the next step and the status to report. Include names the nodes from which to remove the label, Exclude the nodes on which to
// set it. No node is in both. Carry out Include first.
type Decision struct {
	Include, Exclude []string
	// Accepted is the placement in effect; nil: every node runs the cache.
	Accepted *v1alpha1.NodePlacement
	// Numbers of nodes, of those that can run the cache. Entering counts nodes that are to get the cache and do not have it Ready yet; of
	// nodes that are down, it counts only those with the label. Leaving counts nodes that are to lose the cache: those without the label,
	// and those that are up and still have the pod.
	Nodes, Eligible, Ready, ExcludedNodes, Entering, Leaving int
	Conditions                                               [3]Condition // Accepted, Applied, Available
}

// Want is the requested placement, and how far the change to it is.
type Want struct {
	Spec *v1alpha1.NodePlacement // the requested placement; nil: there is no NodeDNS
	Last *v1alpha1.NodePlacement // the placement that was last accepted; nil: none
	Late bool                    // the condition Applied has been False for longer than Deadline, for this generation of the NodeDNS
}

// Decide returns the next step. Nodes that are to get the cache are included at once. Nodes that are to lose it are excluded only while
// an eligible node has a Ready cache and kube-dns has a ready endpoint, and only so many that at most a tenth of the nodes (but at
// least one) is losing it at a time. Decide keeps no state, so that a restarted controller or a new leader continues.
func Decide(c Cluster, w Want) Decision {
	if w.Spec == nil {
		return decideWithout(c)
	}
	var d Decision
	var nodes []*Node
	for i := range c.Nodes {
		if n := &c.Nodes[i]; possible(n) {
			nodes = append(nodes, n)
		}
	}
	var r rule
	d.Accepted, r, d.Conditions[0] = accept(nodes, w)
	var leaving []string
	// number of excluded nodes whose cache pod still exists; a node that is down does not count, because its pod may never disappear
	onTheirWay := 0
	d.Nodes = len(nodes)
	for _, n := range nodes {
		wanted := r.wants(n)
		if wanted {
			d.Eligible++
		}
		if n.excluded() {
			d.ExcludedNodes++
		}
		switch {
		case wanted && n.excluded():
			d.Include = append(d.Include, n.Name)
			d.Entering++
		case wanted && n.serves():
			d.Ready++
		case wanted && n.Ready: // a node that is down is not counted: its cache cannot become Ready
			d.Entering++
		case wanted:
		case !n.excluded():
			leaving = append(leaving, n.Name)
			d.Leaving++
		case n.Cache != NoCache && n.Ready:
			onTheirWay++
			d.Leaving++
		}
	}
	blocked := ""
	switch {
	case len(leaving) == 0:
	case d.Ready == 0:
		blocked = NoReadyCache
	case c.Upstreams == 0:
		blocked = NoUpstream
	default:
		step := max(len(nodes)/10, 1) - onTheirWay
		d.Exclude = leaving[:min(max(step, 0), len(leaving))]
	}
	d.Conditions[1] = d.applied(blocked, w.Late)
	d.Conditions[2] = d.available()
	return d
}

// decideWithout returns the step if there is no NodeDNS: remove the label from every excluded node. It has no conditions, because there is
// no object whose status could have them.
func decideWithout(c Cluster) (d Decision) {
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if n.excluded() {
			d.Include = append(d.Include, n.Name)
		}
		if !possible(n) {
			continue
		}
		d.Nodes++
		d.Eligible++
		switch {
		case n.serves():
			d.Ready++
		case n.Ready || n.excluded():
			d.Entering++
		}
		if n.excluded() {
			d.ExcludedNodes++
		}
	}
	return d
}

// accept returns the placement in effect, as it is and as a rule: the requested one if it is valid and some node matches it, else the one
// that was last accepted. It also returns the condition Accepted.
func accept(nodes []*Node, w Want) (*v1alpha1.NodePlacement, rule, Condition) {
	const stays = "; the last accepted placement stays in effect (status.accepted; every node if that is empty)"
	if faults := Check("spec.nodePlacement", w.Spec); len(faults) > 0 {
		return w.Last, newRule(w.Last), Condition{ConditionAccepted, false, Invalid, errors.Join(faults...).Error() + stays}
	}
	r := newRule(w.Spec)
	for _, n := range nodes {
		if r.wants(n) {
			return w.Spec, r, Condition{ConditionAccepted, true, Accepted, "the placement is in effect"}
		}
	}
	why := "there are no nodes that can run a cache"
	if len(nodes) > 0 {
		why = fmt.Sprintf("none of %d nodes satisfies it: %s", len(nodes), r.objections(nodes))
	}
	if w.Last != nil && reflect.DeepEqual(w.Spec, w.Last) {
		why += "; no further node is excluded"
	} else {
		why += stays
	}
	return w.Last, newRule(w.Last), Condition{ConditionAccepted, false, NoEligibleNodes, why}
}

func (d *Decision) applied(blocked string, late bool) Condition {
	c := Condition{Type: ConditionApplied, Reason: Moving}
	if d.Entering == 0 && d.Leaving == 0 {
		return Condition{ConditionApplied, true, Applied, fmt.Sprintf("%d nodes run the cache, %d are excluded", d.Ready, d.ExcludedNodes)}
	}
	c.Message = fmt.Sprintf("%d nodes wait for their cache, %d are to lose it", d.Entering, d.Leaving)
	switch blocked {
	case NoReadyCache:
		c.Reason = blocked
		c.Message += "; no eligible node has a Ready cache, so no node loses its own"
	case NoUpstream:
		c.Reason = blocked
		c.Message += "; kube-dns has no ready endpoint, which nodes without a cache need, so no node loses its own"
	}
	if late {
		c.Message = fmt.Sprintf("not done after %s (%s): %s", Deadline, c.Reason, c.Message)
		c.Reason = DeadlineExceeded
	}
	return c
}

func (d *Decision) available() Condition {
	c := Condition{ConditionAvailable, d.Ready > 0, Available, fmt.Sprintf("%d of %d eligible nodes have a Ready cache", d.Ready, d.Eligible)}
	switch {
	case d.Eligible == 0:
		c.Reason = NoEligibleNodes
	case d.Ready == 0:
		c.Reason = NoReadyCache
	}
	return c
}
