package placement

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/pkg/testutil"
)

const (
	templateFields   = `{"f:spec":{"f:template":{"f:spec":{`
	affinityField    = templateFields + `"f:affinity":{"f:nodeAffinity":{"f:requiredDuringSchedulingIgnoredDuringExecution":{}}}}}}}`
	tolerationsField = templateFields + `"f:tolerations":{}}}}}`
	selectorField    = templateFields + `"f:nodeSelector":{}}}}}`
	placedField      = `{"f:spec":{"f:nodePlacement":{"f:nodeSelector":{"f:a":{}}}}}`

	onMasters = `{"template":{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":` +
		`{"nodeSelectorTerms":[{"matchExpressions":[{"key":"master","operator":"In","values":[""]}]}]}}}}}}`
	nothing = "-"
)

func owns(manager, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{Manager: manager, Operation: "Update", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}
}

// change changes a Deployment.
type change func(*appsv1.Deployment)

// coredns is a Deployment as kubeadm makes it, rolled out and then changed.
func coredns(changes ...change) Workload {
	two := int32(2)
	one, quarter := intstr.FromInt32(1), intstr.FromString("25%")
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "coredns", Namespace: "kube-system", Labels: map[string]string{},
		Annotations: map[string]string{}}}
	d.ManagedFields = []metav1.ManagedFieldsEntry{owns("kubeadm", tolerationsField), owns("kubeadm", selectorField)}
	d.Spec.Replicas = &two
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: &one, MaxSurge: &quarter}}
	d.Spec.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "linux"}
	d.Spec.Template.Spec.Tolerations = []corev1.Toleration{
		{Key: "CriticalAddonsOnly", Operator: "Exists"}, {Key: "node-role.kubernetes.io/control-plane", Effect: "NoSchedule"}}
	d.Status = appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2}
	for _, f := range changes {
		f(d)
	}
	return Workload{Deployment: d}
}

// placed has the node affinity for a label, which the managers own.
func placed(label string, managers ...string) change {
	return func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: required(selector(label).NodeSelector)}}
		for _, m := range managers {
			d.ManagedFields = append(d.ManagedFields, owns(m, affinityField))
		}
	}
}

func label(key, value string) change {
	return func(d *appsv1.Deployment) { d.Labels[key] = value }
}

func unready(d *appsv1.Deployment) { d.Status.ReadyReplicas = 0 }

func oneReady(d *appsv1.Deployment) { d.Status.ReadyReplicas = 1 }

func paused(d *appsv1.Deployment) { d.Spec.Paused = true }

func recreate(d *appsv1.Deployment) {
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
}

// operator is OpenShift's object, of the spec and status.
func operator(text string, entries ...metav1.ManagedFieldsEntry) Workload {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	if err := json.Unmarshal([]byte(text), &u.Object); err != nil {
		panic(err)
	}
	u.SetName("default")
	u.SetManagedFields(entries)
	return Workload{Operator: u}
}

// apply is the placement on nodes with the label, "": on any, with the tolerations.
func apply(label string, tolerations ...v1alpha1.Toleration) *v1alpha1.ClusterDNS {
	p := v1alpha1.NodePlacement{Tolerations: tolerations}
	if label != "" {
		p.NodeSelector = selector(label).NodeSelector
	}
	return &v1alpha1.ClusterDNS{NodePlacement: p, Mode: v1alpha1.ModeApply}
}

func strictly(want *v1alpha1.ClusterDNS, minReady int32) *v1alpha1.ClusterDNS {
	want.MinReady = minReady
	return want
}

// dnsNodes are three nodes of the control plane and four workers, two of them with a ready pod of kube-dns.
func dnsNodes() []Node {
	nodes := slices.Concat(many("m", 3, "master=", "taint=node-role.kubernetes.io/control-plane:NoSchedule"), many("w", 4, "dns="))
	nodes[3].DNS, nodes[4].DNS = true, true
	return nodes
}

