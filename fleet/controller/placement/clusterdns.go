package placement

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
)

// The conditions of a NodeDNS that are about kube-dns, and their reasons. The first three mean what those of OpenShift's DNS operator do.
const (
	ConditionDNSAvailable    = "ClusterDNSAvailable"   // at least minReady pods are ready
	ConditionDNSProgressing  = "ClusterDNSProgressing" // a rollout of kube-dns is in progress
	ConditionDNSDegraded     = "ClusterDNSDegraded"    // the placement is refused, or a write or rollout failed
	ConditionWorkersIsolated = "WorkersIsolated"       // no worker's queries go to kube-dns on another worker

	TooFewReady      = "TooFewReady"
	AsExpected       = "AsExpected"
	DryRun           = "DryRun"
	RollingOut       = "RollingOut"
	NotApplied       = "NotApplied"
	NoWorkload       = "NoWorkload"
	ManagedElsewhere = "ManagedElsewhere" // another program manages the whole workload
	FieldTaken       = "FieldTaken"       // another field manager has set the field
	Paused           = "Paused"           // the workload's controller leaves the pods as they are
	NotEnoughNodes   = "NotEnoughNodes"
	UnsafeRollout    = "UnsafeRollout"
	WriteRefused     = "WriteRefused" // reading or writing the workload failed, or another program keeps removing the fields
	RolloutFailed    = "RolloutFailed"
	Isolated         = "Isolated"
	WorkersQueried   = "WorkersQueried"
)

// Workload is the object that runs cluster DNS, as the API server has it.
type Workload struct {
	Deployment *appsv1.Deployment // nil: there is none of the name, or Operator is set
	// Operator is OpenShift's object of the kind DNS, dns.operator "default". If it is set, it is written in place of a workload:
	// its operator owns the DaemonSet dns-default.
	Operator *unstructured.Unstructured
}

// DNSDecision is what to write for the placement of kube-dns, and what to report.
type DNSDecision struct {
	Write bool
	// Spec has the fields of the workload's spec that the controller is to own by server-side apply. nil: none, and the API server then
	// removes those that the controller owned.
	Spec       map[string]any
	Conditions []Condition
}

// refusal is why a placement of kube-dns is not written.
type refusal struct{ reason, message string }

// dnsPlan is a placement of one workload, before the decision.
type dnsPlan struct {
	name    string // kind and name of the workload
	spec    map[string]any
	differs bool     // the workload does not have the fields of spec, or has a field of the controller that spec lacks
	refused *refusal // another manager's field would change, or cannot be parsed; else nil
	rule    rule     // which nodes the pods can run on, with the placement
	need    int      // number of eligible nodes that are required
	ready   int      // number of ready pods
	// returns why a rollout of the plan could leave too few pods ready; "": it cannot
	unsafe  func(minReady int, eligible []*Node) string
	rolling string // why the workload's last rollout is not complete; "": it is
	paused  string // the field that keeps pods from following the spec, and what to do; "": none
	failed  string // why the last rollout failed; "": it did not
}

