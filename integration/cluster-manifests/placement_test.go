package clustermanifests

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/placement"
)

// term takes the expression about the controller's label out of a pod's affinity.
func term(t *testing.T, pod *corev1.PodSpec) corev1.NodeSelectorRequirement {
	t.Helper()
	terms := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 {
		t.Fatalf("%d terms, any of which would do", len(terms))
	}
	e := terms[0].MatchExpressions
	i := slices.IndexFunc(e, func(r corev1.NodeSelectorRequirement) bool { return r.Key == placement.Label })
	if i < 0 {
		t.Fatalf("no expression about %s", placement.Label)
	}
	out := e[i]
	terms[0].MatchExpressions = slices.Delete(slices.Clone(e), i, i+1)
	return out
}

// The DaemonSet avoids nodes that the controller excludes, and for the rest requires of a node what the controller takes it to require. The
// cleaning pods are on the others.
func TestPlacementOfPods(t *testing.T) {
	base := the[*appsv1.DaemonSet](t, decode(t, "base", render(t, "base"))).Spec.Template.Spec
	left := the[*appsv1.DaemonSet](t, decode(t, "placement", render(t, "placement"))).Spec.Template.Spec
	avoids, wants := term(t, &base), term(t, &left)
	want := corev1.NodeSelectorRequirement{Key: placement.Label, Operator: corev1.NodeSelectorOpNotIn, Values: []string{placement.Excluded}}
	equal(t, "base", want, avoids)
	want.Operator = corev1.NodeSelectorOpIn
	equal(t, "left", want, wants)
	for name, pod := range map[string]corev1.PodSpec{"base": base, "left": left} {
		got := corev1.PodSpec{NodeSelector: pod.NodeSelector, Affinity: pod.Affinity, Tolerations: pod.Tolerations, HostNetwork: pod.HostNetwork}
		equal(t, name+": the pod that the controller thinks of", placement.BasePod(), got)
	}
}

// The two uninstalls do not take each other's pods.
func TestLeftIsNotUninstall(t *testing.T) {
	left := the[*appsv1.DaemonSet](t, decode(t, "placement", render(t, "placement")))
	uninstall := the[*appsv1.DaemonSet](t, decode(t, "uninstall", render(t, "uninstall")))
	if left.Name == uninstall.Name || cmp.Equal(left.Spec.Selector, uninstall.Spec.Selector) {
		t.Errorf("%s and %s select the same pods", left.Name, uninstall.Name)
	}
	// The role hosts stays on a node that left.
	for _, v := range left.Spec.Template.Spec.Volumes {
		if v.HostPath != nil && v.HostPath.Path == "/etc" {
			t.Error("it mounts the folder of the hosts file")
		}
	}
	if args := left.Spec.Template.Spec.InitContainers[1].Args; !slices.Contains(args, "--host-root=") {
		t.Errorf("it takes the lines out of the hosts file: %q", args)
	}
	golden(t, "testdata/placement-left.diff", diff(t, render(t, "uninstall"), render(t, "placement/left")))
}

// wantPolicy checks that a manifest's admission policy is in force, and is about the account alone.
func wantPolicy(t *testing.T, objects []runtime.Object, account *corev1.ServiceAccount) *admissionv1.ValidatingAdmissionPolicy {
	t.Helper()
	policy := the[*admissionv1.ValidatingAdmissionPolicy](t, objects)
	user := "request.userInfo.username == 'system:serviceaccount:" + account.Namespace + ":" + account.Name + "'"
	if c := policy.Spec.MatchConditions; len(c) != 1 || c[0].Expression != user || *policy.Spec.FailurePolicy != admissionv1.Fail {
		t.Errorf("the policy is about another account: %+v", c)
	}
	b := the[*admissionv1.ValidatingAdmissionPolicyBinding](t, objects).Spec
	if b.PolicyName != policy.Name || !slices.Equal(b.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) {
		t.Errorf("the policy is not in force: %+v", b)
	}
	return policy
}

// subjects are the account, as bindings name it.
func subjects(account *corev1.ServiceAccount) []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}}
}

