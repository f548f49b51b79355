package placement

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
)

// FieldManager is the controller's name in server-side apply.
const FieldManager = "neardns-controller"

// planDeployment returns the plan for a Deployment. It expresses the nodeSelector as a required node affinity: Kubernetes has one owner for
// a whole nodeSelector, and installers of CoreDNS (kubeadm) set one, but of the affinity a program can own this one field. So no field of
// another manager is overwritten, and removing the field restores what was before. Tolerations have one owner, too: they are written only
// into a template that has none, or only the controller's.
func planDeployment(d *appsv1.Deployment, p *v1alpha1.NodePlacement) dnsPlan {
	plan := dnsPlan{name: "Deployment " + d.Namespace + "/" + d.Name, need: 1, ready: int(d.Status.ReadyReplicas)}
	if d.Spec.Replicas != nil {
		plan.need = int(*d.Spec.Replicas)
	}
	fields := map[string]any{}
	plan.narrow(d, p, fields)
	plan.tolerate(d, p, fields)
	if len(fields) > 0 {
		plan.spec = map[string]any{"template": map[string]any{"spec": fields}}
	}
	plan.unsafe = func(minReady int, _ []*Node) string {
		keeps := plan.need - unavailable(d, plan.need)
		if keeps >= min(minReady, plan.ready) {
			return ""
		}
		return fmt.Sprintf("the rollout of %s may leave %d of %d pods, of at least %d: kubectl -n %s patch deployment %s -p "+
			`'{"spec":{"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":0,"maxSurge":1}}}}'`,
			plan.name, keeps, plan.need, minReady, d.Namespace, d.Name)
	}
	s := d.Status
	if int(s.UpdatedReplicas) < plan.need || s.Replicas > s.UpdatedReplicas || s.AvailableReplicas < s.UpdatedReplicas ||
		s.ObservedGeneration < d.Generation {
		plan.rolling = fmt.Sprintf("%d of %d pods are of the present template, %d are available",
			s.UpdatedReplicas, plan.need, s.AvailableReplicas)
	}
	if d.Spec.Paused {
		plan.paused = fmt.Sprintf("spec.paused of %s is true: kubectl -n %s rollout resume deployment %s", plan.name, d.Namespace, d.Name)
	}
	for _, c := range s.Conditions {
		if c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse {
			plan.failed = c.Message
		}
	}
	return plan
}

// narrow adds the required node affinity to fields if there is to be one, and sets the plan's rule by it.
func (plan *dnsPlan) narrow(d *appsv1.Deployment, p *v1alpha1.NodePlacement, fields map[string]any) {
	template := d.Spec.Template.Spec
	var has *corev1.NodeSelector
	if a := template.Affinity; a != nil && a.NodeAffinity != nil {
		has = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	ours, others := managers(d.ManagedFields, "f:spec", "f:template", "f:spec", "f:affinity", "f:nodeAffinity",
		"f:requiredDuringSchedulingIgnoredDuringExecution")
	plan.rule.selector = map[string]string{}
	maps.Copy(plan.rule.selector, template.NodeSelector)
	for k, v := range p.NodeSelector {
		plan.rule.selector[k] = string(v)
	}
	affinity := func(s *corev1.NodeSelector) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: s}}
	}
	if want := required(p.NodeSelector); want != nil {
		if !equality.Semantic.DeepEqual(has, want) {
			plan.differs = true
			plan.takes("the required node affinity", has != nil && !(ours && others == ""), others)
		}
		has = want
		fields["affinity"] = affinity(want)
	} else if ours {
		plan.differs = true
		if others == "" {
			has = nil
		}
	}
	plan.rule.required = nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{
		Spec: corev1.PodSpec{NodeSelector: template.NodeSelector, Affinity: affinity(has)}})
}

// tolerate adds the tolerations to fields unless the template's own ones tolerate as much, and sets the plan's rule by both.
func (plan *dnsPlan) tolerate(d *appsv1.Deployment, p *v1alpha1.NodePlacement, fields map[string]any) {
	has := d.Spec.Template.Spec.Tolerations
	ours, others := managers(d.ManagedFields, "f:spec", "f:template", "f:spec", "f:tolerations")
	given, kept := tolerations(p.Tolerations), has
	if ours && others == "" {
		kept = nil
	}
	plan.rule.tolerations = slices.Concat(kept, given)
	if !slices.ContainsFunc(given, func(t corev1.Toleration) bool { return !tolerated(kept, t) }) {
		plan.differs = plan.differs || ours
		return
	}
	fields["tolerations"] = given
	if !equality.Semantic.DeepEqual(has, given) {
		plan.differs = true
		plan.takes("tolerations, which these are not all among", len(kept) > 0, others)
	}
}

