package controlplane

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/pkg/testutil"
)

// patches returns what makes a patch of an object by an account.
func patches(t *testing.T, account client.Client) func(object client.Object, text string) func() error {
	return func(object client.Object, text string) func() error {
		return func() error {
			return account.Patch(t.Context(), object.DeepCopyObject().(client.Object), client.RawPatch("application/merge-patch+json", []byte(text)))
		}
	}
}

// wantRefused fails unless the API server refuses each of these: by its rights, or by the policy whose messages contain a text.
func wantRefused(t *testing.T, text string, tried map[string]func() error) {
	t.Helper()
	for name, f := range tried {
		if err := f(); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		} else if apierrors.IsInvalid(err) && !strings.Contains(err.Error(), text) {
			t.Errorf("%s is refused for another reason: %v", name, err)
		}
	}
}

// TestRefused has the API server refuse what is none of the controller's, and placements that mean nothing.
func TestRefused(t *testing.T) {
	c := newCluster(t, 1, 1)
	account := c.As(c.Token("kube-system", "neardns-controller"))
	patch, infra := patches(t, account), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "infra000"}}
	node := func(text string) func() error { return patch(infra, text) }
	excluded := node(`{"metadata":{"labels":{"neardns.io/cache":"excluded"}}}`)
	Await(t, "the policy is in force, and lets the label through", func() error {
		if err := node(`{"metadata":{"labels":{"a":"b"}}}`)(); err == nil {
			return errors.Join(errors.New("another label is let through"), node(`{"metadata":{"labels":{"a":null}}}`)())
		}
		return excluded()
	})
	testutil.Check(t, node(`{"metadata":{"labels":{"neardns.io/cache":null}}}`)(), "the label cannot be taken away")
	before := c.nodes()[0]
	tried := map[string]func() error{
		"another label":         node(`{"metadata":{"labels":{"a":"b"}}}`),
		"both labels":           node(`{"metadata":{"labels":{"neardns.io/cache":"excluded","a":"b"}}}`),
		"another label changed": node(`{"metadata":{"labels":{"infra":"b"}}}`),
		"another label gone":    node(`{"metadata":{"labels":{"infra":null}}}`),
		"all labels gone":       node(`{"metadata":{"labels":null}}`),
		"another value":         node(`{"metadata":{"labels":{"neardns.io/cache":"maybe"}}}`),
		"a taint":               node(`{"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}`),
		"unschedulable":         node(`{"spec":{"unschedulable":true}}`),
		"an annotation":         node(`{"metadata":{"annotations":{"a":"b"}}}`),
		"a finalizer":           node(`{"metadata":{"finalizers":["a.io/b"]}}`),
		"an owner":              node(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"a","uid":"1"}]}}`),
		"a node's status": func() error {
			running := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"phase":"Running"}}`))
			return account.Status().Patch(t.Context(), infra.DeepCopy(), running)
		},
		"a node deleted": func() error { return account.Delete(t.Context(), infra.DeepCopy()) },
		"a node made": func() error {
			return account.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "new"}})
		},
		"a DaemonSet": patch(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "neardns", Namespace: "kube-system"}},
			`{"metadata":{"labels":{"a":"b"}}}`),
		"a pod": func() error {
			return account.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "kube-system"},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}})
		},
		"a Secret": func() error {
			return account.List(t.Context(), &corev1.SecretList{}, client.InNamespace("kube-system"))
		},
		"other pods": func() error { return account.List(t.Context(), &corev1.PodList{}, client.InNamespace("default")) },
		"the NodeDNS's spec": func() error {
			return account.Create(t.Context(), &v1alpha1.NodeDNS{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
		},
	}
	compat.Say(t, "placement", "rights", fmt.Sprintf("one label of Nodes; %d other things are refused", len(tried)))
	wantRefused(t, "neardns-controller may", tried)
	after := c.nodes()[0]
	after.ResourceVersion, before.ResourceVersion, after.ManagedFields, before.ManagedFields = "", "", nil, nil
	if got, want := after.String(), before.String(); got != want {
		t.Errorf("the node changed:\n%s\n%s", want, got)
	}
	badPlacements(t, c)
}