// DecideDNS returns what to write into the workload of cluster DNS. want is the placement; nil means that the controller's fields are to be
// removed. DecideDNS writes nothing that another manager owns, and nothing whose rollout could leave fewer ready pods than minReady, or
// than now if that is fewer. If it refuses a placement, the fields that were written before stay, unless in mode Apply too few pods are
// ready and no node has the labels that the pods require.
func DecideDNS(c Cluster, w Workload, want *v1alpha1.ClusterDNS) (d DNSDecision) {
	if w.Operator == nil && w.Deployment == nil {
		if want != nil {
			d.refuse(refusal{NoWorkload, "there is no Deployment of that name: name kube-dns's with --kube-dns-deployment and in the Role"})
		}
		return d
	}
	minReady, asked := 1, v1alpha1.NodePlacement{}
	if want != nil {
		minReady, asked = max(int(want.MinReady), 1), want.NodePlacement
	}
	plan := w.plan(c, &asked, minReady)
	var eligible, others []*Node
	for i := range c.Nodes {
		if n := &c.Nodes[i]; n.Ready && plan.rule.matches(n) && len(plan.rule.untolerated(n)) == 0 {
			eligible = append(eligible, n)
		} else {
			others = append(others, n)
		}
	}
	unsafe := ""
	if plan.differs {
		unsafe = plan.unsafe(minReady, eligible)
	}
	if want == nil {
		if d.Write = plan.differs && unsafe == ""; unsafe != "" {
			d.Conditions = []Condition{{ConditionDNSDegraded, true, UnsafeRollout, "the placement cannot be removed: " + unsafe}}
		}
		return d
	}
	d.Conditions = []Condition{
		{ConditionDNSAvailable, plan.ready >= minReady, Available, fmt.Sprintf("%d pods of kube-dns are ready", plan.ready)},
		{ConditionDNSProgressing, false, AsExpected, fmt.Sprintf("%s has the placement; %s", plan.name, listed("eligible", eligible))},
		{ConditionDNSDegraded, false, AsExpected, "the placement is in effect"},
	}
	if plan.ready < minReady {
		d.Conditions[0].Reason = TooFewReady
		d.Conditions[0].Message += fmt.Sprintf(", of at least %d", minReady)
	}
	if !plan.differs && plan.rolling != "" {
		d.Conditions[1] = Condition{ConditionDNSProgressing, true, RollingOut, plan.name + ": " + plan.rolling}
	}
	if r := w.refusal(&asked, &plan, len(eligible), others, unsafe); r != nil {
		progress := d.Conditions[1]
		if d.refuse(*r); plan.differs {
			return d
		}
		d.Conditions[1] = progress
		if want.Mode == v1alpha1.ModeApply && plan.ready < minReady && w.strands(c, plan.rule, minReady) {
			d.Write = true
			d.Conditions[2].Message = "removed, because no node has the labels and too few pods are ready: " + r.message
		}
		return d
	}
	progress, degraded := &d.Conditions[1], &d.Conditions[2]
	switch {
	case plan.differs && want.Mode != v1alpha1.ModeApply:
		text, err := json.Marshal(plan.spec)
		*progress = Condition{ConditionDNSProgressing, false, DryRun, fmt.Sprintf("mode: Apply would write spec: %s to %s; %s",
			errors.Join(err, errors.New(string(text))), plan.name, listed("eligible", eligible))}
		degraded.Message = "nothing is written"
	case plan.differs:
		d.Write, d.Spec = true, plan.spec
		progress.True, progress.Reason = true, RollingOut
		progress.Message = fmt.Sprintf("%s gets the placement; %s", plan.name, listed("eligible", eligible))
	}
	if !plan.differs && plan.failed != "" {
		*degraded = Condition{ConditionDNSDegraded, true, RolloutFailed, plan.name + ": " + plan.failed}
	}
	return d
}

func (w Workload) plan(c Cluster, p *v1alpha1.NodePlacement, minReady int) dnsPlan {
	if w.Operator != nil {
		return planOperator(c, w.Operator, p, minReady)
	}
	return planDeployment(w.Deployment, p)
}

// strands reports whether no node, Ready or not, has the labels that the Deployment's pods require (r), and the controller's fields can be
// removed.
func (w Workload) strands(c Cluster, r rule, minReady int) bool {
	if w.Operator != nil || slices.ContainsFunc(c.Nodes, func(n Node) bool { return r.matches(&n) }) {
		return false
	}
	back := planDeployment(w.Deployment, &v1alpha1.NodePlacement{})
	return back.differs && back.unsafe(minReady, nil) == ""
}

