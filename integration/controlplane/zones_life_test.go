package controlplane

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// TestZonesLife has what a zone's clusters go through in years: load balancers that get other addresses, a set that is full, a clone, a
// cluster that dies and comes back, and a primary that never does. Three clusters share the zone; the third one publishes from a file.
func TestZonesLife(t *testing.T) {
	zoneserver.Require(t, zoneserver.BIND)
	runtime.LockOSThread() // as in testZones
	s := &shared{t: t, a: newMember(t), b: newMember(t, "--cluster-id=bbbbbbbb"), name: "life"}
	s.start(zoneserver.BIND)
	s.sources()
	s.full()
	s.clone()
	s.death()
	s.goneForGood()
}

// patchStatus has kubectl write what a cloud's controller would.
func (m *member) patchStatus(kind, name, status string) {
	m.t.Helper()
	if out, err := m.Kubectl("patch", kind, name, "--subresource=status", "--type=merge", "-p", `{"status": `+status+`}`); err != nil {
		m.t.Fatalf("%v: %s", err, out)
	}
}

// awaits waits until a name of the zone has these records.
func (s *shared) awaits(name, want string) {
	s.t.Helper()
	Await(s.t, fmt.Sprintf("%s has %q", name, want), func() error {
		if got := addresses(hold(s.t, s.server), name); got != want {
			return fmt.Errorf("it has %q", got)
		}
		return nil
	})
}