type dnsCase struct {
	w       Workload
	want    *v1alpha1.ClusterDNS
	write   string // the fields; nothing: no write; "": all are removed
	reasons string // of Progressing and Degraded
	message string // in a condition
	nodes   []Node // unset: dnsNodes
}

func decideDNS(t *testing.T, cases map[string]dnsCase) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if c.nodes == nil {
				c.nodes = dnsNodes()
			}
			d := DecideDNS(Cluster{Nodes: c.nodes}, c.w, c.want)
			write := nothing
			if d.Write && d.Spec == nil {
				write = ""
			} else if d.Write {
				text, err := json.Marshal(d.Spec)
				testutil.Must(t, err)
				write = string(text)
			}
			if write != c.write {
				t.Errorf("writes %s, want %s", write, c.write)
			}
			var reasons, messages []string
			for _, condition := range d.Conditions {
				messages = append(messages, condition.Message)
				if condition.Type != ConditionDNSAvailable {
					reasons = append(reasons, condition.Reason)
				}
				if !slices.Contains(Reasons()[condition.Type], condition.Reason) {
					t.Errorf("%s has a reason %s that no metric has", condition.Type, condition.Reason)
				}
			}
			text := strings.Join(messages, "\n")
			if got := strings.Join(reasons, " "); got != c.reasons || !strings.Contains(text, c.message) {
				t.Errorf("%s, want %s\n%s\nwant %s", got, c.reasons, text, c.message)
			}
		})
	}
}

const controller = FieldManager

func TestDecideDNS(t *testing.T) {
	half := func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 1 }
	late := func(d *appsv1.Deployment) {
		d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: "False", Message: "timed out"}}
	}
	dry := apply("master=")
	dry.Mode = v1alpha1.ModeDryRun
	decideDNS(t, map[string]dnsCase{
		"apply":   {coredns(), apply("master="), onMasters, "RollingOut AsExpected", "eligible: 3 nodes (m000, m001, m002)", nil},
		"dry run": {coredns(), dry, nothing, "DryRun AsExpected", onMasters, nil},
		"done":    {coredns(placed("master=", controller)), apply("master="), nothing, "AsExpected AsExpected", "has the placement", nil},
		"rolling": {coredns(placed("master=", controller), half), apply("master="), nothing, "RollingOut AsExpected", "1 of 2 pods are of", nil},
		"rollout failed": {coredns(placed("master=", controller), half, late), apply("master="), nothing,
			"RollingOut RolloutFailed", "timed out", nil},
		"another placement": {coredns(placed("old=", controller)), apply("master="), onMasters, "RollingOut AsExpected", "", nil},
		"an empty one":      {coredns(placed("old=", controller)), apply(""), "", "RollingOut AsExpected", "", nil},
		"no workload":       {Workload{}, apply("master="), nothing, "NotApplied NoWorkload", "--kube-dns-deployment", nil},
		"invalid": {coredns(), apply("a b="), nothing, "NotApplied Invalid",
			"spec.clusterDNS.nodePlacement.nodeSelector", nil},

		"none, nothing of ours": {coredns(), nil, nothing, "", "", nil},
		"none, ours":            {coredns(placed("old=", controller), label("app.kubernetes.io/managed-by", "kops")), nil, "", "", "", nil},
		"none, unsafe":          {coredns(placed("old=", controller), recreate), nil, nothing, "UnsafeRollout", "cannot be removed", nil},
		"none, no workload":     {Workload{}, nil, nothing, "", "", nil},
	})
}

