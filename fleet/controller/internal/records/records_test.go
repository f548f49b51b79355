package records

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/zones"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestLife has a record from its creation to its deletion. A look at an unchanged cluster writes nothing and reports nothing.
func TestLife(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
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
		r.wantGone("web")
		r.wantCalls("remove www.shared.example.")
		r.settle()
		r.wantCalls("") // the last host is not forgotten yet, so that the publisher deletes the heartbeat
		r.create(recordText("next", "host: next.shared.example, addresses: [192.0.2.1]"))
		r.settle()
		r.wantCalls("forget www.shared.example., set next.shared.example. [192.0.2.1]")
		r.delete(r.record("next"))
		r.settle()
		r.stubs["shared.example."].known.Clusters = nil // the heartbeat is gone
		r.delete(r.zone())
		r.settle()
		r.settle()
		if !r.stubs["shared.example."].stopped || len(r.open) > 0 {
			t.Error("a publisher goes on for a DNSZone that is gone")
		}
	})
}

// A record whose zone cannot be written is deleted only when it can be, or at once if it is to be an orphan. A DNSZone waits for its
// records, and for the deletion of the heartbeat.
func TestDeletion(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		stub := r.publish(recordText("web", "host: www.shared.example, addresses: [192.0.2.1]"), recordText("api", "host: api.shared.example, addresses: [192.0.2.1]"))
		stub.away = true
		r.delete(r.record("web"))
		r.delete(r.zone())
		r.settle()
		stub.hosts["www.shared.example."] = zones.Progress{Reason: "Unreachable", Message: "connection refused"}
		r.settle()
		r.want("web", "Deleting Unreachable NotChecked NoConflict")
		z := r.zone()
		if z.DeletionTimestamp == nil {
			t.Error("the DNSZone is not being deleted")
		}
		if c := z.Status.Conditions[0]; c.Reason != "Deleting" || !strings.Contains(c.Message, "DNSRecord shop/") {
			t.Errorf("a DNSZone whose deletion waits says %+v", c)
		}
		r.restart() // another process knows no more than the objects and the zone
		r.settle()
		r.wantCalls("remove www.shared.example., set api.shared.example. [192.0.2.1]")
		if r.record("web") == nil {
			t.Fatal("the record went before its addresses")
		}
		r.change("web", func(rec *v1alpha1.DNSRecord) { rec.Spec.DeletionPolicy = v1alpha1.DeletionPolicyOrphan })
		r.settle()
		r.wantGone("web")
		r.wantCalls("forget www.shared.example.")
		r.delete(r.record("api"))
		r.settle()
		stub = r.stubs["shared.example."]
		if r.record("api") == nil {
			t.Fatal("the record went before its addresses")
		}
		r.now = r.now.Add(2 * lastBeat)
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
	})
}

// A heartbeat that stays in the zone delays the deletion of a DNSZone only for lastBeat.
func TestDeletionWithHeartbeat(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		stub := r.publish(recordText("web", "host: www.shared.example, addresses: [192.0.2.1]"))
		r.delete(r.record("web"))
		r.delete(r.zone())
		for _, wait := range []time.Duration{0, lastBeat, time.Second} {
			if stub.stopped {
				t.Error("the publisher ends before lastBeat")
			}
			r.now = r.now.Add(wait)
			r.settle()
			r.settle()
		}
		if !stub.stopped {
			t.Error("the DNSZone is still there after lastBeat")
		}
	})
}

