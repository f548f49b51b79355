package records

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/agent/api/v1alpha1"
	"github.com/neardns/neardns/agent/controller/internal/lead"
	"github.com/neardns/neardns/agent/controller/zones"
	"github.com/neardns/neardns/agent/internal/ddns"
	"github.com/neardns/neardns/agent/internal/publish"
	"github.com/neardns/neardns/agent/internal/targets"
	"github.com/neardns/neardns/agent/internal/zone"
)

// zoneStub stands for a publisher and its zone: it notes what it is told, and the test says what comes of it.
type zoneStub struct {
	setting Setting
	key     func() ddns.Key
	calls   []string
	hosts   map[string]zones.Progress
	known   ZoneProgress
	away    bool // the primary is: nothing is ever done
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

// rig is a reconciler beside a store of objects.
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
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, events: events.NewFakeRecorder(1000), now: time.Now().Truncate(time.Second), stubs: map[string]*zoneStub{}, sick: map[string]bool{}}
	scheme, err := lead.Scheme(kinds)
	if err != nil {
		t.Fatal(err)
	}
	r.store = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.DNSZone{}, &v1alpha1.DNSRecord{}).WithInterceptorFuncs(interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, object client.Object, o ...client.SubResourceUpdateOption) error {
			r.writes++
			return c.SubResource(sub).Update(ctx, object, o...)
		},
	}).Build()
	r.restart()
	return r
}