// A workload that another program keeps is refused, and so is a field that another manager has set.
func TestDNSOwners(t *testing.T) {
	owner := func(d *appsv1.Deployment) {
		d.OwnerReferences = []metav1.OwnerReference{{Kind: "DNS", Name: "default"}}
	}
	tracked := func(d *appsv1.Deployment) { d.Annotations["argocd.argoproj.io/tracking-id"] = "dns" }
	bare := func(d *appsv1.Deployment) { d.Spec.Template.Spec.Tolerations, d.ManagedFields = nil, nil }
	infra := v1alpha1.Toleration{Key: "infra", Operator: "Exists"}
	oursTolerated := func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "infra", Operator: "Exists"}}
		d.ManagedFields = []metav1.ManagedFieldsEntry{owns(controller, tolerationsField)}
	}
	cases := map[string]dnsCase{
		"the same field, by another": {coredns(placed("master=", "kubectl-edit")), apply("master="), nothing, "AsExpected AsExpected", "", nil},
		"tolerations that it has": {coredns(), apply("master=", v1alpha1.Toleration{Key: "node-role.kubernetes.io/control-plane",
			Operator: "Equal", Effect: "NoSchedule"}), onMasters, "RollingOut AsExpected", "", nil},
		"tolerations where there are none": {coredns(bare), apply("", infra),
			`{"template":{"spec":{"tolerations":[{"key":"infra","operator":"Exists"}]}}}`, "RollingOut AsExpected", "",
			many("i", 2, "taint=infra:NoSchedule")},
		"tolerations of ours":          {coredns(oursTolerated), apply("", infra), nothing, "AsExpected AsExpected", "", nil},
		"tolerations of ours, no more": {coredns(oursTolerated), apply(""), "", "RollingOut AsExpected", "eligible: 4 nodes", nil},
	}
	for name, refused := range map[string]struct {
		w       Workload
		message string
	}{
		"ownerReferences": {coredns(owner), "belongs to DNS default (ownerReferences)"},
		"kops":            {coredns(label("app.kubernetes.io/managed-by", "kops")), "is managed by kops (app.kubernetes.io/managed-by: kops)"},
		"addon manager":   {coredns(label("addonmanager.kubernetes.io/mode", "Reconcile")), "is managed by the addon manager"},
		"cluster-service": {coredns(label("kubernetes.io/cluster-service", "true")), "is managed by the addon manager"},
		"Argo CD":         {coredns(label("argocd.argoproj.io/instance", "dns")), "is managed by Argo CD"},
		"Argo CD's mark":  {coredns(tracked), "is managed by Argo CD"},
		"Flux":            {coredns(label("kustomize.toolkit.fluxcd.io/name", "dns")), "is managed by Flux"},
		"Flux, by Helm":   {coredns(label("helm.toolkit.fluxcd.io/name", "dns")), "the values of the HelmRelease"},
		"k3s":             {coredns(label("objectset.rio.cattle.io/id", "")), "is managed by k3s"},
	} {
		cases[name] = dnsCase{refused.w, apply("master="), nothing, "NotApplied ManagedElsewhere", refused.message, nil}
	}
	for name, refused := range map[string]struct {
		w       Workload
		want    *v1alpha1.ClusterDNS
		message string
	}{
		"another's affinity":         {coredns(placed("arch=", "eks")), apply("master="), "eks has set the required node affinity"},
		"edited after us":            {coredns(placed("arch=", controller, "kubectl-edit")), apply("master="), "kubectl-edit has set"},
		"affinity without a manager": {coredns(placed("arch=")), apply("master="), "another manager has set"},
		"another's tolerations":      {coredns(), apply("", infra), "kubeadm has set tolerations"},
	} {
		cases[name] = dnsCase{refused.w, refused.want, nothing, "NotApplied FieldTaken", refused.message, nil}
	}
	decideDNS(t, cases)
}

