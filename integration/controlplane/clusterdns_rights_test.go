package controlplane

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/pkg/testutil"
)

// The account may do nothing of kube-dns by default, and with the Role, two fields of one Deployment and one of OpenShift's object.
func TestClusterDNSRights(t *testing.T) {
	c := newDNSCluster(t)
	c.openShift()
	before := c.coredns()
	account := c.As(c.Token("kube-system", "neardns-controller"))
	allowed, tried := dnsWrites(t, account)
	for what, f := range allowed {
		if err := f(); !apierrors.IsForbidden(err) {
			t.Errorf("%s before there is a Role: %v", what, err)
		}
	}
	c.kubectl("apply", "-k", "../../fleet/install/placement/cluster-dns")
	Await(t, "the policy is in force", func() error {
		// An earlier try may have come before the policy, and the same change again would be none.
		c.kubectl("patch", "deployment", "coredns", "-n", "kube-system", "--type=merge", "-p", `{"spec":{"paused":null}}`)
		err := tried["paused"]()
		return testutil.ErrorIf(!apierrors.IsInvalid(err), "it lets another field through: %w", err)
	})
	wantRefused(t, "neardns-controller may", tried)
	if diff := difference(before.Spec, c.coredns().Spec); diff != "" {
		t.Errorf("the Deployment changed:\n%s", diff)
	}
	for what, f := range allowed {
		testutil.Check(t, f(), what)
	}
}

// dnsWrites are what the account may write with the Role, and what not even then.
func dnsWrites(t *testing.T, account client.Client) (allowed, tried map[string]func() error) {
	patch := patches(t, account)
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "coredns", Namespace: "kube-system"}}
	other := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "neardns-controller", Namespace: "kube-system"}}
	operator := dnsObject()
	pod := func(text string) func() error { return patch(deployment, `{"spec":{"template":{"spec":`+text+`}}}`) }
	const affinity = `{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":` +
		`{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Exists"}]}]}}}}`
	allowed = map[string]func() error{
		"node affinity":  pod(affinity),
		"tolerations":    pod(`{"tolerations":[{"key":"a","operator":"Exists"}]}`),
		"node placement": patch(operator, `{"spec":{"nodePlacement":{"nodeSelector":{"a":"b"}}}}`),
	}
	tried = map[string]func() error{
		"replicas":           patch(deployment, `{"spec":{"replicas":0}}`),
		"paused":             patch(deployment, `{"spec":{"paused":true}}`),
		"the strategy":       patch(deployment, `{"spec":{"strategy":{"rollingUpdate":{"maxSurge":2}}}}`),
		"a label":            patch(deployment, `{"metadata":{"labels":{"a":"b"}}}`),
		"an annotation":      patch(deployment, `{"metadata":{"annotations":{"a":"b"}}}`),
		"a finalizer":        patch(deployment, `{"metadata":{"finalizers":["a.io/b"]}}`),
		"an owner":           patch(deployment, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"a","uid":"1"}]}}`),
		"a pod's label":      patch(deployment, `{"spec":{"template":{"metadata":{"labels":{"a":"b"}}}}}`),
		"a pod's annotation": patch(deployment, `{"spec":{"template":{"metadata":{"annotations":{"a":"b"}}}}}`),
		"an image":           pod(`{"containers":[{"name":"coredns","image":"other"}]}`),
		"a container":        pod(`{"initContainers":[{"name":"a","image":"a"}]}`),
		"the account":        pod(`{"serviceAccountName":"other"}`),
		"host network":       pod(`{"hostNetwork":true}`),
		"a node selector":    pod(`{"nodeSelector":{"a":"b"}}`),
		"a node":             pod(`{"nodeName":"m0"}`),
		"a volume":           pod(`{"volumes":[{"name":"a","hostPath":{"path":"/"}}]}`),
		"pod anti-affinity":  pod(`{"affinity":{"podAntiAffinity":null}}`),
		"pod affinity":       pod(`{"affinity":{"podAffinity":{}}}`),
		"no affinity":        pod(`{"affinity":null}`),
		"both":               pod(strings.TrimSuffix(affinity, "}") + `,"hostNetwork":true}`),
		"scale": func() error {
			return account.SubResource("scale").Patch(t.Context(), deployment.DeepCopy(),
				client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":0}}`)))
		},
		"its deletion":       func() error { return account.Delete(t.Context(), deployment.DeepCopy()) },
		"another Deployment": patch(other, `{"spec":{"replicas":0}}`),
		"the list of Deployments": func() error {
			return account.List(t.Context(), &appsv1.DeploymentList{}, client.InNamespace("kube-system"))
		},
		"the operator's log level": patch(operator, `{"spec":{"logLevel":"Debug"}}`),
		"the operator's labels":    patch(operator, `{"metadata":{"labels":{"a":"b"}}}`),
		"the operator's spec":      patch(operator, `{"spec":null}`),
	}
	return allowed, tried
}

func dnsObject() client.Object {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: "operator.openshift.io", Version: "v1", Kind: "DNS"})
	o.SetName("default")
	return o
}