// gatewayDefinition is as much of the Gateway API's as a Gateway's addresses need.
const gatewayDefinition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gateways.gateway.networking.k8s.io, annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-sigs/gateway-api/pull/2466"}}
spec:
  group: gateway.networking.k8s.io
  scope: Namespaced
  names: {kind: Gateway, listKind: GatewayList, plural: gateways, singular: gateway}
  versions:
  - {name: v1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// sources: addresses follow a Service and a Gateway, also where the cluster came to know Gateways after the controller's start.
func (s *shared) sources() {
	s.t.Helper()
	s.a.publish("svc", `{host: `+s.host("www")+`, addressesFrom: {kind: Service, name: web}}`)
	s.a.publish("gw", `{host: `+s.host("api")+`, addressesFrom: {kind: Gateway, name: edge}}`)
	s.a.wait("svc", "Accepted", "NoAddresses")
	rec := s.a.wait("gw", "Accepted", "NoAddresses")
	if c := meta.FindStatusCondition(rec.Status.Conditions, "Accepted"); !strings.Contains(c.Message, "knows no Gateway") {
		s.t.Errorf("%s", c.Message)
	}
	s.a.apply("apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: default}\nspec: {type: LoadBalancer, ports: [{port: 80}]}\n")
	s.a.patchStatus("service", "web", `{"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}]}}`)
	s.a.apply(gatewayDefinition)
	Await(s.t, "the API server has Gateways", func() error {
		s.a.write("object.yaml", "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: edge, namespace: default}\nspec: {}\n")
		out, err := s.a.Kubectl("apply", "-f", s.a.path("object.yaml"))
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	s.a.patchStatus("gateway", "edge", `{"addresses": [{"type": "IPAddress", "value": "192.0.2.3"}, {"value": "192.0.2.4"}]}`)
	s.a.wait("svc", "Programmed", "Programmed")
	s.a.wait("gw", "Programmed", "Programmed")
	s.want("www", "A 192.0.2.1, A 192.0.2.2")
	s.want("api", "A 192.0.2.3, A 192.0.2.4")
	s.a.patchStatus("service", "web", `{"loadBalancer": {"ingress": [{"ip": "192.0.2.2"}]}}`)
	s.a.patchStatus("gateway", "edge", `{"addresses": [{"value": "192.0.2.5"}]}`)
	s.awaits("www", "A 192.0.2.2")
	s.awaits("api", "A 192.0.2.5")
	// An address that the zone's administrator does not allow is not published by a Service either.
	s.a.patchStatus("service", "web", `{"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}}`)
	s.a.wait("svc", "Accepted", "NotAllowed")
	s.awaits("www", "")
	s.a.remove("service", "web")
	s.a.wait("svc", "Accepted", "NoAddresses")
	s.a.remove("gateway", "edge")
	s.awaits("api", "")
	s.a.remove("dnsrecord", "svc")
	s.a.remove("dnsrecord", "gw")
	if left := hold(s.t, s.server).of("www"); len(left) > 0 {
		s.t.Errorf("left: %v", left)
	}
}

// list are n addresses of the range from an offset.
func list(from, n int) string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("192.0.2.%d", from+i))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// full: BIND lets a set have 100 records. The second cluster reports what is left out and which setting to raise, and takes room that
// becomes free.
func (s *shared) full() {
	s.t.Helper()
	s.a.publish("full", `{host: `+s.host("lb")+`, strategy: LoadBalanced, addresses: `+list(1, 60)+`}`)
	s.a.wait("full", "Programmed", "Programmed")
	s.b.publish("full", `{host: `+s.host("lb")+`, strategy: LoadBalanced, addresses: `+list(101, 60)+`}`)
	rec := s.b.wait("full", "Programmed", "RRsetFull")
	if c := meta.FindStatusCondition(rec.Status.Conditions, "Programmed"); !strings.Contains(c.Message, "max-records-per-type") {
		s.t.Errorf("%s", c.Message)
	}
	h := hold(s.t, s.server)
	if served, own := len(h["lb"]), len(h[s.b.id+".klb.lb"]); served != 100 || own != 60 {
		s.t.Errorf("%d are served, and %d at the cluster's own name", served, own)
	}
	s.a.publish("full", `{host: `+s.host("lb")+`, strategy: LoadBalanced, addresses: `+list(1, 20)+`}`)
	s.b.wait("full", "Programmed", "Programmed")
	if served := len(hold(s.t, s.server)["lb"]); served != 80 {
		s.t.Errorf("%d are served after there was room", served)
	}
	s.a.remove("dnsrecord", "full")
	s.b.remove("dnsrecord", "full")
}

// restart ends the controller as a crash does, and starts it with other flags.
func (m *member) restart(flags ...string) {
	m.t.Helper()
	m.crash()
	m.flags = flags
	m.run()
}

func (m *member) crash() {
	m.t.Helper()
	if err := m.controller.Process.Signal(syscall.SIGKILL); err != nil {
		m.t.Fatal(err)
	}
	<-m.controller.Ended()
}

// clone: a cluster with another one's id writes nothing and reports it, and goes on when it has an id of its own.
func (s *shared) clone() {
	s.t.Helper()
	s.a.publish("www", `{host: `+s.host("www")+`, addresses: [192.0.2.1]}`)
	s.a.wait("www", "Programmed", "Programmed")
	s.b.restart("--cluster-id=" + s.a.id)
	s.b.secret(s.name, s.server.Operator()) // nothing but the claim is in its way
	before := withoutBeats(hold(s.t, s.server))
	s.b.publish("www", `{host: `+s.host("www")+`, addresses: [192.0.2.2]}`)
	rec := s.b.wait("www", "UnresolvedConflictDiscovered", "ClusterIDInUse")
	if reason(rec, "Programmed") == "Programmed" || rec.Status.Writes > 0 {
		s.t.Errorf("the clone: %+v", rec.Status)
	}
	if after := withoutBeats(hold(s.t, s.server)); after != before {
		s.t.Errorf("the clone wrote:\n%s\nwas\n%s", after, before)
	}
	if got := reason(s.a.record("www"), "Programmed"); got != "Programmed" {
		s.t.Errorf("the cluster that was there has %s", got)
	}
	s.b.restart("--cluster-id=bbbbbbbb")
	s.b.wait("www", "Programmed", "Programmed")
	s.want("www", "A 192.0.2.1, A 192.0.2.2")
}

// withoutBeats is all that a zone has but heartbeats, which change by themselves.
func withoutBeats(h held) string {
	var out []string
	for name, data := range h {
		if strings.Count(name, ".") != 1 || !strings.HasSuffix(name, "._neardns") {
			out = append(out, name+": "+strings.Join(data, ", "))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// death: a dead cluster is reported after three heartbeats. After six a cluster that may removes it, but for a host that is its alone. It
// publishes again when it lives again.
func (s *shared) death() {
	s.t.Helper()
	s.third()
	s.a.publish("api", `{host: `+s.host("api")+`, addresses: [192.0.2.9]}`)
	s.a.wait("api", "Programmed", "Programmed")
	if out, err := s.b.Kubectl("patch", "dnszone", s.name, "--type=merge", "-p", `{"spec": {"removal": "Remove"}}`); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	s.b.wait("www", "Programmed", "Programmed")
	s.a.crash()
	Await(s.t, "the dead cluster is reported", func() error {
		z := &v1alpha1.DNSZone{}
		if err := s.b.Client.Get(s.t.Context(), client.ObjectKey{Name: s.name}, z); err != nil {
			return err
		}
		c := meta.FindStatusCondition(z.Status.Conditions, "ClustersHeard")
		if c == nil || c.Status != metav1.ConditionFalse || !slices.Contains(z.Status.Silent, s.a.id) {
			return fmt.Errorf("%+v, silent %v", c, z.Status.Silent)
		}
		return nil
	})
	s.awaits("www", "A 192.0.2.2, A 192.0.2.3")
	s.want("api", "A 192.0.2.9") // the host's last address
	s.a.run()
	s.awaits("www", "A 192.0.2.1, A 192.0.2.2, A 192.0.2.3")
	s.a.wait("www", "Programmed", "Programmed")
}

// third is a cluster without an API server.
func (s *shared) third() {
	s.t.Helper()
	key := s.server.Operator()
	file := s.b.path("third.yaml")
	text := fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: key, namespace: neardns-zones}
stringData: {name: %q, algorithm: hmac-sha256, secret: %q}
---
apiVersion: neardns.io/v1alpha1
kind: DNSZone
metadata: {name: shared}
spec:
  zone: %s
  primary: %s
  tsig: {secretName: key}
  heartbeatSeconds: 5
  publishers:
  - {namespaces: [default], hosts: ["*.%[3]s"], targets: [192.0.2.0/24]}
---
apiVersion: neardns.io/v1alpha1
kind: DNSRecord
metadata: {name: www, namespace: default}
spec: {host: %[5]s, addresses: [192.0.2.3]}
`, key.Name, key.Secret, s.zone(), s.server.Addr(), s.host("www"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	Run(s.t, s.b.path("third.log"), "../../bin/neardns-controller", "zones", "publish", "--file", file, "--cluster-id=cccccccc", "--instance=third")
	s.awaits("www", "A 192.0.2.1, A 192.0.2.2, A 192.0.2.3")
}

// goneForGood: without its primary a DNSRecord is deleted as an orphan, and the DNSZone after it.
func (s *shared) goneForGood() {
	s.t.Helper()
	s.server.Kill()
	s.a.remove("dnsrecord", "api", "--wait=false")
	s.a.wait("api", "Programmed", "Unreachable", "NoAnswer")
	for _, m := range []*member{s.a, s.b} {
		m.remove("dnszone", s.name, "--wait=false")
		for _, name := range []string{"www", "api"} {
			if m.record(name) == nil {
				continue
			}
			if out, err := m.Kubectl("patch", "dnsrecord", name, "--type=merge", "-p", `{"spec": {"deletionPolicy": "Orphan"}}`); err != nil {
				s.t.Fatalf("%v: %s", err, out)
			}
			m.remove("dnsrecord", name, "--ignore-not-found")
		}
		m.remove("dnszone", s.name, "--ignore-not-found")
	}
}
