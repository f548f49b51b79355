package records

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/zones"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
)

const (
	policyText = `{kind: DNSPolicy, apiVersion: neardns.io/v1alpha1, metadata: {name: web, namespace: shop, uid: u1},
		spec: {targetRef: {name: edge}, strategy: Simple, ttl: 30, deletionPolicy: Delete}}`
	gatewayText = `{kind: Gateway, apiVersion: gateway.networking.k8s.io/v1, metadata: {name: edge, namespace: shop}, spec: {listeners: [
		{name: http, hostname: www.shared.example}, {name: https, hostname: www.shared.example}, {name: any, hostname: "*.shared.example"},
		{name: other, hostname: www.example}, {name: all}]}}`
)

// policy reads the DNSPolicy, and prints its counts, its conditions' reasons, and what is not published.
func (r *rig) policy(name string) string {
	r.t.Helper()
	p := get(r, "shop", name, &v1alpha1.DNSPolicy{})
	out := fmt.Sprintf("%d/%d %s", p.Status.Programmed, p.Status.Records, reasons(p.Status.Conditions))
	for _, u := range p.Status.Unpublished {
		out += " " + u.Listener + ":" + u.Reason
	}
	return out
}

func (r *rig) wantPolicy(name, want string) {
	r.t.Helper()
	if got := r.policy(name); got != want {
		r.t.Errorf("DNSPolicy %s is %q, want %q", name, got, want)
	}
	if reason := strings.Fields(want)[1]; promtest.ToFloat64(r.Metrics.policies.WithLabelValues(reason)) < 1 {
		r.t.Errorf("no DNSPolicy is counted as %s", reason)
	}
}

// changeGateway changes the Gateway, and lets the time pass after which it is read again.
func (r *rig) changeGateway(f func(*unstructured.Unstructured)) {
	r.t.Helper()
	g := &unstructured.Unstructured{}
	g.SetGroupVersionKind(zones.GatewayKind)
	f(get(r, "shop", "edge", g))
	testutil.Must(r.t, r.store.Update(r.t.Context(), g))
	r.now = r.now.Add(lookAgain)
	r.settle()
}

func withAddress(g *unstructured.Unstructured) {
	g.Object["status"] = map[string]any{"addresses": []any{map[string]any{"value": "192.0.2.9"}}}
}

func withOneListener(g *unstructured.Unstructured) {
	g.Object["spec"] = map[string]any{"listeners": []any{map[string]any{"name": "http", "hostname": "www.shared.example"}}}
}

// made is the name of one of the DNSRecords, of which there must be n.
func (r *rig) made(n int) string {
	r.t.Helper()
	var list v1alpha1.DNSRecordList
	if err := r.store.List(r.t.Context(), &list); err != nil || len(list.Items) != n {
		r.t.Fatalf("%v %+v", err, list.Items)
	}
	return list.Items[0].Name
}

// A DNSPolicy publishes its Gateway's hosts and follows them, and its DNSRecords follow it.
func TestPolicy(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.publish(policyText)
		r.wantPolicy("web", "0/0 TargetNotFound NotAccepted NotChecked NoConflict")
		r.create(gatewayText)
		r.now = r.now.Add(lookAgain)
		r.settle()
		r.wantPolicy("web", "0/2 Accepted NoAddresses NotChecked NoConflict http:NoAddresses any:NoAddresses other:NoZone all:NoHost")
		r.changeGateway(withAddress)
		r.wantPolicy("web", "2/2 Accepted Programmed NotChecked NoConflict other:NoZone all:NoHost")
		r.wantCalls("set *.shared.example. [192.0.2.9], set www.shared.example. [192.0.2.9]")
		writes := r.writes
		r.now = r.now.Add(lookAgain)
		if r.settle(); r.writes != writes {
			t.Errorf("%d statuses are written where nothing changed", r.writes-writes)
		}

		// An edit of a DNSPolicy's DNSRecord does not last; the DNSPolicy's own change does.
		name := r.made(2)
		r.change(name, func(rec *v1alpha1.DNSRecord) { rec.Spec.TTL = 99 })
		r.settle()
		if got := r.record(name).Spec.TTL; got != 30 {
			t.Errorf("TTL %d", got)
		}
		p := get(r, "shop", "web", &v1alpha1.DNSPolicy{})
		p.Spec.TTL = 31
		testutil.Must(t, r.store.Update(t.Context(), p))
		r.settle()
		if got := r.record(name).Spec.TTL; got != 31 {
			t.Errorf("TTL %d", got)
		}
		r.calls()
		r.changeGateway(withOneListener)
		r.wantPolicy("web", "1/1 Accepted Programmed NotChecked NoConflict")
		r.wantCalls("remove *.shared.example.")
	})
}

