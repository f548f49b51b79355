package reconcile

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/placement"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMove(t *testing.T) {
	for _, restart := range []bool{false, true} {
		r := newRig(t, append(names("infra", 2), names("w", 28)...)...)
		r.apply(map[string]v1alpha1.LabelValue{"infra": ""})
		r.mustStep()
		r.wantExcluded("w00", "w01", "w02")
		r.settle(restart)
		r.wantExcluded(names("w", 28)...)
		s := r.object().Status
		if r.reasons() != "Accepted Applied Available" || s.Nodes != 30 || s.Eligible != 2 || s.Ready != 2 || s.Excluded != 28 || s.ObservedGeneration != 1 {
			t.Errorf("status: %+v", s)
		}
		for name, n := range r.patches {
			if n != 1 {
				t.Errorf("%s was patched %d times", name, n)
			}
		}
		noted := r.noted()
		for _, want := range []string{"Normal Accepted the placement is in effect", "Normal Moving", "Normal Applied 2 nodes run the cache, 28 are excluded", "Normal Available"} {
			if !strings.Contains(noted, want) {
				t.Errorf("no Event %q in\n%s", want, noted)
			}
		}
		// A placement that no node satisfies changes nothing, and one that all satisfy gives every node its cache back, in one step.
		r.apply(map[string]v1alpha1.LabelValue{"foo": "bar"})
		r.settle(restart)
		if got := len(r.excluded()); got != 28 || r.reasons() != "NoEligibleNodes Applied Available" || !strings.Contains(r.noted(), "Warning NoEligibleNodes none of 30 nodes") {
			t.Errorf("foo=bar: %d excluded, %s", got, r.reasons())
		}
		if got := r.object().Status.Accepted.NodeSelector; len(got) != 1 || got["infra"] != "" {
			t.Errorf("accepted: %v", got)
		}
		r.apply(nil)
		r.mustStep()
		r.wantExcluded()
	}
}

// A node whose label cannot be changed (because of a webhook or of other writes) delays no other node, whether the others lose or get the
// cache.
func TestRefusedNode(t *testing.T) {
	r := newRig(t, append(names("infra", 2), names("w", 8)...)...) // a step is one node
	fails := func(err error, names ...string) {
		r.onPatch = func(o client.Object) error {
			if slices.Contains(names, o.GetName()) {
				return err
			}
			return nil
		}
	}
	run := func() {
		t.Helper()
		failed := 0
		for range 30 {
			if _, err := r.step(); err != nil {
				if failed++; !strings.Contains(err.Error(), "the labels of 1 nodes were not changed, those of the others were: label node w00") {
					t.Fatal(err)
				}
			}
			r.daemonSet()
		}
		if failed == 0 {
			t.Error("nothing is said of it")
		}
	}
	fails(apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "w00", errors.New("it was written meanwhile")), "w00")
	r.apply(map[string]v1alpha1.LabelValue{"infra": ""})
	run()
	if got := r.excluded(); !slices.Equal(got, names("w", 8)[1:]) || r.reasons() != "Accepted Moving Available" {
		t.Errorf("%v are excluded, %s", got, r.reasons())
	}
	fails(nil)
	r.settle(false)
	// A webhook may refuse without a reason.
	fails(&apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 400, Message: "denied"}}, "w00")
	r.apply(nil)
	run()
	r.wantExcluded("w00")
	// If the API server does not answer, no other node is tried.
	r.apply(map[string]v1alpha1.LabelValue{"infra": ""})
	tried := 0
	r.onPatch = func(client.Object) error {
		tried++
		return errors.New("connection refused")
	}
	r.apply(nil)
	if _, err := r.step(); err == nil || tried != 1 {
		t.Errorf("%d tries, %v", tried, err)
	}
}

// An Event's note is valid UTF-8, also if a character is at the limit.
func TestShortened(t *testing.T) {
	for _, before := range []string{"", "a", "aa"} {
		note := shortened(before + strings.Repeat("…", 400))
		if !utf8.ValidString(note) || len(note) < 1000 || len(note) > 1024 {
			t.Errorf("%d bytes: %q", len(note), note[len(note)-10:])
		}
	}
}