// badPlacements are refused at apply, with the field, and by one error each.
func badPlacements(t *testing.T, c *cluster) {
	t.Helper()
	long := strings.Repeat("a", 64)
	bad := map[string]string{
		`{nodeSelector: {"": x}}`:                                          "nodePlacement.nodeSelector",
		`{nodeSelector: {"a b": x}}`:                                       "nodePlacement.nodeSelector",
		`{nodeSelector: {-a: x}}`:                                          "nodePlacement.nodeSelector",
		`{nodeSelector: {a-: x}}`:                                          "nodePlacement.nodeSelector",
		`{nodeSelector: {A.io/b/c: x}}`:                                    "nodePlacement.nodeSelector",
		`{nodeSelector: {UPPER/b: x}}`:                                     "nodePlacement.nodeSelector",
		`{nodeSelector: {/b: x}}`:                                          "nodePlacement.nodeSelector",
		`{nodeSelector: {a/: x}}`:                                          "nodePlacement.nodeSelector",
		`{nodeSelector: {` + long + `: x}}`:                                "nodePlacement.nodeSelector",
		`{nodeSelector: {ä: x}}`:                                           "nodePlacement.nodeSelector",
		`{nodeSelector: {a: "b c"}}`:                                       "nodePlacement.nodeSelector",
		`{nodeSelector: {a: b/c}}`:                                         "nodePlacement.nodeSelector",
		`{nodeSelector: {a: -b}}`:                                          "nodePlacement.nodeSelector",
		`{nodeSelector: {a: ` + long + `}}`:                                "nodePlacement.nodeSelector",
		`{nodeSelector: {a: [b]}}`:                                         "nodePlacement.nodeSelector.a",
		`{nodeSelector: {a: true}}`:                                        "nodePlacement.nodeSelector.a",
		`{nodeSelector: {a: 1}}`:                                           "nodePlacement.nodeSelector.a",
		`{nodeSelector: [a]}`:                                              "nodePlacement.nodeSelector",
		`{nodeSelector: {matchExpressions: [{key: a, operator: Exists}]}}`: "nodePlacement.nodeSelector.matchExpressions",
		`{nodeSelector: {neardns.io/cache: excluded}}`:                     "nodePlacement.nodeSelector",
		`{nodeSelectors: {a: b}}`:                                          "nodePlacement.nodeSelectors",
		`{tolerations: {key: a}}`:                                          "nodePlacement.tolerations",
		`{tolerations: [a]}`:                                               "nodePlacement.tolerations[0]",
		`{tolerations: [{}]}`:                                              "nodePlacement.tolerations[0]",
		`{tolerations: [{operator: Equal, value: a}]}`:                     "nodePlacement.tolerations[0]",
		`{tolerations: [{key: a b}]}`:                                      "nodePlacement.tolerations[0].key",
		`{tolerations: [{key: ` + long + `}]}`:                             "nodePlacement.tolerations[0].key",
		`{tolerations: [{key: a, value: b/c}]}`:                            "nodePlacement.tolerations[0].value",
		`{tolerations: [{key: a, operator: Exists, value: b}]}`:            "nodePlacement.tolerations[0]",
		`{tolerations: [{key: a, operator: exists}]}`:                      "nodePlacement.tolerations[0].operator",
		`{tolerations: [{key: a, operator: Gt, value: "1"}]}`:              "nodePlacement.tolerations[0].operator",
		`{tolerations: [{key: a, effect: NoDance}]}`:                       "nodePlacement.tolerations[0].effect",
		`{tolerations: [{key: a}, {key: a, effect: NoSchedule, tolerationSeconds: 5}]}`: "nodePlacement.tolerations[1]",
		`{tolerations: [{key: a, effect: NoExecute, tolerationSeconds: soon}]}`:         "nodePlacement.tolerations[0].tolerationSeconds",
		`{tolerations: [{key: a, effects: NoExecute}]}`:                                 "nodePlacement.tolerations[0].effects",
		`{affinity: {}}`: "nodePlacement.affinity",
	}
	compat.Say(t, "placement", "faulty input", fmt.Sprintf("%d cases, each refused at apply with its field", len(bad)))
	for text, want := range bad {
		file := c.path("bad.yaml")
		c.write("bad.yaml", "apiVersion: neardns.io/v1alpha1\nkind: NodeDNS\nmetadata: {name: default}\nspec: {nodePlacement: "+text+"}\n")
		out, err := c.Kubectl("create", "--validate=strict", "-f", file)
		if err == nil || !strings.Contains(out, want) || strings.Count(out, "\n* spec.") > 1 { // kubectl lists several so
			t.Errorf("%s: %v: %s", text, err, out)
		}
	}
	likePods(t, c, bad)
	c.write("bad.yaml", "apiVersion: neardns.io/v1alpha1\nkind: NodeDNS\nmetadata: {name: other}\n")
	if out, err := c.Kubectl("create", "-f", c.path("bad.yaml")); err == nil || !strings.Contains(out, "its name is default") {
		t.Errorf("another name: %v: %s", err, out)
	}
	var list v1alpha1.NodeDNSList
	if err := c.Client.List(t.Context(), &list); err != nil || len(list.Items) > 0 {
		t.Errorf("%v: %d objects were made", err, len(list.Items))
	}
}