// restart is another process with the same cluster and zone.
func (r *rig) restart() {
	m, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	checker := targets.New(ctx, slog.New(slog.DiscardHandler), targets.Options{Every: time.Millisecond, Dial: func(_ context.Context, _, address string) (net.Conn, error) {
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
		Namespace: "neardns-zones", ClusterID: "aaaaaaaa", Health: checker, Open: func(s Setting, key func() ddns.Key, _ func(zone.Claim) bool) (Publisher, error) {
			r.opened++
			stub := &zoneStub{setting: s, key: key, hosts: map[string]zones.Progress{}, known: ZoneProgress{Read: r.now, Serial: 1, Clusters: []string{"aaaaaaaa"}}}
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
	if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
		r.t.Fatal(err)
	}
	object, ok := map[string]client.Object{"DNSZone": &v1alpha1.DNSZone{}, "DNSRecord": &v1alpha1.DNSRecord{}, "Secret": &corev1.Secret{}, "Service": &corev1.Service{}}[kind.Kind]
	if !ok {
		object = &unstructured.Unstructured{}
	}
	if err := yaml.Unmarshal([]byte(text), object); err != nil {
		r.t.Fatal(err)
	}
	r.objects++
	object.SetCreationTimestamp(metav1.NewTime(r.now.Add(time.Duration(r.objects) * time.Second)))
	object.SetGeneration(1)
	if err := r.store.Create(r.t.Context(), object); err != nil {
		r.t.Fatal(err)
	}
}

const (
	secretText = `{kind: Secret, apiVersion: v1, metadata: {name: key, namespace: neardns-zones}, data: {name: a2V5, secret: YzJWamNtVjA=}}`
	zoneText   = `{kind: DNSZone, apiVersion: neardns.io/v1alpha1, metadata: {name: shared}, spec: {zone: shared.example, primary: 192.0.2.53, tsig: {secretName: key},
		heartbeatSeconds: 300, messagesPerMinute: 600, publishers: [{namespaces: [shop], hosts: ["*.shared.example"], targets: [192.0.2.0/24]}]}}`
)

func recordText(name, spec string) string {
	return `{kind: DNSRecord, apiVersion: neardns.io/v1alpha1, metadata: {name: ` + name + `, namespace: shop}, spec: {strategy: Simple, ttl: 60, deletionPolicy: Delete, ` + spec + `}}`
}

// settle reconciles until nothing is asked for at once.
func (r *rig) settle() {
	r.t.Helper()
	for range 50 {
		result, err := r.Reconcile(r.t.Context(), ctrl.Request{})
		if err != nil {
			r.t.Fatal(err)
		}
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
	if err := r.store.Update(r.t.Context(), rec); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) delete(object client.Object) {
	r.t.Helper()
	if err := r.store.Delete(r.t.Context(), object); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) zone() *v1alpha1.DNSZone {
	r.t.Helper()
	out := &v1alpha1.DNSZone{}
	if err := r.store.Get(r.t.Context(), client.ObjectKey{Name: "shared"}, out); err != nil {
		r.t.Fatal(err)
	}
	return out
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

// calls are what the zone was told since the last call.
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

// TestLife has a record from its creation to its deletion. A look at an unchanged cluster writes nothing and tells nothing.
func TestLife(t *testing.T) {
	r := newRig(t)
	r.create(recordText("web", "host: www.shared.example, addresses: [192.0.2.1]"))
	r.settle()
	r.want("web", "NoZone NotAccepted NotChecked NoConflict")
	r.create(zoneText)
	r.settle()
	r.want("web", "Accepted ZoneNotReady NotChecked NoConflict")
	if got := reasons(r.zone().Status.Conditions); got != "NoKey NotPublished NotRead" || r.opened > 0 || len(r.record("web").Finalizers) > 0 {
		t.Errorf("without a key the zone is %s, %d publishers, finalizers %v", got, r.opened, r.record("web").Finalizers)
	}
	r.create(secretText)
	r.settle()
	r.want("web", programmed)
	r.wantCalls("set www.shared.example. [192.0.2.1]")
	if z := r.zone(); reasons(z.Status.Conditions) != "Accepted Read AllHeard" || z.Status.Records != 1 || z.Status.ClusterID != "aaaaaaaa" || !slices.Contains(z.Finalizers, Finalizer) {
		t.Errorf("%+v, finalizers %v", z.Status, z.Finalizers)
	}
	s := r.record("web").Status
	if s.Zone != "shared" || s.ClusterID != "aaaaaaaa" || s.Generation != 7 || s.Writes == 0 || s.Published == nil || s.Published.TTL != 60 || len(s.Owners) != 1 {
		t.Errorf("%+v", s)
	}
	if setting := r.stubs["shared.example."].setting; setting != (Setting{"shared.example.", "192.0.2.53:53", 5 * time.Minute, false, 600}) {
		t.Errorf("%+v", setting)
	}
	writes := r.writes
	r.now = r.now.Add(time.Hour)
	r.settle()
	if r.writes != writes {
		t.Errorf("%d statuses are written where nothing changed", r.writes-writes)
	}
	r.wantCalls("")

	r.change("web", func(rec *v1alpha1.DNSRecord) { rec.Spec.Addresses = []v1alpha1.Address{"192.0.2.2", "192.0.2.1"} })
	r.settle()
	r.want("web", programmed)
	r.wantCalls("set www.shared.example. [192.0.2.1 192.0.2.2]")

	r.delete(r.record("web"))
	r.settle()
	if r.record("web") != nil {
		t.Error("the record is still there")
	}
	r.wantCalls("remove www.shared.example.")
	r.settle()
	r.wantCalls("") // the last host is kept in mind, so that the heartbeat ends
	r.create(recordText("next", "host: next.shared.example, addresses: [192.0.2.1]"))
	r.settle()
	r.wantCalls("forget www.shared.example., set next.shared.example. [192.0.2.1]")
	r.delete(r.record("next"))
	r.settle()
	r.delete(r.zone())
	r.settle()
	r.settle()
	if !r.stubs["shared.example."].stopped || len(r.open) > 0 {
		t.Error("a publisher goes on for a DNSZone that is gone")
	}
}

// A record whose zone cannot be written is deleted only when it can be, or at once if it is to be an orphan. A DNSZone waits for its records.
func TestDeletion(t *testing.T) {
	r := newRig(t)
	for _, text := range []string{secretText, zoneText, recordText("web", "host: www.shared.example, addresses: [192.0.2.1]"), recordText("api", "host: api.shared.example, addresses: [192.0.2.1]")} {
		r.create(text)
	}
	r.settle()
	stub := r.stubs["shared.example."]
	stub.away = true
	r.delete(r.record("web"))
	r.delete(r.zone())
	r.settle()
	stub.hosts["www.shared.example."] = zones.Progress{Reason: "Unreachable", Message: "connection refused"}
	r.settle()
	r.want("web", "Deleting Unreachable NotChecked NoConflict")
	if z := r.zone(); z.DeletionTimestamp == nil {
		t.Error("the DNSZone is not being deleted")
	}
	r.restart() // another process knows no more than the objects and the zone
	r.settle()
	r.wantCalls("remove www.shared.example., set api.shared.example. [192.0.2.1]")
	if r.record("web") == nil {
		t.Fatal("the record went before its addresses")
	}
	r.change("web", func(rec *v1alpha1.DNSRecord) { rec.Spec.DeletionPolicy = v1alpha1.DeletionPolicyOrphan })
	r.settle()
	if r.record("web") != nil {
		t.Error("an orphan is still there")
	}
	r.wantCalls("forget www.shared.example.")
	r.delete(r.record("api"))
	r.settle()
	stub = r.stubs["shared.example."]
	if r.record("api") == nil {
		t.Fatal("the record went before its addresses")
	}
	stub.hosts["api.shared.example."] = zones.Progress{Done: true}
	r.settle()
	r.settle()
	if r.record("api") != nil || stub.stopped {
		t.Error("the DNSZone does not wait for the end of the heartbeat")
	}
	stub.known.Clusters = nil
	r.settle()
	r.settle()
	if !stub.stopped {
		t.Error("the last record is gone from the zone, and something stays")
	}
}

// Two records of one host are one publication. Deleting one of them takes its addresses, not the host.
func TestShared(t *testing.T) {
	r := newRig(t)
	for _, text := range []string{secretText, zoneText, recordText("a", "host: www.shared.example, addresses: [192.0.2.1]"),
		recordText("b", "host: www.shared.example, addresses: [192.0.2.2]"), recordText("c", "host: www.shared.example, ttl: 61, addresses: [192.0.2.3]")} {
		r.create(strings.Replace(text, "ttl: 60, deletionPolicy: Delete, host: www.shared.example, ttl: 61", "ttl: 61, deletionPolicy: Delete, host: www.shared.example", 1))
	}
	r.settle()
	r.want("a", programmed)
	r.want("b", programmed)
	r.want("c", "Contradiction NotAccepted NotChecked NoConflict")
	r.wantCalls("set www.shared.example. [192.0.2.1 192.0.2.2]")
	r.delete(r.record("c"))
	r.delete(r.record("a"))
	r.settle()
	r.wantCalls("set www.shared.example. [192.0.2.2]")
	if r.record("a") != nil || r.record("c") != nil {
		t.Error("records are still there")
	}
	r.want("b", programmed)
	// What is no longer allowed is taken out.
	z := r.zone()
	z.Spec.Publishers[0].Namespaces[0] = "other"
	z.Generation++
	if err := r.store.Update(t.Context(), z); err != nil {
		t.Fatal(err)
	}
	r.settle()
	r.want("b", "NotAllowed NotAccepted NotChecked NoConflict")
	r.wantCalls("remove www.shared.example.")
}

// A key that is rotated is the next message's; one that is broken leaves the old one in use. Nothing tells the secret.
func TestKeyRotated(t *testing.T) {
	r := newRig(t)
	for _, text := range []string{secretText, zoneText, recordText("web", "host: www.shared.example, addresses: [192.0.2.1]")} {
		r.create(text)
	}
	r.settle()
	key := r.stubs["shared.example."].key
	if k := key(); k.Name != "key." || k.Secret != "c2VjcmV0" || k.Algorithm != "hmac-sha256" {
		t.Errorf("%+v", k)
	}
	rotate := func(name, secret string) {
		s := &corev1.Secret{}
		if err := r.store.Get(t.Context(), client.ObjectKey{Namespace: "neardns-zones", Name: "key"}, s); err != nil {
			t.Fatal(err)
		}
		s.Data = map[string][]byte{"name": []byte(name), "secret": []byte(secret)}
		if err := r.store.Update(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		r.settle()
	}
	rotate("key2", "bmV4dA==")
	if k := key(); k.Name != "key2." || k.Secret != "bmV4dA==" || r.opened != 1 {
		t.Errorf("%+v after %d starts", k, r.opened)
	}
	rotate("key2", "hunter2!")
	r.want("web", "Accepted ZoneNotReady NotChecked NoConflict")
	if k := key(); k.Secret != "bmV4dA==" {
		t.Errorf("%+v", k)
	}
	if text := fmt.Sprint(r.zone().Status, r.record("web").Status); strings.Contains(text, "hunter2") || strings.Contains(text, "bmV4dA") || !strings.Contains(text, "the key that was there stays in use") {
		t.Error(text)
	}
	r.wantCalls("set www.shared.example. [192.0.2.1]") // at the start, and never since
	rotate("key2", "bmV4dA==")
	r.want("web", programmed)
}

// Addresses come from Services and Gateways, and go with them.
func TestSources(t *testing.T) {
	r := newRig(t)
	service := `{kind: Service, apiVersion: v1, metadata: {name: web, namespace: shop}, spec: {type: LoadBalancer}, status: {loadBalancer: {ingress: [{ip: 192.0.2.7}, {ip: 192.0.2.8}]}}}`
	gateway := `{kind: Gateway, apiVersion: gateway.networking.k8s.io/v1, metadata: {name: edge, namespace: shop}, status: {addresses: [{value: 192.0.2.9}, {type: IPAddress, value: 192.0.2.10}, {type: Hostname, value: a.example}]}}`
	for _, text := range []string{secretText, zoneText, recordText("s", "host: s.shared.example, addressesFrom: {kind: Service, name: web}"), recordText("g", "host: g.shared.example, addressesFrom: {kind: Gateway, name: edge}")} {
		r.create(text)
	}
	r.settle()
	for name, want := range map[string]string{"s": "there is no Service shop/web", "g": "there is no Gateway shop/edge"} {
		r.want(name, "NoAddresses NotAccepted NotChecked NoConflict")
		if c := r.record(name).Status.Conditions[0]; !strings.Contains(c.Message, want) {
			t.Error(c.Message)
		}
	}
	r.create(service)
	r.create(gateway)
	r.now = r.now.Add(lookAgain)
	r.settle()
	r.want("s", programmed)
	r.want("g", programmed)
	r.wantCalls("set g.shared.example. [192.0.2.9 192.0.2.10], set s.shared.example. [192.0.2.7 192.0.2.8]")
	s := &corev1.Service{}
	if err := r.store.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "web"}, s); err != nil {
		t.Fatal(err)
	}
	s.Status.LoadBalancer.Ingress = s.Status.LoadBalancer.Ingress[1:]
	if err := r.store.Status().Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	r.settle()
	r.wantCalls("set s.shared.example. [192.0.2.8]")
	for want, spec := range map[string]corev1.Service{
		"has type ClusterIP": {Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP}},
		"has no address yet": {Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}},
	} {
		if got := serviceSource(&spec); !strings.Contains(got.Problem, want) {
			t.Errorf("%+v", got)
		}
	}
	named := serviceSource(&corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}, Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{Hostname: "a.example"}}}}})
	if named.Hostname != "a.example" || named.Problem != "" {
		t.Errorf("%+v", named)
	}
}