// The controller is nobody, and its account is the one that the roles and the policy name.
func TestController(t *testing.T) {
	objects := decode(t, "placement", render(t, "placement"))
	account := the[*corev1.ServiceAccount](t, objects)
	deployment := the[*appsv1.Deployment](t, objects)
	pod := deployment.Spec.Template.Spec
	if *deployment.Spec.Replicas != 2 || deployment.Namespace != account.Namespace || pod.ServiceAccountName != account.Name {
		t.Errorf("%d replicas, account %s/%s", *deployment.Spec.Replicas, deployment.Namespace, pod.ServiceAccountName)
	}
	wantConfined(t, pod.Containers[0])
	wantNobody(t, pod.Containers[0])
	if pod.HostNetwork || len(pod.Volumes) > 0 || pod.DNSPolicy != corev1.DNSDefault {
		t.Errorf("host network %v, volumes %v, DNS policy %s", pod.HostNetwork, pod.Volumes, pod.DNSPolicy)
	}
	want := subjects(account)
	roles := all[*rbacv1.RoleBinding](objects)
	equal(t, "cluster's binding", want, the[*rbacv1.ClusterRoleBinding](t, objects).Subjects)
	equal(t, "role bindings", 2, len(roles))
	for _, b := range roles {
		equal(t, b.Namespace, want, b.Subjects)
	}
	for _, v := range wantPolicy(t, objects, account).Spec.Variables {
		if v.Name == "label" && v.Expression != "'"+placement.Label+"'" {
			t.Errorf("the policy is about the label %s", v.Expression)
		}
	}
	if crd := the[*apiextensionsv1.CustomResourceDefinition](t, objects); crd.Spec.Group != v1alpha1.GroupVersion.Group {
		t.Errorf("group %s", crd.Spec.Group)
	}
}

// What the account may do, in one list, so that a right more is seen.
func TestControllerRights(t *testing.T) {
	objects := decode(t, "placement", render(t, "placement"))
	out := rights(the[*rbacv1.ClusterRole](t, objects), objects)
	want := []string{
		"cluster: get operator.openshift.io/dnses default",
		"cluster: get,list,watch neardns.io/nodedns",
		"cluster: get,list,watch,patch nodes",
		"cluster: update neardns.io/nodedns/status",
		"default: create,patch events.k8s.io/events",
		"kube-system: create coordination.k8s.io/leases",
		"kube-system: create,patch events",
		"kube-system: get apps/deployments coredns",
		"kube-system: get,list,watch discovery.k8s.io/endpointslices",
		"kube-system: get,list,watch pods",
		"kube-system: get,update coordination.k8s.io/leases neardns-placement",
	}
	equal(t, "rights", want, out)
}

// The Role for the placement of kube-dns is separate. It names two objects, and an admission policy limits the fields.
func TestClusterDNSRights(t *testing.T) {
	objects := decode(t, "cluster-dns", render(t, "placement/cluster-dns"))
	want := []string{"cluster: patch operator.openshift.io/dnses default", "kube-system: patch apps/deployments coredns"}
	equal(t, "rights", want, rights(the[*rbacv1.ClusterRole](t, objects), objects))
	account := the[*corev1.ServiceAccount](t, decode(t, "placement", render(t, "placement")))
	equal(t, "binding", subjects(account), the[*rbacv1.RoleBinding](t, objects).Subjects)
	equal(t, "cluster's binding", subjects(account), the[*rbacv1.ClusterRoleBinding](t, objects).Subjects)
	wantPolicy(t, objects, account)
}

// The three placements of the enhancement that this API is made after, as their documents have them but for apiVersion and kind, are read
// strictly and mean what they say there.
func TestSeedDocuments(t *testing.T) {
	for name, want := range map[string]v1alpha1.NodePlacement{
		"infra": {
			NodeSelector: map[string]v1alpha1.LabelValue{"kubernetes.io/os": "linux", "node-role.kubernetes.io/infra": ""},
			Tolerations:  []v1alpha1.Toleration{{Effect: "NoSchedule", Key: "node-role.kubernetes.io/infra", Operator: "Exists"}},
		},
		"masters":  {NodeSelector: map[string]v1alpha1.LabelValue{"kubernetes.io/os": "linux", "node-role.kubernetes.io/master": ""}},
		"dns-only": {Tolerations: []v1alpha1.Toleration{{Effect: "NoSchedule", Key: "dns-only", Operator: "Exists"}}},
	} {
		file := "../../fleet/conf/nodedns-" + name + ".yaml"
		object := the[*v1alpha1.NodeDNS](t, decode(t, file, readFile(t, file)))
		equal(t, file, want, object.Spec.NodePlacement)
		equal(t, file+": name", v1alpha1.Name, object.Name)
	}
}