func TestDeleted(t *testing.T) {
	r := newRig(t, "infra", "w")
	r.apply(map[string]v1alpha1.LabelValue{"infra": ""})
	r.settle(false)
	r.wantExcluded("w")
	testutil.Must(t, r.store.Delete(t.Context(), r.object()))
	r.mustStep()
	r.wantExcluded()
}

// The accepted placement is in the status before a node is changed.
func TestStatusFirst(t *testing.T) {
	r := newRig(t, "infra", "w")
	r.apply(map[string]v1alpha1.LabelValue{"infra": ""})
	r.onState = func(*v1alpha1.NodeDNS) error { return errors.New("no") }
	_, err := r.step()
	testutil.WantError(t, err, "write the status of the NodeDNS: no")
	r.wantExcluded()
}

// A controller that was stopped between its look and its patch excludes no node by what it saw.
func TestStaleLook(t *testing.T) {
	r := newRig(t, "infra", "w")
	r.apply(map[string]v1alpha1.LabelValue{"infra": ""})
	r.onState = func(*v1alpha1.NodeDNS) error {
		r.now = r.now.Add(fresh + time.Millisecond)
		return nil
	}
	if result, err := r.step(); err != nil || result.RequeueAfter == 0 || result.RequeueAfter > time.Second {
		t.Errorf("%+v, %v", result, err)
	}
	r.wantExcluded()
	r.onState = nil
	r.mustStep()
	r.wantExcluded("w")
}

// A node that changed since it was read is judged again.
func TestChangedNode(t *testing.T) {
	r := newRig(t, "infra", "w")
	r.apply(map[string]v1alpha1.LabelValue{"infra": ""})
	r.onPatch = func(object client.Object) error {
		r.onPatch = nil
		n := &corev1.Node{}
		if err := r.store.Get(t.Context(), client.ObjectKeyFromObject(object), n); err != nil {
			return err
		}
		n.Labels["infra"] = ""
		return r.store.Update(t.Context(), n)
	}
	if _, err := r.step(); err == nil {
		t.Error("the patch of a changed node passes")
	}
	r.mustStep()
	r.wantExcluded()
}

func TestDeadline(t *testing.T) {
	r := newRig(t, "infra", "w")
	r.apply(map[string]v1alpha1.LabelValue{"infra": ""})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "neardns-infra", Namespace: "kube-system"}}
	testutil.Must(t, r.store.Delete(t.Context(), pod))
	result, err := r.step()
	if err != nil || r.reasons() != "Accepted NoReadyCache NoReadyCache" || result.RequeueAfter != placement.Deadline+time.Second {
		t.Fatalf("%+v, %v, %s", result, err, r.reasons())
	}
	r.now = r.now.Add(result.RequeueAfter)
	r.wantStep("Accepted DeadlineExceeded NoReadyCache")
	// Another placement has a deadline of its own.
	r.apply(map[string]v1alpha1.LabelValue{"infra": "", "kubernetes.io/os": "linux"})
	r.wantStep("Accepted NoReadyCache NoReadyCache")
	if c := meta.FindStatusCondition(r.object().Status.Conditions, placement.ConditionApplied); !c.LastTransitionTime.Time.Equal(r.now) {
		t.Errorf("the condition is of %s", c.LastTransitionTime)
	}
	// It goes on by itself, however late.
	r.daemonSet()
	r.settle(false)
	if r.reasons() != "Accepted Applied Available" || !slices.Equal(r.excluded(), []string{"w"}) {
		t.Errorf("%s, excluded: %v", r.reasons(), r.excluded())
	}
}

