package clustermanifests

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
)

// The role zones is nobody, in a namespace of its own, whose Secrets alone its account may read.
func TestZones(t *testing.T) {
	objects := decode(t, "zones", render(t, "zones"))
	namespace, account := the[*corev1.Namespace](t, objects), the[*corev1.ServiceAccount](t, objects)
	deployment := the[*appsv1.Deployment](t, objects)
	pod := deployment.Spec.Template.Spec
	if *deployment.Spec.Replicas != 2 || deployment.Namespace != namespace.Name || account.Namespace != namespace.Name || pod.ServiceAccountName != account.Name {
		t.Errorf("%d replicas, account %s/%s", *deployment.Spec.Replicas, deployment.Namespace, pod.ServiceAccountName)
	}
	equal(t, "pod-security.kubernetes.io/enforce", "restricted", namespace.Labels["pod-security.kubernetes.io/enforce"])
	c := pod.Containers[0]
	wantConfined(t, c)
	wantNobody(t, c) // as the image's user, or one that OpenShift chooses; the kubelet takes only a number for no root
	image, _ := os.ReadFile("../../fleet/Dockerfile")
	equal(t, "a number is the image's user", true, bytes.Contains(image, []byte("\nUSER 65532")))
	if pod.HostNetwork || len(pod.Volumes) > 0 || pod.SecurityContext.SeccompProfile == nil {
		t.Errorf("host network %v, volumes %v", pod.HostNetwork, pod.Volumes)
	}
	if !slices.Contains(c.Args, "--namespace="+namespace.Name) {
		t.Errorf("it looks for keys elsewhere: %v", c.Args)
	}
	want := subjects(account)
	equal(t, "cluster's binding", want, the[*rbacv1.ClusterRoleBinding](t, objects).Subjects)
	if b := the[*rbacv1.RoleBinding](t, objects); b.Namespace != namespace.Name || cmp.Diff(want, b.Subjects) != "" {
		t.Errorf("binding in %s: %v", b.Namespace, b.Subjects)
	}
	wantPolicy(t, objects, account)
	for _, crd := range all[*apiextensionsv1.CustomResourceDefinition](objects) {
		if crd.Spec.Group != v1alpha1.GroupVersion.Group || crd.Spec.Versions[0].Subresources == nil {
			t.Errorf("%s: group %s", crd.Name, crd.Spec.Group)
		}
	}
}

// What the account may do, in one list, so that a right more is seen.
func TestZonesRights(t *testing.T) {
	objects := decode(t, "zones", render(t, "zones"))
	out := rights(the[*rbacv1.ClusterRole](t, objects), objects)
	want := []string{
		"cluster: create,delete neardns.io/dnsrecords",
		"cluster: create,patch events.k8s.io/events",
		"cluster: get gateway.networking.k8s.io/gateways",
		"cluster: get namespaces kube-system,neardns-zones",
		"cluster: get,list,watch neardns.io/dnspolicies",
		"cluster: get,list,watch services",
		"cluster: get,list,watch,patch neardns.io/dnszones,dnsrecords",
		"cluster: update neardns.io/dnspolicies/finalizers",
		"cluster: update neardns.io/dnszones/status,dnsrecords/status,dnspolicies/status",
		"neardns-zones: create coordination.k8s.io/leases",
		"neardns-zones: create,patch events",
		"neardns-zones: get,list,watch secrets",
		"neardns-zones: get,update coordination.k8s.io/leases neardns-zones",
	}
	equal(t, "rights", want, out)
}

// The ready primary is an unprivileged user without a token, in a namespace that takes only such pods; integration/edge runs it.
func TestPrimary(t *testing.T) {
	objects := decode(t, "primary", render(t, "primary"))
	pod := the[*appsv1.StatefulSet](t, objects).Spec.Template.Spec
	for _, c := range append(pod.InitContainers, pod.Containers...) {
		wantConfined(t, c)
	}
	if s := pod.SecurityContext; *pod.AutomountServiceAccountToken || !*s.RunAsNonRoot || *s.FSGroup != *s.RunAsUser || pod.HostNetwork {
		t.Errorf("%+v", pod)
	}
	labels := the[*corev1.Namespace](t, objects).Labels
	equal(t, "pod-security.kubernetes.io/enforce", "restricted", labels["pod-security.kubernetes.io/enforce"])
}