// A deletion that waits reports what is still in the zone, and why it waits: the key's Secret, or the DNSZone, is gone.
func TestDeletionWithoutZone(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.publish(recordText("web", "host: www.shared.example, addresses: [192.0.2.1]"))
		r.want("web", programmed)
		testutil.Must(t, r.store.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key", Namespace: "neardns-zones"}}))
		r.restart()
		r.delete(r.record("web"))
		r.settle()
		r.want("web", "Deleting ZoneNotReady NotChecked NoConflict")
		for _, want := range []string{"what was published stays in the zone", "there is no Secret neardns-zones/key", "deletionPolicy: Orphan"} {
			if got := r.record("web").Status.Conditions[1].Message; !strings.Contains(got, want) {
				t.Errorf("Programmed says %q, want %q", got, want)
			}
		}
		z := r.zone()
		z.Finalizers = nil
		testutil.Must(t, r.store.Update(t.Context(), z))
		r.delete(z)
		r.settle()
		r.want("web", "NoZone ZoneNotReady NotChecked NoConflict")
		if n := promtest.CollectAndCount(r.Metrics.conditions); n != 0 {
			t.Errorf("%d series of a DNSZone that is gone, and was never opened", n)
		}
		r.change("web", func(rec *v1alpha1.DNSRecord) { rec.Spec.DeletionPolicy = v1alpha1.DeletionPolicyOrphan })
		r.settle()
		r.wantGone("web")
	})
}

// Two records of one host are one publication. Deleting one of them takes its addresses, not the host.
func TestShared(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
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
		r.wantGone("a")
		r.wantGone("c")
		r.want("b", programmed)
		// What is no longer allowed is taken out.
		z := r.zone()
		z.Spec.Publishers[0].Namespaces[0] = "other"
		z.Generation++
		testutil.Must(t, r.store.Update(t.Context(), z))
		r.settle()
		r.want("b", "NotAllowed NotAccepted NotChecked NoConflict")
		r.wantCalls("remove www.shared.example.")
	})
}

// TestRefusedObject: a record whose finalizer the API server refuses is not published. No other record waits.
func TestRefusedObject(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.refused = "first"
		r.create(recordText("first", "host: www.shared.example, addresses: [192.0.2.1]"))
		r.publish(recordText("other", "host: api.shared.example, addresses: [192.0.2.1]"))
		r.wantCalls("set api.shared.example. [192.0.2.1]")
		r.refused = ""
		r.now = r.now.Add(lookAgain)
		r.settle()
		r.want("first", programmed)
		r.wantCalls("set www.shared.example. [192.0.2.1]")
		r.delete(r.record("first"))
		r.delete(r.record("other"))
		r.refused = "first"
		r.settle()
		r.wantCalls("remove api.shared.example., remove www.shared.example.")
		r.wantGone("other")
		r.refused = ""
		r.settle()
		r.wantGone("first")
	})
}

// TestMoreSpecificZone: a host goes from one DNSZone to a more specific one only when that can be read.
func TestMoreSpecificZone(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.publish(recordText("web", "host: www.shared.example, addresses: [192.0.2.1]"))
		r.wantCalls("set www.shared.example. [192.0.2.1]")
		child := strings.NewReplacer("name: shared}", "name: child}", "zone: shared", "zone: www.shared", "secretName: key", "secretName: later")
		r.create(child.Replace(zoneText))
		r.settle()
		r.wantCalls("")
		r.restart()
		r.settle()
		r.want("web", programmed)
		r.wantCalls("set www.shared.example. [192.0.2.1]")
		r.create(strings.Replace(secretText, "name: key", "name: later", 1))
		r.settle()
		r.settle()
		r.want("web", programmed)
		r.wantCalls("remove www.shared.example.")
	})
}