// What was written counts until the watch shows it, and no longer.
func TestLabelsAsSent(t *testing.T) {
	at := func(version, label string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1", ResourceVersion: version}}
		if label != "" {
			n.Labels = map[string]string{placement.Label: label}
		}
		return n
	}
	var l labels
	l.sent(at("10", placement.Excluded))
	seen := at("9", "")
	if got := l.asSent(seen).Labels[placement.Label]; got != placement.Excluded || seen.Labels != nil {
		t.Errorf("an older look shows %q, and the look itself %v", got, seen.Labels)
	}
	if got := l.asSent(at("11", "")).Labels[placement.Label]; got != "" || len(l.written) > 0 {
		t.Errorf("a newer look shows %q", got)
	}
	l.sent(at("12", ""))
	if got := l.asSent(at("9", placement.Excluded)).Labels[placement.Label]; got != "" {
		t.Errorf("after it was taken away: %q", got)
	}
	other := at("1", placement.Excluded)
	other.UID = "2"
	if got := l.asSent(other).Labels[placement.Label]; got != placement.Excluded {
		t.Errorf("another node of the name shows %q", got)
	}
	l.sent(at("12", ""))
	l.forget(nil)
	if len(l.written) > 0 {
		t.Errorf("a node that is gone is remembered: %v", l.written)
	}
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := NewMetrics(registry)
	testutil.Must(t, err)
	d := placement.Decide(placement.Cluster{}, placement.Want{Spec: &v1alpha1.NodePlacement{}})
	m.set(&d, d.Conditions[:])
	if problems, err := promtest.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	if got := promtest.ToFloat64(m.conditions.WithLabelValues("Accepted", "NoEligibleNodes")); got != 1 {
		t.Errorf("the reason is %v", got)
	}
	m.set(&d, nil)
	if got := promtest.ToFloat64(m.conditions.WithLabelValues("Accepted", "NoEligibleNodes")); got != 0 {
		t.Errorf("without an object the reason is %v", got)
	}
}

// slim leaves of every object all that a decision is made of.
func TestSlim(t *testing.T) {
	now := metav1.Now()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "7", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}},
		Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: "x"}}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", DeletionTimestamp: &now}, Spec: corev1.PodSpec{NodeName: "a"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"::1"}}}}
	whole := placement.Read([]*corev1.Node{node}, []*corev1.Pod{pod}, []*discoveryv1.EndpointSlice{slice})
	slimmed := func(object runtime.Object) any {
		out, err := slim(object)
		testutil.Must(t, err)
		return out
	}
	thin, ok := slimmed(node).(*corev1.Node)
	if !ok || thin.Annotations != nil || len(thin.Status.Conditions) != 1 || thin.ResourceVersion != "7" {
		t.Fatalf("%+v", thin)
	}
	got := placement.Read([]*corev1.Node{thin}, []*corev1.Pod{slimmed(pod).(*corev1.Pod)}, []*discoveryv1.EndpointSlice{slimmed(slice).(*discoveryv1.EndpointSlice)})
	if fmt.Sprint(got) != fmt.Sprint(whole) || got.Nodes[0].Cache != placement.UnreadyCache || got.Upstreams != 1 {
		t.Errorf("%+v\nof the whole objects: %+v", got, whole)
	}
}

// The alerts use series and reasons that there are.
func TestAlerts(t *testing.T) {
	text := testutil.ReadFile(t, "../../../conf/placement-alerts.yaml")
	registry := prometheus.NewRegistry()
	m, err := NewMetrics(registry)
	testutil.Must(t, err)
	m.set(&placement.Decision{}, nil)
	families, err := registry.Gather()
	testutil.Must(t, err)
	var series strings.Builder
	for _, f := range families {
		for _, metric := range f.Metric {
			series.WriteString(f.GetName())
			for _, l := range metric.Label {
				fmt.Fprintf(&series, " %s=%q", l.GetName(), l.GetValue())
			}
			series.WriteString("\n")
		}
	}
	asked := regexp.MustCompile(`(neardns_\w+)\{([^}]*)\}`).FindAllStringSubmatch(text, -1)
	for _, a := range asked {
		for label := range strings.SplitSeq(a[2], ", ") {
			label = strings.Replace(label, "!=", "=", 1)
			if !regexp.MustCompile(a[1] + ` .*` + regexp.QuoteMeta(label)).MatchString(series.String()) {
				t.Errorf("nothing exports %s{%s}", a[1], label)
			}
		}
	}
	if len(asked) < 4 {
		t.Errorf("only %d series are asked for", len(asked))
	}
}