// An address that fails its check is told at once, and taken out after minutes, if another is left.
func TestHealth(t *testing.T) {
	r := newRig(t)
	r.sick["192.0.2.2:80"] = true
	for _, text := range []string{secretText, zoneText, recordText("web", "host: www.shared.example, addresses: [192.0.2.1, 192.0.2.2], healthCheck: {protocol: TCP, port: 80}")} {
		r.create(text)
	}
	r.settle()
	deadline := time.Now().Add(20 * time.Second)
	for r.settle(); reasons(r.record("web").Status.Conditions) != "Accepted Programmed SomeSick NoConflict"; r.settle() {
		if time.Now().After(deadline) {
			t.Fatal(r.record("web").Status.Conditions)
		}
	}
	r.wantCalls("set www.shared.example. [192.0.2.1 192.0.2.2]")
	r.now = r.now.Add(withdrawAfter)
	r.settle()
	r.wantCalls("set www.shared.example. [192.0.2.1]")
}

// A conflict is reported with its attempts, counted, and told by one Event; a stranger's reasons end when it does.
func TestConflict(t *testing.T) {
	r := newRig(t)
	for _, text := range []string{secretText, zoneText, recordText("web", "host: www.shared.example, addresses: [192.0.2.1]")} {
		r.create(text)
	}
	r.settle()
	stub := r.stubs["shared.example."]
	clash := zones.Progress{Reason: "Conflict", Message: "another strategy", Conflict: "ConflictingStrategyDiscovered", ConflictMessage: "bbbbbbbb publishes LoadBalanced", Attempt: 4, Since: r.now.Add(-2 * time.Minute), Owners: []string{"bbbbbbbb"}}
	stub.hosts["www.shared.example."] = clash
	r.settle()
	r.want("web", "Accepted Conflict NotChecked ConflictingStrategyDiscovered")
	if c := meta.FindStatusCondition(r.record("web").Status.Conditions, zones.ConditionConflict); c.Status != metav1.ConditionTrue || !strings.HasSuffix(c.Message, "bbbbbbbb publishes LoadBalanced; current attempt is 4 in 2 minutes") {
		t.Errorf("%+v", c)
	}
	clash.Attempt++
	stub.hosts["www.shared.example."] = clash
	r.settle()
	told := 0
	for len(r.events.Events) > 0 {
		if e := <-r.events.Events; strings.Contains(e, "ConflictingStrategyDiscovered") {
			told++
		}
	}
	if got := testutil.ToFloat64(r.Metrics.records.WithLabelValues("shared", zones.ConditionConflict, "ConflictingStrategyDiscovered")); got != 1 || told != 1 {
		t.Errorf("%v records by metric, %d Events", got, told)
	}
	stub.hosts["www.shared.example."] = zones.Progress{Done: true}
	stub.known.Silent = []string{"bbbbbbbb"}
	r.settle()
	r.want("web", programmed)
	if got := testutil.ToFloat64(r.Metrics.records.WithLabelValues("shared", zones.ConditionConflict, "ConflictingStrategyDiscovered")); got != 0 {
		t.Errorf("%v records by metric", got)
	}
	if z := r.zone(); reasons(z.Status.Conditions) != "Accepted Read Silent" || !slices.Equal(z.Status.Silent, []string{"bbbbbbbb"}) {
		t.Errorf("%+v", z.Status)
	}
}

