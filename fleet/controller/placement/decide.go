package placement

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
)

// The conditions of a NodeDNS and their reasons. Both lists are complete.
const (
	ConditionAccepted  = "Accepted"  // the placement is in effect
	ConditionApplied   = "Applied"   // every node is as the placement requires
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

// Reasons returns the reasons of each condition, for export as metrics.
func Reasons() map[string][]string {
	return map[string][]string{
		ConditionAccepted:  {Accepted, Invalid, NoEligibleNodes},
		ConditionApplied:   {Applied, Moving, NoReadyCache, NoUpstream, DeadlineExceeded},
		ConditionAvailable: {Available, NoReadyCache, NoEligibleNodes},
	}
}

// Deadline is how long a change of nodes may take before it is reported as late. Nothing but the report depends on it.
const Deadline = 10 * time.Minute

// Condition is a condition of a NodeDNS without times, which the caller adds.
type Condition struct {
	Type    string
	True    bool
	Reason  string
	Message string
}

// Decision is the next step and the status to report. Include and Exclude name the nodes that lose or get the label now; no node is in
// both. Apply Include first.
type Decision struct {
	Include, Exclude []string
	// Accepted is the placement in effect; nil: every node runs the cache.
	Accepted *v1alpha1.NodePlacement
	// The counts include only nodes that can run a cache. Entering and Leaving count nodes whose change is not complete, including the
	// pods.
	Nodes, Eligible, Ready, ExcludedNodes, Entering, Leaving int
	Conditions                                               [3]Condition // Accepted, Applied, Available
}

// Want is what an administrator requested, and its progress so far.
type Want struct {
	Spec *v1alpha1.NodePlacement // nil: there is no NodeDNS
	Last *v1alpha1.NodePlacement // the last one accepted; nil: none
	Late bool                    // the change has taken longer than Deadline
}

// Decide returns the next step. Entering nodes are included at once. Leaving nodes are excluded only while an eligible node has a Ready
// cache and kube-dns has a ready endpoint, and at most a tenth of the nodes (at least one) is leaving at a time. Decide keeps no state,
// so a controller that restarts or takes over continues.
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
	onTheirWay := 0 // excluded nodes whose pods still exist; pods of a node that is down may never go, so they do not count
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
		case wanted && n.Ready: // a node that is down cannot have a cache, so it does not count
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

// decideWithout includes every node. It sets no conditions, because there is no object for them.
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

// accept returns the placement in effect.
func accept(nodes []*Node, w Want) (*v1alpha1.NodePlacement, rule, Condition) {
	const stays = "; the placement before it stays in force (status.accepted; every node where that is empty)"
	if faults := Check(w.Spec); len(faults) > 0 {
		return w.Last, newRule(w.Last), Condition{ConditionAccepted, false, Invalid, errors.Join(faults...).Error() + stays}
	}
	r := newRule(w.Spec)
	for _, n := range nodes {
		if r.wants(n) {
			return w.Spec, r, Condition{ConditionAccepted, true, Accepted, "nodes are judged by it"}
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