// A key that is rotated is the next message's; one that is broken leaves the old one in use. No status shows the secret.
func TestKeyRotated(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.publish(recordText("web", "host: www.shared.example, addresses: [192.0.2.1]"))
		key := r.stubs["shared.example."].key
		if k, _ := key(); k.Name != "key." || k.Secret != "c2VjcmV0" || k.Algorithm != "hmac-sha256" {
			t.Errorf("%+v", k)
		}
		rotate := func(name, secret string) {
			s := get(r, "neardns-zones", "key", &corev1.Secret{})
			s.Data = map[string][]byte{"name": []byte(name), "secret": []byte(secret)}
			testutil.Must(t, r.store.Update(t.Context(), s))
			r.settle()
		}
		rotate("key2", "bmV4dA==")
		if k, _ := key(); k.Name != "key2." || k.Secret != "bmV4dA==" || r.opened != 1 {
			t.Errorf("%+v after %d starts", k, r.opened)
		}
		rotate("key2", "hunter2!")
		r.want("web", "Accepted ZoneNotReady NotChecked NoConflict")
		if k, _ := key(); k.Secret != "bmV4dA==" {
			t.Errorf("%+v", k)
		}
		if text := fmt.Sprint(r.zone().Status, r.record("web").Status); strings.Contains(text, "hunter2") || strings.Contains(text, "bmV4dA") || !strings.Contains(text, "the key that was there stays in use") {
			t.Error(text)
		}
		r.wantCalls("set www.shared.example. [192.0.2.1]") // at the start, and never since
		rotate("key2", "bmV4dA==")
		r.want("web", programmed)
	})
}

// Addresses come from Services and Gateways, and go with them.
func TestSources(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		service := `{kind: Service, apiVersion: v1, metadata: {name: web, namespace: shop}, spec: {type: LoadBalancer}, status: {loadBalancer: {ingress: [{ip: 192.0.2.7}, {ip: 192.0.2.8}]}}}`
		gateway := `{kind: Gateway, apiVersion: gateway.networking.k8s.io/v1, metadata: {name: edge, namespace: shop}, status: {addresses: [{value: 192.0.2.9}, {type: IPAddress, value: 192.0.2.10}, {type: Hostname, value: a.example}]}}`
		r.publish(recordText("s", "host: s.shared.example, addressesFrom: {kind: Service, name: web}"), recordText("g", "host: g.shared.example, addressesFrom: {kind: Gateway, name: edge}"))
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
		s := get(r, "shop", "web", &corev1.Service{})
		s.Status.LoadBalancer.Ingress = s.Status.LoadBalancer.Ingress[1:]
		testutil.Must(t, r.store.Status().Update(t.Context(), s))
		r.settle()
		r.wantCalls("set s.shared.example. [192.0.2.8]")
		for want, spec := range map[string]corev1.Service{
			"has type ClusterIP": {Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP}},
			"has no address yet": {Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}},
		} {
			if got := zones.ServiceSource(&spec); !strings.Contains(got.Problem, want) {
				t.Errorf("%+v", got)
			}
		}
		named := zones.ServiceSource(&corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}, Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{Hostname: "a.example"}}}}})
		if named.Hostname != "a.example" || named.Problem != "" {
			t.Errorf("%+v", named)
		}
	})
}

// probed is after what time the rig's checker has seen three failures of a target.
const probed = 10 * time.Millisecond

// An address that fails its check is reported at once, and taken out after minutes, if another is left.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.sick["192.0.2.2:80"] = true
		r.publish(recordText("web", "host: www.shared.example, addresses: [192.0.2.1, 192.0.2.2], healthCheck: {protocol: TCP, port: 80}"))
		r.settle()
		time.Sleep(probed)
		r.settle()
		someSick := func() {
			t.Helper()
			if conditions := r.record("web").Status.Conditions; reasons(conditions) != "Accepted Programmed SomeSick NoConflict" {
				t.Fatal(conditions)
			}
		}
		someSick()
		r.wantCalls("set www.shared.example. [192.0.2.1 192.0.2.2]")
		r.now = r.now.Add(withdrawAfter)
		r.settle()
		r.wantCalls("set www.shared.example. [192.0.2.1]")
		someSick()
	})
}