func TestWithPort(t *testing.T) {
	for primary, want := range map[string]string{"192.0.2.1": "192.0.2.1:53", "192.0.2.1:5353": "192.0.2.1:5353", "2001:db8::1": "[2001:db8::1]:53",
		"[2001:db8::1]": "[2001:db8::1]:53", "[2001:db8::1]:5353": "[2001:db8::1]:5353", "ns1.example": "ns1.example:53", "ns1.example:54": "ns1.example:54"} {
		if got := withPort(primary); got != want {
			t.Errorf("%s: %s", primary, got)
		}
	}
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	m.begin()
	m.record("shared", []metav1.Condition{{Type: "Accepted", Reason: "Accepted"}})
	m.end()
	m.zone("shared", []metav1.Condition{{Type: "Read", Reason: "Read"}})
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	m.begin()
	m.end()
	m.zone("shared", []metav1.Condition{{Type: "Read", Reason: "NotPermitted"}})
	if was, is := testutil.ToFloat64(m.conditions.WithLabelValues("shared", "Read", "Read")), testutil.ToFloat64(m.conditions.WithLabelValues("shared", "Read", "NotPermitted")); was != 0 || is != 1 {
		t.Errorf("%v, %v", was, is)
	}
	if got := testutil.ToFloat64(m.records.WithLabelValues("shared", "Accepted", "Accepted")); got != 0 {
		t.Errorf("%v records that are gone", got)
	}
	m.forget("shared")
	if n := testutil.CollectAndCount(m.conditions); n != 0 {
		t.Errorf("%d series are left", n)
	}
}

