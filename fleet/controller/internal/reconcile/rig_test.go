package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/internal/lead"
	"github.com/neardns/neardns/fleet/controller/placement"
	"github.com/neardns/neardns/pkg/testutil"
)

// rig is a reconciler next to a store of objects, to which the test does what a DaemonSet controller does.
type rig struct {
	*Reconciler
	t       *testing.T
	store   client.WithWatch
	events  *events.FakeRecorder
	now     time.Time
	patches map[string]int                // by node
	onPatch func(client.Object) error     // before a node is patched
	onState func(*v1alpha1.NodeDNS) error // before a status is written
}

func newRig(t *testing.T, nodes ...string) *rig {
	t.Helper()
	r := &rig{t: t, events: events.NewFakeRecorder(1000), now: time.Unix(1_700_000_000, 0), patches: map[string]int{}}
	scheme, err := lead.Scheme(kinds)
	testutil.Must(t, err)
	var objects []client.Object
	for _, name := range nodes {
		labels := map[string]string{"kubernetes.io/os": "linux"}
		if strings.HasPrefix(name, "infra") {
			labels["infra"] = ""
		}
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}})
	}
	objects = append(objects, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "kube-dns-1", Namespace: "kube-system"},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}})
	r.store = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.NodeDNS{}).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, o ...client.PatchOption) error {
			if r.onPatch != nil {
				if err := r.onPatch(object); err != nil {
					return err
				}
			}
			r.patches[object.GetName()]++
			return c.Patch(ctx, object, patch, o...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, object client.Object, o ...client.SubResourceUpdateOption) error {
			if d, ok := object.(*v1alpha1.NodeDNS); ok && r.onState != nil {
				if err := r.onState(d); err != nil {
					return err
				}
			}
			return c.SubResource(sub).Update(ctx, object, o...)
		},
	}).Build()
	r.restart()
	r.daemonSet()
	return r
}

// restart is another process with the same cluster.
func (r *rig) restart() {
	metrics, err := NewMetrics(prometheus.NewRegistry())
	testutil.Must(r.t, err)
	r.Reconciler = &Reconciler{Client: r.store, Events: r.events, Log: slog.New(slog.DiscardHandler), Metrics: metrics,
		Now: func() time.Time { return r.now }, Reader: r.store, KubeDNS: client.ObjectKey{Namespace: "kube-system", Name: "coredns"}}
}

// daemonSet gives each node that is not excluded a Ready cache, and takes it from the others.
func (r *rig) daemonSet() {
	r.t.Helper()
	for _, n := range r.nodes() {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "neardns-" + n.Name, Namespace: "kube-system"}, Spec: corev1.PodSpec{NodeName: n.Name},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
		var err error
		if n.Labels[placement.Label] == placement.Excluded {
			err = client.IgnoreNotFound(r.store.Delete(r.t.Context(), pod))
		} else if r.store.Get(r.t.Context(), client.ObjectKeyFromObject(pod), &corev1.Pod{}) != nil {
			err = r.store.Create(r.t.Context(), pod)
		}
		testutil.Must(r.t, err)
	}
}

func (r *rig) nodes() []corev1.Node {
	r.t.Helper()
	var list corev1.NodeList
	testutil.Must(r.t, r.store.List(r.t.Context(), &list))
	return list.Items
}

func (r *rig) excluded() (out []string) {
	for _, n := range r.nodes() {
		if n.Labels[placement.Label] == placement.Excluded {
			out = append(out, n.Name)
		}
	}
	return out
}

func (r *rig) wantExcluded(want ...string) {
	r.t.Helper()
	if got := r.excluded(); !slices.Equal(got, want) {
		r.t.Errorf("excluded are %v, want %v", got, want)
	}
}

// edit changes the NodeDNS's spec, and makes the object if there is none.
func (r *rig) edit(change func(*v1alpha1.NodeDNSSpec)) {
	r.t.Helper()
	object := &v1alpha1.NodeDNS{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "1"}}
	missing := r.store.Get(r.t.Context(), client.ObjectKeyFromObject(object), object) != nil
	change(&object.Spec)
	object.Generation++
	if missing {
		testutil.Must(r.t, r.store.Create(r.t.Context(), object))
	} else {
		testutil.Must(r.t, r.store.Update(r.t.Context(), object))
	}
}

func (r *rig) apply(selector map[string]v1alpha1.LabelValue) {
	r.t.Helper()
	r.edit(func(s *v1alpha1.NodeDNSSpec) {
		*s = v1alpha1.NodeDNSSpec{NodePlacement: v1alpha1.NodePlacement{NodeSelector: selector}}
	})
}

func (r *rig) object() *v1alpha1.NodeDNS {
	r.t.Helper()
	object := &v1alpha1.NodeDNS{}
	testutil.Must(r.t, r.store.Get(r.t.Context(), client.ObjectKey{Name: "default"}, object))
	return object
}

// reasons returns the reasons of all conditions, in their order.
func (r *rig) reasons() string {
	var out []string
	for _, c := range r.object().Status.Conditions {
		out = append(out, c.Reason)
	}
	return strings.Join(out, " ")
}

func (r *rig) step() (ctrl.Result, error) { return r.Reconcile(r.t.Context(), ctrl.Request{}) }

func (r *rig) mustStep() {
	r.t.Helper()
	_, err := r.step()
	testutil.Must(r.t, err)
}

// wantStep takes a step, after which the conditions have these reasons.
func (r *rig) wantStep(reasons string) {
	r.t.Helper()
	if _, err := r.step(); err != nil || r.reasons() != reasons {
		r.t.Errorf("%v, %s, want %s", err, r.reasons(), reasons)
	}
}

// settle runs Reconcile 51 times and daemonSet between; with restart, each of the first 50 times in a new process.
func (r *rig) settle(restart bool) {
	r.t.Helper()
	for range 50 {
		if restart {
			r.restart()
		}
		r.mustStep()
		r.daemonSet()
	}
	r.mustStep()
}

func (r *rig) noted() string {
	var out []string
	for len(r.events.Events) > 0 {
		out = append(out, <-r.events.Events)
	}
	return strings.Join(out, "\n")
}

func names(prefix string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("%s%02d", prefix, i))
	}
	return out
}
