package clustermanifests

import (
	"bytes"
	"slices"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
)

// decode reads the objects of a manifest as an API server that validates strictly does: an unknown or doubled field is an
// error, and so is a kind that no API here has.
func decode(t *testing.T, name, text string) []runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, networkingv1.AddToScheme, monitoringv1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme,
		admissionv1.AddToScheme, apiextensionsv1.AddToScheme, v1alpha1.AddToScheme,
	} {
		must(t, add(scheme))
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	var out []runtime.Object
	for i, doc := range bytes.Split([]byte(text), []byte("\n---\n")) {
		object, _, err := decoder.Decode(doc, nil, nil)
		if err != nil {
			t.Fatalf("%s, document %d: %v", name, i+1, err)
		}
		out = append(out, object)
	}
	return out
}

// all returns the objects of a type.
func all[T runtime.Object](objects []runtime.Object) (out []T) {
	for _, o := range objects {
		if o, ok := o.(T); ok {
			out = append(out, o)
		}
	}
	return out
}

// the returns the one object of a type.
func the[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	found := all[T](objects)
	if len(found) != 1 {
		t.Fatalf("%d objects of type %T, want one", len(found), *new(T))
	}
	return found[0]
}

// TestEveryKustomization holds what all of them have in common.
func TestEveryKustomization(t *testing.T) {
	for _, name := range kustomizations(t) {
		t.Run(name, func(t *testing.T) {
			objects := decode(t, name, render(t, name))
			for _, set := range all[*appsv1.DaemonSet](objects) {
				wantOnNodes(t, set)
				pod := set.Spec.Template.Spec
				for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
					wantConfined(t, c)
					if c.Name == "follow" { // it sees the whole of the host's /etc
						wantNobody(t, c)
					}
					wantMounts(t, pod, c)
				}
				for _, v := range pod.Volumes {
					if v.ConfigMap != nil && v.ConfigMap.Optional == nil && !slices.ContainsFunc(all[*corev1.ConfigMap](objects), func(m *corev1.ConfigMap) bool {
						return m.Name == v.ConfigMap.Name && m.Namespace == set.Namespace
					}) {
						t.Errorf("volume %s is of a ConfigMap %s, which is not here", v.Name, v.ConfigMap.Name)
					}
				}
			}
		})
	}
}