// The cluster's name in zones is of what outlives its pods.
func TestIdentify(t *testing.T) {
	r := newRig(t)
	for name, uid := range map[string]string{"kube-system": "u1", "neardns-zones": "u2"} {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid)}}
		if err := r.store.Create(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	a, err := identify(t.Context(), r.store, Options{Namespace: "neardns-zones"})
	if err != nil || a.Cluster != zone.ClusterID("u1") || a.Instance != zone.ClusterID("u2") {
		t.Errorf("%+v, %v", a, err)
	}
	if b, err := identify(t.Context(), r.store, Options{Namespace: "neardns-zones", ClusterID: "rescue1"}); err != nil || b.Cluster != "rescue1" || b.Instance != a.Instance {
		t.Errorf("%+v, %v", b, err)
	}
	if _, err := identify(t.Context(), r.store, Options{Namespace: "neardns-zones", ClusterID: "Not one"}); err == nil {
		t.Error("a bad id is taken")
	}
	if _, err := identify(t.Context(), r.store, Options{Namespace: "elsewhere"}); err == nil || !strings.Contains(err.Error(), "elsewhere") {
		t.Errorf("%v", err)
	}
}

// names collects what is registered.
type names struct {
	prometheus.Registerer
	all strings.Builder
}

func (n *names) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc, 10)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		fmt.Fprintln(&n.all, d)
	}
	return n.Registerer.Register(c)
}