// newPolicyRig has a DNSPolicy whose hosts are published.
func newPolicyRig(t *testing.T, policy string) *rig {
	t.Helper()
	r := newRig(t)
	r.publish(gatewayText, policy)
	r.changeGateway(withAddress)
	r.calls()
	return r
}

// A DNSPolicy leaves alone what a person made, and what an older DNSPolicy has. A host is never without an address meanwhile.
func TestPolicyConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPolicyRig(t, policyText)
		r.create(recordText("own", "host: www.shared.example, addresses: [192.0.2.1]"))
		r.settle()
		r.wantPolicy("web", "1/1 Accepted Programmed NotChecked Conflicted http:Conflicted other:NoZone all:NoHost")
		r.want("own", programmed)
		r.wantCalls("set www.shared.example. [192.0.2.1]")
		r.changeGateway(withOneListener)
		r.wantPolicy("web", "0/0 Conflicted NotAccepted NotChecked Conflicted http:Conflicted")
		r.wantCalls("remove *.shared.example.")
		if own := r.record("own"); own.Spec.TTL != 60 || len(own.OwnerReferences) > 0 {
			t.Errorf("%+v", own)
		}
		r.delete(r.record("own"))
		r.settle()
		r.wantPolicy("web", "1/1 Accepted Programmed NotChecked NoConflict")
		r.wantCalls("forget *.shared.example., set www.shared.example. [192.0.2.9]")

		// A second DNSPolicy of the same Gateway waits. A person's DNSRecord with the name of one that it would make is not touched.
		r.create(strings.NewReplacer("name: web", "name: late", "uid: u1", "uid: u2").Replace(policyText))
		r.settle()
		r.wantPolicy("late", "0/0 Conflicted NotAccepted NotChecked Conflicted http:Conflicted")
		mine := r.made(1)
		r.delete(&v1alpha1.DNSPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}})
		r.delete(r.record(mine)) // as the garbage collector does
		r.create(recordText(strings.Replace(mine, "web-", "late-", 1), "host: x.shared.example, addresses: [192.0.2.1]"))
		r.settle()
		r.wantPolicy("late", "0/1 Accepted NotWritten NotChecked NoConflict http:NotWritten")
		r.wantCalls("remove www.shared.example., set x.shared.example. [192.0.2.1]")
	})
}

// If a DNSPolicy is deleted with --cascade=orphan, its DNSRecords stay, until the garbage collector makes them the person's own.
func TestPolicyOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPolicyRig(t, strings.Replace(policyText, "uid: u1", "uid: u1, finalizers: [orphan]", 1))
		r.delete(&v1alpha1.DNSPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}})
		r.settle()
		r.wantPolicy("web", "0/0 Deleting NotAccepted NotChecked NoConflict")
		r.want(r.made(2), programmed)
		r.wantCalls("")
	})
}

// A person's DNSRecord that is not accepted does not take a host from a DNSPolicy.
func TestPolicyKeepsHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPolicyRig(t, policyText)
		r.create(recordText("own", "host: www.shared.example, addresses: [198.51.100.1]"))
		r.create(recordText("none", "host: www.shared.example, addressesFrom: {kind: Service, name: none}"))
		r.settle()
		r.wantPolicy("web", "2/2 Accepted Programmed NotChecked NoConflict other:NoZone all:NoHost")
		r.want("own", "NotAllowed NotAccepted NotChecked NoConflict")
		r.want("none", "NoAddresses NotAccepted NotChecked NoConflict")
		r.wantCalls("")
	})
}

// failing is an API server that fails to send a Gateway.
func (r *rig) failing(err error) client.Reader {
	return interceptor.NewClient(r.store, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if o.GetObjectKind().GroupVersionKind() == zones.GatewayKind {
				return err
			}
			return c.Get(ctx, key, o, options...)
		}})
}