// unavailable returns how many pods a rollout may remove before others are ready (ResolveFenceposts in pkg/controller/deployment/util,
// Kubernetes 1.36).
func unavailable(d *appsv1.Deployment, replicas int) int {
	r := d.Spec.Strategy.RollingUpdate
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType || r == nil {
		return replicas
	}
	scaled := func(v *intstr.IntOrString, up bool) int {
		n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(v, intstr.FromInt32(0)), replicas, up)
		if err != nil { // the API server refuses such values
			return replicas
		}
		return n
	}
	most := scaled(r.MaxUnavailable, false)
	if most == 0 && scaled(r.MaxSurge, true) == 0 {
		return 1
	}
	return most
}

// planOperator returns the plan for spec.nodePlacement of OpenShift's dns.operator, whose DaemonSet then runs on the nodes that it selects.
// A DaemonSet's pods leave a node at once, so enough of them must run on nodes that stay selected.
func planOperator(c Cluster, o *unstructured.Unstructured, p *v1alpha1.NodePlacement, minReady int) dnsPlan {
	plan := dnsPlan{name: "dns.operator " + o.GetName(), need: minReady}
	for i := range c.Nodes {
		if c.Nodes[i].DNS {
			plan.ready++
		}
	}
	fields := map[string]any{}
	if len(p.NodeSelector) > 0 {
		fields["nodeSelector"] = p.NodeSelector
	}
	if len(p.Tolerations) > 0 {
		fields["tolerations"] = p.Tolerations
	}
	if len(fields) > 0 {
		plan.spec = map[string]any{"nodePlacement": fields}
	}
	pods := *p
	placed, _, _ := unstructured.NestedMap(o.Object, "spec", "nodePlacement")
	for _, field := range []string{"nodeSelector", "tolerations"} {
		ours, others := managers(o.GetManagedFields(), "f:spec", "f:nodePlacement", "f:"+field)
		if (fields[field] != nil || ours) && !sameJSON(placed[field], fields[field]) {
			plan.differs = true
			plan.takes("spec.nodePlacement."+field, others != "", others)
		}
		if fields[field] == nil && others != "" { // the field stays as the other manager has set it
			text, err := json.Marshal(map[string]any{field: placed[field]})
			if err = errors.Join(err, json.Unmarshal(text, &pods)); err != nil && plan.refused == nil {
				plan.refused = &refusal{Invalid, "spec.nodePlacement of " + plan.name + ": " + err.Error()}
			}
		}
	}
	if len(pods.Tolerations) == 0 { // the operator's default (tolerationsForDNS of openshift/cluster-dns-operator)
		pods.Tolerations = []v1alpha1.Toleration{{Key: "node-role.kubernetes.io/master", Operator: "Exists"}}
	}
	plan.rule = newRule(&pods)
	plan.unsafe = func(minReady int, eligible []*Node) string {
		if plan.ready == 0 && plan.spec != nil {
			return "no ready endpoint of kube-dns is known: --namespace and --kube-dns must name openshift-dns and dns-default"
		}
		stay := 0
		for _, n := range eligible {
			if n.DNS {
				stay++
			}
		}
		if stay >= min(minReady, plan.ready) {
			return ""
		}
		return fmt.Sprintf("only %d of %d pods of kube-dns are on nodes that stay, of at least %d. Add nodes before you take others away: "+
			"first tolerations without a nodeSelector, and the nodeSelector when pods are ready on its nodes", stay, plan.ready, minReady)
	}
	if state, _, _ := unstructured.NestedString(o.Object, "spec", "managementState"); state == "Unmanaged" {
		plan.paused = "spec.managementState of " + plan.name + " is Unmanaged, so its operator writes nothing: set it to Managed"
	}
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, item := range list {
		condition, _ := item.(map[string]any)
		if condition["status"] != "True" {
			continue
		}
		switch message := fmt.Sprint(condition["message"]); condition["type"] {
		case "Progressing":
			plan.rolling = message
		case "Degraded":
			plan.failed = message
		}
	}
	return plan
}

// takes sets plan.refused, if it is not set yet, when the plan would change a field that other managers have set. Then set is true, and
// others names them, or is empty if they are unknown.
func (plan *dnsPlan) takes(field string, set bool, others string) {
	if set && plan.refused == nil {
		plan.refused = &refusal{FieldTaken, fmt.Sprintf("%s has set %s of %s: change the field there, or take it out there",
			cmp.Or(others, "another manager"), field, plan.name)}
	}
}