func (n *names) MustRegister(collectors ...prometheus.Collector) {
	for _, c := range collectors {
		if err := n.Register(c); err != nil {
			panic(err)
		}
	}
}

// Alerts and dashboard ask for series and reasons that there are, and every metric has its place in the dashboard.
func TestAlerts(t *testing.T) {
	registered := &names{Registerer: prometheus.NewRegistry()}
	if _, err := NewMetrics(registered); err != nil {
		t.Fatal(err)
	}
	publish.NewMetrics(registered)
	ours := regexp.MustCompile(`fqName: "(neardns_\w+)"`).FindAllStringSubmatch(registered.all.String(), -1)
	known := map[string]bool{}
	for _, m := range ours {
		known[m[1]] = true
	}
	reasons := []string{zones.Accepted, zones.Deleting, zones.ReadReason, zones.Programmed, zones.NotAccepted, zones.NoConflict, zones.SomeSick, zones.AllSick, zones.Silent, string(zone.RRsetFull)}
	text := func(file string) string {
		data, err := os.ReadFile("../../../../conf/" + file)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	dashboard := strings.ReplaceAll(text("zones-dashboard.json"), `\"`, `"`)
	for file, content := range map[string]string{"zones-alerts.yaml": text("zones-alerts.yaml"), "zones-dashboard.json": dashboard} {
		for _, name := range regexp.MustCompile(`neardns_(?:zone|dnszone|dnsrecord)\w*`).FindAllString(content, -1) {
			if !known[name] {
				t.Errorf("%s asks for %s, which nothing exports", file, name)
			}
		}
		for _, m := range regexp.MustCompile(`reason(?:!?=~?)"([\w|]+)"`).FindAllStringSubmatch(content, -1) {
			for reason := range strings.SplitSeq(m[1], "|") {
				if !slices.Contains(reasons, reason) {
					t.Errorf("%s asks for the reason %s, which nothing has", file, reason)
				}
			}
		}
	}
	for name := range known {
		if !strings.Contains(dashboard, name) {
			t.Errorf("%s has no panel", name)
		}
	}
	if len(known) < 12 {
		t.Errorf("only %d metrics: %v", len(known), known)
	}
}

// A publisher's status in the words of conditions.
func TestProgress(t *testing.T) {
	away := &ddns.Error{Kind: ddns.Unreachable, Err: errors.New("connection refused")}
	for name, c := range map[string]struct {
		status publish.Status
		away   error
		want   string // done, reason, conflict, note
	}{
		"programmed":             {publish.Status{Programmed: true}, nil, "true   "},
		"left":                   {publish.Status{Left: true}, nil, "true   "},
		"on its way":             {publish.Status{}, nil, "false   "},
		"the primary is away":    {publish.Status{}, away, "false Unreachable  "},
		"not permitted":          {publish.Status{Conflict: &zone.Conflict{Reason: publish.NotPermitted}}, nil, "false NotPermitted  "},
		"another strategy":       {publish.Status{Conflict: &zone.Conflict{Reason: zone.ConflictingStrategy}}, away, "false ConflictingStrategyDiscovered ConflictingStrategyDiscovered "},
		"two default geos":       {publish.Status{Programmed: true, Notes: []zone.Conflict{{Reason: zone.ConflictingDefault}}}, nil, "true  ConflictingDefaultGeo "},
		"the set is full":        {publish.Status{Programmed: true, Notes: []zone.Conflict{{Reason: zone.RRsetFull}}}, nil, "true   RRsetFull"},
		"programmed, then alone": {publish.Status{Programmed: true}, away, "true   "},
	} {
		p := progress(&c.status, c.away)
		if got := fmt.Sprintf("%v %s %s %s", p.Done, p.Reason, p.Conflict, p.Note); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	held := progress(&publish.Status{Programmed: true, Held: &zone.Host{Strategy: zone.Simple, TTL: 60, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Owners: []string{"a"}}}, nil)
	if held.Held == nil || held.Held.TTL != 60 || held.Held.Addresses[0] != "192.0.2.1" || held.Owners[0] != "a" {
		t.Errorf("%+v", held)
	}
}

// An address of a dead cluster that may work keeps it from being removed; one that does not, and what has no check, does not.
func TestWorks(t *testing.T) {
	r := newRig(t)
	r.sick["192.0.2.2:80"] = true
	o := &opened{dead: map[string]time.Time{}, ranges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	works := r.worksFor("shared", o)
	claim := func(address string, check bool) zone.Claim {
		c := zone.Claim{Publication: zone.Publication{Host: "www.shared.example.", Addresses: []netip.Addr{netip.MustParseAddr(address)}}}
		c.Cluster = "bbbbbbbb"
		if check {
			c.Health = &zone.Health{Protocol: zone.TCP, Port: 80}
		}
		return c
	}
	if works(claim("192.0.2.1", false)) || works(claim("203.0.113.1", true)) || len(o.dead) != 1 {
		t.Errorf("what cannot be asked is taken to work; %d are probed", len(o.dead))
	}
	for deadline := time.Now().Add(20 * time.Second); works(claim("192.0.2.2", true)); {
		if time.Now().After(deadline) {
			t.Fatal("a target that refuses is taken to work")
		}
	}
	if !works(claim("192.0.2.1", true)) {
		t.Error("a target that answers is taken not to work")
	}
	r.bury(o, true)
	if len(o.dead) != 0 {
		t.Errorf("%d are probed for ever", len(o.dead))
	}
}