// Each replica has an eligible node, or the causes are counted.
func TestDNSNodes(t *testing.T) {
	mixed := slices.Concat(many("m", 1, "master="), many("d", 1, "master=", "down"), many("t", 2, "master=", "taint=x:NoSchedule"),
		many("w", 4))
	cases := map[string]dnsCase{}
	for name, c := range map[string]struct {
		w       Workload
		label   string
		nodes   []Node
		message string
	}{
		"no node": {coredns(), "foo=bar", nil, "0 nodes are eligible for kube-dns, of at least 2; of the others, 7 nodes lack foo=bar"},
		"too few": {coredns(), "master=", dnsNodes()[2:], "1 nodes are eligible for kube-dns, of at least 2; of the others, 4 nodes lack master"},
		"causes":  {coredns(), "master=", mixed, "4 nodes lack master, 2 nodes have taint x:NoSchedule, 1 node is not Ready"},
		"cordoned": {coredns(), "master=", many("m", 3, "master=", "taint=node.kubernetes.io/unschedulable:NoSchedule"),
			"3 nodes have taint node.kubernetes.io/unschedulable:NoSchedule"},
	} {
		cases[name] = dnsCase{c.w, apply(c.label), nothing, "NotApplied NotEnoughNodes", c.message, c.nodes}
	}
	cases["the template's own affinity"] = dnsCase{coredns(placed("arch=")), apply(""), nothing, "AsExpected NotEnoughNodes",
		"2 nodes have not what the pods' own node affinity requires", many("m", 2)}
	zero := func(d *appsv1.Deployment) { *d.Spec.Replicas, d.Status = 0, appsv1.DeploymentStatus{} }
	cases["no node for no pod"] = dnsCase{coredns(zero), apply("foo="), nothing, "NotApplied NotEnoughNodes", "of at least 1", nil}
	ours := func(changes ...change) Workload { return coredns(append(changes, placed("master=", controller))...) }
	dry := apply("master=")
	dry.Mode = v1alpha1.ModeDryRun
	cordoned := many("m", 2, "master=", "taint=node.kubernetes.io/unschedulable:NoSchedule")
	// A placement in effect stays, and is reported so, until no pod is ready and no node is left that may become eligible.
	for name, c := range map[string]struct {
		w     Workload
		want  *v1alpha1.ClusterDNS
		write string
		nodes []Node
	}{
		"nodes go later":                 {ours(), apply("master="), nothing, many("w", 4)},
		"one is cordoned":                {ours(), apply("master="), nothing, slices.Concat(many("m", 1, "master="), cordoned)},
		"nodes and pods go":              {ours(unready), apply("master="), "", many("w", 4)},
		"nodes and pods go, dry run":     {ours(unready), dry, nothing, many("w", 4)},
		"nodes and pods go, not ours":    {coredns(unready, placed("master=", "eks")), apply("master="), nothing, many("w", 4)},
		"nodes go, one of two pods":      {ours(oneReady, recreate), strictly(apply("master="), 2), nothing, many("w", 4)},
		"pods go, and nodes are drained": {ours(unready), apply("master="), nothing, cordoned},
	} {
		cases[name] = dnsCase{c.w, c.want, c.write, "AsExpected NotEnoughNodes", "nodes are eligible for kube-dns, of at least 2", c.nodes}
	}
	cases["nodes and pods go, managed"] = dnsCase{ours(unready, label("app.kubernetes.io/managed-by", "x")), apply("master="), "",
		"AsExpected ManagedElsewhere", "removed, because no node has the labels and too few pods are ready: ", many("w", 4)}
	cases["nodes and pods go, and another placement"] = dnsCase{ours(unready), apply("foo="), nothing, "NotApplied NotEnoughNodes", "", nil}
	decideDNS(t, cases)
}

// A rollout leaves minReady pods ready, or as many as there are.
func TestDNSRollouts(t *testing.T) {
	most := func(unavailable, surge string) change {
		return func(d *appsv1.Deployment) {
			u, s := intstr.Parse(unavailable), intstr.Parse(surge)
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxUnavailable: &u, MaxSurge: &s}
		}
	}
	half := func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 1 }
	dry := apply("master=")
	dry.Mode = v1alpha1.ModeDryRun
	const safe, unsafe = "RollingOut AsExpected", "NotApplied UnsafeRollout"
	decideDNS(t, map[string]dnsCase{
		"minReady": {coredns(), strictly(apply("master="), 2), nothing, unsafe,
			"may leave 1 of 2 pods, of at least 2: kubectl -n kube-system patch deployment coredns", nil},
		"minReady, with a surge": {coredns(most("0", "1")), strictly(apply("master="), 2), onMasters, safe, "", nil},
		"minReady, rounded down": {coredns(most("49%", "25%")), strictly(apply("master="), 2), onMasters, safe, "", nil},
		"minReady, both zero":    {coredns(most("10%", "0%")), strictly(apply("master="), 2), nothing, unsafe, "may leave 1 of 2", nil},
		"Recreate":               {coredns(recreate), apply("master="), nothing, unsafe, "may leave 0 of 2", nil},
		"paused": {coredns(paused), apply("master="), nothing, "NotApplied Paused",
			"spec.paused of Deployment kube-system/coredns is true: kubectl -n kube-system rollout resume deployment coredns", nil},
		"paused, dry run":         {coredns(paused), dry, nothing, "NotApplied Paused", "spec.paused", nil},
		"paused amid the rollout": {coredns(paused, half, placed("master=", controller)), apply("master="), nothing, "RollingOut Paused", "", nil},
		"paused after it":         {coredns(paused, placed("master=", controller)), apply("master="), nothing, "AsExpected AsExpected", "", nil},
		"paused, given back":      {coredns(paused, placed("master=", controller)), nil, "", "", "", nil},
		"no pod to lose":          {coredns(recreate, unready), apply("master="), onMasters, safe, "0 pods of kube-dns are ready, of", nil},
	})
}