// A conflict is reported with its attempts, in a metric, and by one Event. When it ends, so do the reason and the metric.
func TestConflict(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		stub := r.publish(recordText("web", "host: www.shared.example, addresses: [192.0.2.1]"))
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
		events := 0
		for len(r.events.Events) > 0 {
			if e := <-r.events.Events; strings.Contains(e, "ConflictingStrategyDiscovered") {
				events++
			}
		}
		if got := promtest.ToFloat64(r.Metrics.records.WithLabelValues("shared", zones.ConditionConflict, "ConflictingStrategyDiscovered")); got != 1 || events != 1 {
			t.Errorf("%v records by metric, %d Events", got, events)
		}
		stub.hosts["www.shared.example."] = zones.Progress{Done: true}
		stub.known.Silent = []string{"bbbbbbbb"}
		r.settle()
		r.want("web", programmed)
		if got := promtest.ToFloat64(r.Metrics.records.WithLabelValues("shared", zones.ConditionConflict, "ConflictingStrategyDiscovered")); got != 0 {
			t.Errorf("%v records by metric", got)
		}
		if z := r.zone(); reasons(z.Status.Conditions) != "Accepted Read Silent" || !slices.Equal(z.Status.Silent, []string{"bbbbbbbb"}) {
			t.Errorf("%+v", z.Status)
		}
	})
}

func TestWithPort(t *testing.T) {
	for primary, want := range map[string]string{"192.0.2.1": "192.0.2.1:53", "192.0.2.1:5353": "192.0.2.1:5353", "2001:db8::1": "[2001:db8::1]:53",
		"[2001:db8::1]": "[2001:db8::1]:53", "[2001:db8::1]:5353": "[2001:db8::1]:5353", "ns1.example": "ns1.example:53", "ns1.example:54": "ns1.example:54"} {
		if got := withPort(primary); got != want {
			t.Errorf("%s: %s", primary, got)
		}
	}
}

// The cluster's ID and instance come from the UIDs of namespaces, which outlive pods.
func TestIdentify(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		for name, uid := range map[string]string{"kube-system": "u1", "neardns-zones": "u2"} {
			n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid)}}
			testutil.Must(t, r.store.Create(t.Context(), n))
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
		if b, err := identify(t.Context(), r.store, Options{Namespace: "kube-system"}); err != nil || b.Cluster != a.Cluster {
			t.Errorf("in kube-system: %+v, %v; want the cluster of %+v", b, err, a)
		}
		_, err = identify(t.Context(), r.store, Options{Namespace: "elsewhere"})
		testutil.WantError(t, err, "elsewhere")
	})
}

// A dead cluster's records of a host stay if one of its addresses may work, also if that must not be probed. They do not stay if all fail
// their check, or without a check.
func TestWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.sick["192.0.2.2:80"] = true
		o := &opened{dead: map[string]time.Time{}, ranges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
		works := r.worksFor("shared", o)
		web, tcp := &zone.Health{Protocol: zone.HTTP, Port: 80, Path: "/"}, &zone.Health{Protocol: zone.TCP, Port: 80}
		claim := func(address string, check *zone.Health) zone.Claim {
			c := zone.Claim{Publication: zone.Publication{Host: "*.shared.example.", Addresses: []netip.Addr{netip.MustParseAddr(address)}}}
			c.Cluster = "bbbbbbbb"
			c.Health = check
			return c
		}
		if works(claim("192.0.2.1", nil)) || len(o.dead) != 1 {
			t.Errorf("what has no check is taken to work; %d are probed", len(o.dead))
		}
		if !works(claim("203.0.113.1", web)) {
			t.Error("an address that may not be asked is taken not to work")
		}
		if !works(claim("192.0.2.2", web)) {
			t.Error("a target that no probe has asked yet is taken not to work")
		}
		if !works(zone.Claim{Publication: zone.Publication{Host: "www.shared.example.", Target: "lb.example.", Health: web}}) {
			t.Error("a host name that may not be asked is taken not to work")
		}
		time.Sleep(probed)
		if works(claim("192.0.2.2", web)) {
			t.Error("a target that refuses is taken to work")
		}
		works(claim("192.0.2.1", tcp)) // the rig's targets take connections, and answer no HTTP
		time.Sleep(probed)
		if !works(claim("192.0.2.1", tcp)) {
			t.Error("a target that answers is taken not to work")
		}
		r.bury(o, true)
		if len(o.dead) != 0 {
			t.Errorf("%d are probed for ever", len(o.dead))
		}
	})
}
