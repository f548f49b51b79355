package records

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/internal/lead"
	"github.com/neardns/neardns/fleet/controller/zones"
	"github.com/neardns/neardns/fleet/edge/healthcheck"
	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
)

// zoneStub stands for a publisher and its zone: it records its instructions, and does each at once unless the primary is away.
type zoneStub struct {
	setting Setting
	key     rfc2136.KeyFunc
	calls   []string
	hosts   map[string]zones.Progress
	known   ZoneProgress
	away    bool // the primary cannot be reached, so no instruction is done
	stopped bool
}

func (z *zoneStub) Set(p zone.Publication) {
	z.calls = append(z.calls, fmt.Sprintf("set %s %v", p.Host, p.Addresses))
	z.hosts[p.Host] = zones.Progress{Done: !z.away, Owners: []string{"aaaaaaaa"}, Generation: 7, Writes: uint64(len(z.calls)),
		Held: &v1alpha1.Published{Strategy: v1alpha1.Strategy(p.Strategy), TTL: int32(p.TTL), Addresses: []string{"192.0.2.1"}}}
}

func (z *zoneStub) Remove(host string) {
	z.calls = append(z.calls, "remove "+host)
	z.hosts[host] = zones.Progress{Done: !z.away}
}

func (z *zoneStub) Forget(host string) {
	z.calls = append(z.calls, "forget "+host)
	delete(z.hosts, host)
}
func (z *zoneStub) Host(host string) zones.Progress { return z.hosts[host] }
func (z *zoneStub) Zone() ZoneProgress              { return z.known }
func (z *zoneStub) Stop()                           { z.stopped = true }

// rig is a reconciler next to a store of objects.
type rig struct {
	*Reconciler
	t       *testing.T
	store   client.WithWatch
	events  *events.FakeRecorder
	now     time.Time
	stubs   map[string]*zoneStub // by zone, the last that was opened
	opened  int
	writes  int // of statuses
	objects int
	sick    map[string]bool // targets that refuse connections
	refused string          // the name of an object of which the API server takes no change
}

// inBubble runs a test with a rig in a bubble (testing/synctest), because the store and the checker of targets read the clock.
func inBubble(t *testing.T, test func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) { test(t, newRig(t)) })
}

// newRig must be called in a bubble.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, events: events.NewFakeRecorder(1000), now: time.Now(), stubs: map[string]*zoneStub{}, sick: map[string]bool{}}
	scheme, err := lead.Scheme(kinds)
	testutil.Must(t, err)
	r.store = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.DNSZone{}, &v1alpha1.DNSRecord{}, &v1alpha1.DNSPolicy{}).WithInterceptorFuncs(interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, object client.Object, o ...client.SubResourceUpdateOption) error {
			r.writes++
			if object.GetName() == r.refused {
				return apierrors.NewForbidden(schema.GroupResource{}, r.refused, errors.New("a policy"))
			}
			return c.SubResource(sub).Update(ctx, object, o...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, o ...client.PatchOption) error {
			if object.GetName() == r.refused {
				return apierrors.NewForbidden(schema.GroupResource{}, r.refused, errors.New("a policy"))
			}
			return c.Patch(ctx, object, patch, o...)
		},
	}).Build()
	r.restart()
	return r
}