// On OpenShift, the operator's field is written. Its DaemonSet's pods leave at once, so some must be on nodes that stay.
func TestDNSOperator(t *testing.T) {
	control := v1alpha1.Toleration{Key: "node-role.kubernetes.io/control-plane", Operator: "Exists"}
	onMaster := many("x", 2, "x=", "taint=node-role.kubernetes.io/master:NoSchedule")
	onMaster[0].DNS = true
	onInfra := many("i", 1, "i=", "taint=infra:NoSchedule")
	onInfra[0].DNS = true
	const placedSelector = `{"f:spec":{"f:nodePlacement":{"f:nodeSelector":{"f:x":{}}}}}`
	const on = `{"spec":{"nodePlacement":{"nodeSelector":{"dns":""}}}`
	reports := operator(on+`,"status":{"conditions":[{"type":"Progressing","status":"True","message":"Have 1 available DNS pods"},`+
		`{"type":"Degraded","status":"True","message":"too few"},{"type":"Available","status":"False"}]}}`, owns(controller, placedField))
	decideDNS(t, map[string]dnsCase{
		"write": {operator(`{"spec":{"logLevel":"Normal"}}`), apply("", control),
			`{"nodePlacement":{"tolerations":[{"key":"node-role.kubernetes.io/control-plane","operator":"Exists"}]}}`,
			"RollingOut AsExpected", "eligible: 7 nodes", nil},
		"pods would leave at once": {operator(`{}`), apply("master=", control), nothing, "NotApplied UnsafeRollout",
			"only 0 of 2 pods of kube-dns are on nodes that stay", nil},
		"no pod is seen": {operator(`{}`), apply("x="), nothing, "NotApplied UnsafeRollout",
			"--namespace and --kube-dns must name openshift-dns and dns-default", many("x", 1, "x=")},
		"given back without a pod": {operator(on+"}", owns(controller, placedField)), nil, "", "", "", many("x", 1)},
		"its default tolerates masters": {operator(`{}`), apply("x="), `{"nodePlacement":{"nodeSelector":{"x":""}}}`,
			"RollingOut AsExpected", "eligible: 2 nodes (x000, x001)", onMaster},
		"another's tolerations count": {operator(`{"spec":{"nodePlacement":{"tolerations":[{"key":"infra"}]}}}`,
			owns("kubectl-edit", `{"f:spec":{"f:nodePlacement":{"f:tolerations":{}}}}`)), apply("i="),
			`{"nodePlacement":{"nodeSelector":{"i":""}}}`, "RollingOut AsExpected", "eligible: 1 nodes (i000)", onInfra},
		"another's nodeSelector counts": {operator(`{"spec":{"nodePlacement":{"nodeSelector":{"x":""}}}}`, owns("kubectl-edit", placedSelector)),
			apply("", v1alpha1.Toleration{Key: "infra"}), nothing, "NotApplied NotEnoughNodes", "1 node lacks x", onInfra},
		"given back on masters": {operator(on+"}", owns(controller, placedField)), nil, "", "", "", onMaster},
		"done, with an effect": {operator(`{"spec":{"nodePlacement":{"tolerations":[{"effect":"NoSchedule","key":"x","operator":"Exists"}]}}}`,
			owns(controller, `{"f:spec":{"f:nodePlacement":{"f:tolerations":{}}}}`)),
			apply("", v1alpha1.Toleration{Key: "x", Operator: "Exists", Effect: "NoSchedule"}), nothing, "AsExpected AsExpected", "", nil},
		"its default tolerates no other": {operator(`{}`), apply("master="), nothing, "NotApplied NotEnoughNodes",
			"3 nodes have taint node-role.kubernetes.io/control-plane:NoSchedule", nil},
		"another's field": {operator(`{"spec":{"nodePlacement":{"nodeSelector":{"a":"b"}}}}`, owns("kubectl-edit", placedField)), apply("dns="),
			nothing, "NotApplied FieldTaken", "kubectl-edit has set spec.nodePlacement.nodeSelector of dns.operator default", nil},
		"Unmanaged": {operator(`{"spec":{"managementState":"Unmanaged"}}`), apply("", control), nothing, "NotApplied Paused",
			"spec.managementState of dns.operator default is Unmanaged, so its operator writes nothing: set it to Managed", nil},
		"Managed": {operator(`{"spec":{"managementState":"Managed"}}`), apply("dns="), `{"nodePlacement":{"nodeSelector":{"dns":""}}}`,
			"RollingOut AsExpected", "", nil},
		"done, and it reports": {reports, apply("dns="), nothing, "RollingOut RolloutFailed", "Have 1 available DNS pods", nil},
		"given back":           {operator(on+"}", owns(controller, placedField)), nil, "", "", "", nil},
	})
}