// A Gateway that cannot be read, also by a 404 that does not mean that the object is missing, keeps its hosts, and delays no other record.
func TestGatewayUnserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPolicyRig(t, policyText)
		resource := schema.GroupResource{Group: zones.GatewayKind.Group, Resource: "gateways"}
		r.Direct = r.failing(apierrors.NewGenericServerResponse(404, "get", resource, "edge", "404 page not found", 0, true))
		r.create(recordText("own", "host: own.shared.example, addresses: [192.0.2.1]"))
		r.now = r.now.Add(lookAgain)
		for range 2 {
			r.settle()
			r.made(3)
			r.want("own", programmed)
			r.want("web-"+zone.ClusterID("www.shared.example"), "NotReadable NotReadable NotChecked NoConflict")
			r.wantPolicy("web", "0/0 NotReadable NotReadable NotChecked NoConflict")
			r.wantCalls("set own.shared.example. [192.0.2.1]")
			unread := r.Direct
			r.restart() // another process has not read it before
			r.Direct = unread
		}
		r.Direct = r.failing(apierrors.NewNotFound(resource, "edge"))
		r.settle()
		r.wantPolicy("web", "0/0 TargetNotFound NotAccepted NotChecked NoConflict")
	})
}

// While the Gateway of one DNSRecord cannot be read, another one that is deleted waits: the host stays as it is, with its address.
func TestGatewayUnreadDelaysDeletion(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.create(gatewayText)
		r.changeGateway(withAddress)
		r.publish(recordText("web", "host: www.shared.example, addresses: [192.0.2.1]"),
			recordText("gateway", "host: www.shared.example, addressesFrom: {kind: Gateway, name: edge}"))
		r.wantCalls("set www.shared.example. [192.0.2.1 192.0.2.9]")
		served := r.Direct
		r.Direct = r.failing(errors.New("the conversion webhook does not answer"))
		r.now = r.now.Add(lookAgain)
		r.delete(r.record("web"))
		r.settle()
		r.want("gateway", "NotReadable NotReadable NotChecked NoConflict")
		r.want("web", "Deleting Leaving NotChecked NoConflict")
		r.Direct, r.now = served, r.now.Add(lookAgain)
		r.settle()
		r.wantCalls("set www.shared.example. [192.0.2.9]")
		r.wantGone("web")
		r.changeGateway(func(g *unstructured.Unstructured) {
			g.Object["status"] = map[string]any{"addresses": []any{map[string]any{"value": "192.0.2.10"}}}
		})
		r.wantCalls("set www.shared.example. [192.0.2.10]")
		r.Direct, r.now = r.failing(apierrors.NewNotFound(schema.GroupResource{Resource: "gateways"}, "edge")), r.now.Add(lookAgain)
		r.settle()
		r.want("gateway", "NoAddresses NotAccepted NotChecked NoConflict")
		r.wantCalls("remove www.shared.example.")
	})
}

// Without the DNSPolicy CRD the other kinds are watched, and no DNSPolicy is read.
func TestNoPolicyKind(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		mapper := meta.NewDefaultRESTMapper(nil)
		mapper.Add(v1alpha1.GroupVersion.WithKind("DNSPolicy"), meta.RESTScopeNamespace)
		if kinds := r.watched(mapper); len(kinds) != 5 || r.NoPolicies {
			t.Errorf("%T", kinds)
		}
		if kinds := r.watched(meta.NewDefaultRESTMapper(nil)); len(kinds) != 4 || !r.NoPolicies {
			t.Errorf("%T", kinds)
		}
		r.publish(gatewayText, policyText, recordText("own", "host: www.shared.example, addresses: [192.0.2.1]"))
		r.made(1)
		r.want("own", programmed)
	})
}

// A person's DNSRecord that the watch cache does not have yet, with the name of one that a DNSPolicy would make, is not taken for the
// DNSPolicy's.
func TestPolicyCreateRace(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.publish(gatewayText)
		name := "web-" + zone.ClusterID("www.shared.example")
		r.create(policyText)
		r.create(recordText(name, "host: x.shared.example, addresses: [192.0.2.1]"))
		r.Client = interceptor.NewClient(r.store, interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				err := c.List(ctx, list, options...)
				if records, ok := list.(*v1alpha1.DNSRecordList); ok {
					records.Items = nil
				}
				return err
			}})
		_, err := r.Reconcile(t.Context(), ctrl.Request{})
		testutil.Must(t, err)
		if rec := r.record(name); len(rec.Finalizers) > 0 {
			t.Errorf("%+v", rec.ObjectMeta)
		}
	})
}