// restart is another process with the same cluster and zone.
func (r *rig) restart() {
	m, err := NewMetrics(prometheus.NewRegistry())
	testutil.Must(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	checker := healthcheck.New(ctx, slog.New(slog.DiscardHandler), healthcheck.Options{Every: time.Millisecond, Dial: func(_ context.Context, _, address string) (net.Conn, error) {
		if r.sick[address] {
			return nil, errors.New("refused")
		}
		a, b := net.Pipe()
		_ = b.Close()
		return a, nil
	}})
	r.t.Cleanup(func() {
		cancel()
		checker.Wait()
	})
	r.Reconciler = &Reconciler{Client: r.store, Direct: r.store, Events: r.events, Log: slog.New(slog.DiscardHandler), Metrics: m, Now: func() time.Time { return r.now },
		Namespace: "neardns-zones", ClusterID: "aaaaaaaa", Health: checker, Open: func(s Setting, key rfc2136.KeyFunc, _ func(zone.Claim) bool) (Publisher, error) {
			if err := zone.CheckOrigin(s.Zone); err != nil {
				return nil, err
			}
			r.opened++
			stub := &zoneStub{setting: s, key: key, hosts: map[string]zones.Progress{}, known: ZoneProgress{Read: r.now, Clusters: []string{"aaaaaaaa"}}}
			if old := r.stubs[s.Zone]; old != nil {
				stub.away = old.away
			}
			r.stubs[s.Zone] = stub
			return stub, nil
		}}
}

func (r *rig) create(text string) {
	r.t.Helper()
	var kind struct{ Kind string }
	testutil.Must(r.t, yaml.Unmarshal([]byte(text), &kind))
	object, ok := map[string]client.Object{"DNSZone": &v1alpha1.DNSZone{}, "DNSRecord": &v1alpha1.DNSRecord{},
		"DNSPolicy": &v1alpha1.DNSPolicy{}, "Secret": &corev1.Secret{}, "Service": &corev1.Service{}}[kind.Kind]
	if !ok {
		object = &unstructured.Unstructured{}
	}
	testutil.Must(r.t, yaml.Unmarshal([]byte(text), object))
	r.objects++
	object.SetCreationTimestamp(metav1.NewTime(r.now.Add(time.Duration(r.objects) * time.Second)))
	object.SetGeneration(1)
	testutil.Must(r.t, r.store.Create(r.t.Context(), object))
}

const (
	secretText = `{kind: Secret, apiVersion: v1, metadata: {name: key, namespace: neardns-zones}, data: {name: a2V5, secret: YzJWamNtVjA=}}`
	zoneText   = `{kind: DNSZone, apiVersion: neardns.io/v1alpha1, metadata: {name: shared}, spec: {zone: shared.example, primary: 192.0.2.53, tsig: {secretName: key},
		heartbeatSeconds: 300, messagesPerMinute: 600, publishers: [{namespaces: [shop], hosts: ["*.shared.example"], targets: [192.0.2.0/24]}]}}`
)

func recordText(name, spec string) string {
	return `{kind: DNSRecord, apiVersion: neardns.io/v1alpha1, metadata: {name: ` + name + `, namespace: shop}, spec: {strategy: Simple, ttl: 60, deletionPolicy: Delete, ` + spec + `}}`
}

// settle reconciles until no request is due at once.
func (r *rig) settle() {
	r.t.Helper()
	for range 50 {
		result, err := r.Reconcile(r.t.Context(), ctrl.Request{})
		testutil.Must(r.t, err)
		if result.RequeueAfter == 0 || result.RequeueAfter >= time.Second {
			return
		}
	}
	r.t.Fatal("it never settles")
}

// record is read, or nil if it is gone.
func (r *rig) record(name string) *v1alpha1.DNSRecord {
	r.t.Helper()
	out := &v1alpha1.DNSRecord{}
	if err := r.store.Get(r.t.Context(), client.ObjectKey{Namespace: "shop", Name: name}, out); client.IgnoreNotFound(err) != nil {
		r.t.Fatal(err)
	} else if err != nil {
		return nil
	}
	return out
}

func (r *rig) change(name string, f func(*v1alpha1.DNSRecord)) {
	r.t.Helper()
	rec := r.record(name)
	f(rec)
	rec.Generation++
	testutil.Must(r.t, r.store.Update(r.t.Context(), rec))
}

func (r *rig) delete(object client.Object) {
	r.t.Helper()
	testutil.Must(r.t, r.store.Delete(r.t.Context(), object))
}

// get reads an object that there is.
func get[T client.Object](r *rig, namespace, name string, into T) T {
	r.t.Helper()
	testutil.Must(r.t, r.store.Get(r.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, into))
	return into
}

func (r *rig) zone() *v1alpha1.DNSZone { return get(r, "", "shared", &v1alpha1.DNSZone{}) }

func (r *rig) wantGone(name string) {
	r.t.Helper()
	if rec := r.record(name); rec != nil {
		r.t.Errorf("%s is still there: %+v", name, rec)
	}
}

func reasons(conditions []metav1.Condition) string {
	var out []string
	for _, c := range conditions {
		out = append(out, c.Reason)
	}
	return strings.Join(out, " ")
}

func (r *rig) want(name, reason string) {
	r.t.Helper()
	rec := r.record(name)
	if rec == nil {
		r.t.Fatalf("%s is gone", name)
	}
	if got := reasons(rec.Status.Conditions); got != reason || rec.Status.ObservedGeneration != rec.Generation {
		r.t.Errorf("%s is %q, want %q: %+v", name, got, reason, rec.Status.Conditions)
	}
}

// calls returns, sorted, the instructions that the zone's publisher got since the previous call.
func (r *rig) calls() string {
	stub := r.stubs["shared.example."]
	if stub == nil {
		return ""
	}
	out := slices.Sorted(slices.Values(stub.calls))
	stub.calls = nil
	return strings.Join(out, ", ")
}

func (r *rig) wantCalls(want string) {
	r.t.Helper()
	if got := r.calls(); got != want {
		r.t.Errorf("the zone was told %q, want %q", got, want)
	}
}

const programmed = "Accepted Programmed NotChecked NoConflict"

// publish creates the zone with its key, and objects, and settles. It returns the zone's publisher.
func (r *rig) publish(texts ...string) *zoneStub {
	r.t.Helper()
	for _, text := range append([]string{secretText, zoneText}, texts...) {
		r.create(text)
	}
	r.settle()
	return r.stubs["shared.example."]
}