// likePods holds the verdicts on placements to those of the same API server on pods with the same fields.
func likePods(t *testing.T, c *cluster, bad map[string]string) {
	t.Helper()
	verdict := func(text string) (string, error) {
		c.write("verdict.yaml", text)
		return c.Kubectl("create", "--dry-run=server", "--validate=strict", "-f", c.path("verdict.yaml"))
	}
	for text := range bad {
		if text == `{affinity: {}}` || strings.Contains(text, "neardns.io/cache") { // only a placement cannot have these
			continue
		}
		pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, image: a}], " + strings.TrimPrefix(text, "{") + "\n"
		if out, err := verdict(pod); err == nil {
			t.Errorf("%s is refused in a placement and taken in a pod: %s", text, out)
		}
	}
	name := strings.Repeat("a", 63)
	for _, text := range []string{
		`{}`, `{nodeSelector: {}}`, `{tolerations: []}`, `{nodeSelector: {}, tolerations: []}`,
		`{nodeSelector: {a: ""}}`, `{nodeSelector: {a.b-c.io/D_e.f: x-y_z.1}}`, `{nodeSelector: {` + name + `: ` + name + `}}`, `{nodeSelector: {A: "1"}}`,
		`{tolerations: [{operator: Exists}]}`, `{tolerations: [{key: "", operator: Exists, effect: ""}]}`, `{tolerations: [{key: a}]}`,
		`{tolerations: [{key: a, operator: "", value: ""}]}`, `{tolerations: [{key: a.io/b, operator: Equal, value: c, effect: PreferNoSchedule}]}`,
		`{tolerations: [{key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 0}]}`, `{tolerations: [{key: a, effect: NoExecute, tolerationSeconds: -5}]}`,
		`{tolerations: [{key: a}, {key: a}]}`,
	} {
		for kind, object := range map[string]string{
			"pod":       "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, image: a}], " + strings.TrimPrefix(text, "{") + "\n",
			"placement": "apiVersion: neardns.io/v1alpha1\nkind: NodeDNS\nmetadata: {name: default}\nspec: {nodePlacement: " + text + "}\n",
		} {
			out, err := verdict(object)
			testutil.Check(t, err, text, kind, out)
		}
	}
}
