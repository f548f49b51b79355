package controlplane

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// TestZonesLife: addresses follow a Service, and a cluster dies and comes back. Three clusters share the zone; the third one publishes from a
// file.
func TestZonesLife(t *testing.T) {
	zoneserver.Require(t, zoneserver.BIND)
	runtime.LockOSThread() // as in testZones
	s := &shared{t: t, a: newMember(t), b: newMember(t, "--cluster-id=bbbbbbbb"), name: "life"}
	s.start(zoneserver.BIND)
	s.service()
	s.death()
}

// patchStatus has kubectl write what a cloud's controller would.
func (m *member) patchStatus(kind, name, status string) {
	m.t.Helper()
	m.patch(kind, name, `{"status": `+status+`}`, "--subresource=status")
}

// awaits waits until a name of the zone has these records.
func (s *shared) awaits(name, want string) {
	s.t.Helper()
	Await(s.t, fmt.Sprintf("%s has %q", name, want), func() error {
		got := addresses(hold(s.t, s.server), name)
		return testutil.ErrorIf(got != want, "it has %q", got)
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

// service: addresses follow a Service. TestPoliciesBIND has Gateways.
func (s *shared) service() {
	s.t.Helper()
	s.a.publish("svc", `{host: `+s.host("www")+`, addressesFrom: {kind: Service, name: web}}`)
	s.a.wait("svc", "Accepted", "NoAddresses")
	s.a.apply("apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: default}\nspec: {type: LoadBalancer, ports: [{port: 80}]}\n")
	s.a.patchStatus("service", "web", `{"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}]}}`)
	s.a.wait("svc", "Programmed", "Programmed")
	s.want("www", "A 192.0.2.1, A 192.0.2.2")
	s.a.patchStatus("service", "web", `{"loadBalancer": {"ingress": [{"ip": "192.0.2.2"}]}}`)
	s.awaits("www", "A 192.0.2.2")
	s.a.remove("service", "web")
	s.a.wait("svc", "Accepted", "NoAddresses")
	s.awaits("www", "")
	s.a.remove("dnsrecord", "svc")
}

// restart ends the controller as a crash does, and starts it.
func (m *member) restart() {
	m.t.Helper()
	m.crash()
	m.run()
}

func (m *member) crash() {
	m.t.Helper()
	testutil.Must(m.t, m.controller.Process.Signal(syscall.SIGKILL))
	<-m.controller.Ended()
}

// death: a dead cluster is reported after three heartbeats. After six a cluster that may removes it, but for a host that is its alone. It
// publishes again when it lives again.
func (s *shared) death() {
	s.t.Helper()
	for m, address := range map[*member]string{s.a: "192.0.2.1", s.b: "192.0.2.2"} {
		m.publish("www", `{host: `+s.host("www")+`, addresses: [`+address+`]}`)
		m.wait("www", "Programmed", "Programmed")
	}
	s.third()
	s.a.publish("api", `{host: `+s.host("api")+`, addresses: [192.0.2.9]}`)
	s.a.wait("api", "Programmed", "Programmed")
	s.b.secret(s.name, s.server.Operator()) // the cluster's own key may not remove another's
	s.b.patch("dnszone", s.name, `{"spec": {"removal": "Remove"}}`)
	s.b.wait("www", "Programmed", "Programmed")
	s.a.crash()
	Await(s.t, "the dead cluster is reported", func() error {
		z := &v1alpha1.DNSZone{}
		if err := s.b.Client.Get(s.t.Context(), client.ObjectKey{Name: s.name}, z); err != nil {
			return err
		}
		c := meta.FindStatusCondition(z.Status.Conditions, "ClustersHeard")
		return testutil.ErrorIf(c == nil || c.Status != metav1.ConditionFalse || !slices.Contains(z.Status.Silent, s.a.id),
			"%+v, silent %v", c, z.Status.Silent)
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
	testutil.Must(s.t, os.WriteFile(file, []byte(text), 0o600))
	Run(s.t, s.b.path("third.log"), "../../bin/neardns-controller", "zones", "publish", "--file", file, "--cluster-id=cccccccc", "--instance=third")
	s.awaits("www", "A 192.0.2.1, A 192.0.2.2, A 192.0.2.3")
}