// A refusal of the API server is reported in place of the decision's conditions.
func TestDNSWriteRefused(t *testing.T) {
	d := DecideDNS(Cluster{Nodes: dnsNodes()}, coredns(), apply("master="))
	if !d.Write {
		t.Fatalf("%+v", d)
	}
	d.Failed(errors.New("forbidden"))
	want := []Condition{d.Conditions[0], {ConditionDNSProgressing, false, NotApplied, "nothing is written"},
		{ConditionDNSDegraded, true, WriteRefused, "forbidden"}}
	if d.Write || !slices.Equal(d.Conditions, want) {
		t.Errorf("%+v", d)
	}
}

// A worker is queried by others where a kube-dns pod is on it.
func TestDNSIsolation(t *testing.T) {
	with := func(n Node) Node {
		n.DNS = true
		return n
	}
	master := node("m", "node-role.kubernetes.io/control-plane=")
	infra := node("i", "taint=infra:NoSchedule")
	for name, c := range map[string]struct {
		nodes []Node
		want  string
	}{
		"on workers":         {[]Node{with(node("a")), node("b"), master}, "kube-dns runs on 1 nodes (a), and 2 workers query it"},
		"a cordoned worker":  {[]Node{with(node("a", "taint=node.kubernetes.io/unschedulable:NoSchedule")), node("b")}, "2 workers query it"},
		"one worker":         {[]Node{with(node("a")), master}, ""},
		"control plane":      {[]Node{node("a"), node("b"), with(master)}, ""},
		"old name":           {[]Node{node("a"), node("b"), with(node("m", "node-role.kubernetes.io/master="))}, ""},
		"nodes with a taint": {[]Node{node("a"), node("b"), with(infra)}, ""},
		"a soft taint":       {[]Node{node("a"), with(node("b", "taint=x:PreferNoSchedule"))}, "2 workers query it"},
	} {
		got := DNSIsolation(Cluster{Nodes: c.nodes})
		isolated := c.want == ""
		if got.Type != ConditionWorkersIsolated || got.True != isolated || got.Warns() == isolated || !strings.Contains(got.Message, c.want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := DNSIsolation(Cluster{Nodes: []Node{node("a")}}); got.Type != "" {
		t.Errorf("no pod's node is known: %+v", got)
	}
}