func sameJSON(a, b any) bool {
	var values [2]any // decoded from JSON, because a struct and a map are written in different orders
	for i, v := range []any{a, b} {
		text, err := json.Marshal(v)
		if err != nil || json.Unmarshal(text, &values[i]) != nil {
			return false
		}
	}
	return equality.Semantic.DeepEqual(values[0], values[1])
}

// required returns a nodeSelector as a node affinity, sorted so that it is the same each time; nil if the nodeSelector is empty.
func required(labels map[string]v1alpha1.LabelValue) *corev1.NodeSelector {
	if len(labels) == 0 {
		return nil
	}
	var term corev1.NodeSelectorTerm
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		term.MatchExpressions = append(term.MatchExpressions,
			corev1.NodeSelectorRequirement{Key: k, Operator: corev1.NodeSelectorOpIn, Values: []string{string(labels[k])}})
	}
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}
}

func tolerations(list []v1alpha1.Toleration) (out []corev1.Toleration) {
	for _, t := range list {
		out = append(out, corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOperator(t.Operator), Value: t.Value,
			Effect: corev1.TaintEffect(t.Effect), TolerationSeconds: t.TolerationSeconds})
	}
	return out
}

// tolerated reports whether a toleration in list tolerates at least what t tolerates.
func tolerated(list []corev1.Toleration, t corev1.Toleration) bool {
	return slices.ContainsFunc(list, func(has corev1.Toleration) bool {
		exists := has.Operator == corev1.TolerationOpExists
		return (has.Key == t.Key || has.Key == "" && exists) && (has.Effect == "" || has.Effect == t.Effect) &&
			(exists || t.Operator != corev1.TolerationOpExists && has.Value == t.Value) &&
			(has.TolerationSeconds == nil || equality.Semantic.DeepEqual(has.TolerationSeconds, t.TolerationSeconds))
	})
}

// managers reports whether the controller owns the field at the path, and returns the names of the other managers that own it.
func managers(entries []metav1.ManagedFieldsEntry, path ...string) (ours bool, others string) {
	var names []string
	for _, e := range entries {
		if e.FieldsV1 == nil {
			continue
		}
		at := map[string]json.RawMessage{}
		err := json.Unmarshal(e.FieldsV1.GetRawBytes(), &at)
		for _, key := range path {
			next := map[string]json.RawMessage{}
			if err == nil {
				err = json.Unmarshal(at[key], &next)
			}
			at = next
		}
		switch {
		case err != nil: // this manager owns nothing at the path
		case e.Manager == FieldManager:
			ours = true
		case !slices.Contains(names, e.Manager):
			names = append(names, e.Manager)
		}
	}
	return ours, strings.Join(names, ", ")
}

// managedBy returns, as text, which program manages the whole Deployment, by an owner reference, label or annotation of that program, and
// where to set the placement instead; "" if no such program is known.
func managedBy(d *appsv1.Deployment) string {
	for _, o := range d.OwnerReferences {
		return fmt.Sprintf("belongs to %s %s (ownerReferences): place it there", o.Kind, o.Name)
	}
	for _, m := range []struct{ key, program, field string }{
		{"addonmanager.kubernetes.io/mode", "the addon manager", "the addon's settings of your provider"},
		{"app.kubernetes.io/managed-by", "", "its settings (Helm: affinity and tolerations in the release's values)"},
		{"kubernetes.io/cluster-service", "the addon manager", "the addon's settings of your provider"},
		{"argocd.argoproj.io/instance", "Argo CD", "the application's repository"},
		{"argocd.argoproj.io/tracking-id", "Argo CD", "the application's repository"},
		{"helm.toolkit.fluxcd.io/name", "Flux", "the values of the HelmRelease"},
		{"kustomize.toolkit.fluxcd.io/name", "Flux", "the Kustomization's repository"},
		{"objectset.rio.cattle.io/id", "k3s or RKE2", "a HelmChartConfig, or the server's manifest"},
	} {
		for _, marks := range []map[string]string{d.Labels, d.Annotations} {
			if value, ok := marks[m.key]; ok {
				return fmt.Sprintf("is managed by %s (%s: %s): place it by %s", cmp.Or(m.program, value, "another program"), m.key, value, m.field)
			}
		}
	}
	return ""
}