// refusal returns why the plan for the placement p must not be written, or nil. others are the nodes that are not eligible, and unsafe is
// the result of plan.unsafe.
func (w Workload) refusal(p *v1alpha1.NodePlacement, plan *dnsPlan, eligible int, others []*Node, unsafe string) *refusal {
	if faults := Check("spec.clusterDNS.nodePlacement", p); len(faults) > 0 {
		return &refusal{Invalid, errors.Join(faults...).Error()}
	}
	if w.Operator == nil {
		if by := managedBy(w.Deployment); by != "" {
			return &refusal{ManagedElsewhere, plan.name + " " + by}
		}
	}
	switch {
	case plan.refused != nil:
		return plan.refused
	case plan.paused != "" && (plan.differs || plan.rolling != ""):
		return &refusal{Paused, "no pod would follow the placement: " + plan.paused}
	case eligible < max(plan.need, 1):
		return &refusal{NotEnoughNodes, strings.TrimSuffix(fmt.Sprintf("%d nodes are eligible for kube-dns, of at least %d; of the others, %s",
			eligible, max(plan.need, 1), plan.rule.objections(others)), "; of the others, ")}
	case unsafe != "":
		return &refusal{UnsafeRollout, unsafe}
	}
	return nil
}

// refuse makes d a decision to write nothing, with conditions that report the refusal.
func (d *DNSDecision) refuse(r refusal) {
	d.Write = false
	d.Conditions = slices.DeleteFunc(slices.Clone(d.Conditions), func(c Condition) bool { return c.Type != ConditionDNSAvailable })
	d.Conditions = append(d.Conditions, Condition{ConditionDNSProgressing, false, NotApplied, "nothing is written"},
		Condition{ConditionDNSDegraded, true, r.reason, r.message})
}

// Failed turns a decision into a refusal with the error of reading or writing the workload.
func (d *DNSDecision) Failed(err error) {
	d.refuse(refusal{WriteRefused, err.Error()})
}

// DNSIsolation returns the condition that reports whether workers query kube-dns on other workers. Misses of each cache, and all queries of
// nodes without a cache, go to any kube-dns pod. A worker is a node that runs ordinary pods: it has no control-plane role, and no taint
// that keeps such pods away. If the node of no kube-dns pod is known, the condition has no Type.
func DNSIsolation(c Cluster) Condition {
	workers, known := 0, false
	var queried []*Node
	for i := range c.Nodes {
		n := &c.Nodes[i]
		known = known || n.DNS
		if n.worker() {
			if workers++; n.DNS {
				queried = append(queried, n)
			}
		}
	}
	switch {
	case !known:
		return Condition{}
	case len(queried) == 0 || workers == 1:
		return Condition{ConditionWorkersIsolated, true, Isolated, "no worker queries kube-dns on another worker"}
	}
	return Condition{ConditionWorkersIsolated, false, WorkersQueried, fmt.Sprintf("kube-dns runs on %s, and %d workers query it: their "+
		"caches' misses, and everything where there is no cache. Where workers must not talk to each other, set spec.clusterDNS",
		strings.TrimPrefix(listed("workers", queried), "workers: "), workers)}
}

// worker reports whether the node runs ordinary pods. Taints of Kubernetes itself, for example of a cordoned node, do not count.
func (n *Node) worker() bool {
	for _, role := range []string{"control-plane", "master"} {
		if _, ok := n.Labels["node-role.kubernetes.io/"+role]; ok {
			return false
		}
	}
	for _, t := range n.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(t.Key, "node.kubernetes.io/") {
			return false
		}
	}
	return true
}

// listed returns the number of nodes and the first names: "eligible: 3 nodes (a, b, c)".
func listed(what string, nodes []*Node) string {
	var names []string
	for _, n := range nodes {
		if len(names) == mostObjections {
			names = append(names, "…")
			break
		}
		names = append(names, n.Name)
	}
	return fmt.Sprintf("%s: %d nodes (%s)", what, len(nodes), strings.Join(names, ", "))
}
