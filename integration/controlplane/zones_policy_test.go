package controlplane

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// TestPoliciesBIND has two clusters with a Gateway each publish its listeners' hosts in one zone, by a DNSPolicy each.
func TestPoliciesBIND(t *testing.T) {
	zoneserver.Require(t, zoneserver.BIND)
	runtime.LockOSThread() // as in testZones
	s := &shared{t: t, a: newMember(t), b: newMember(t, "--cluster-id=bbbbbbbb"), name: "policies"}
	s.start(zoneserver.BIND)
	for _, m := range []*member{s.a, s.b} {
		m.apply(`apiVersion: neardns.io/v1alpha1
kind: DNSPolicy
metadata: {name: web, namespace: default}
spec: {targetRef: {name: web}, ttl: 30}
`)
	}
	message := s.a.waitPolicy("0/0 TargetNotFound NotAccepted NotChecked NoConflict")
	if !strings.Contains(message, "knows no Gateway") {
		t.Errorf("%s", message)
	}
	for m, address := range map[*member]string{s.a: "192.0.2.1", s.b: "192.0.2.2"} {
		m.apply(gatewayDefinition)
		Await(t, "the API server has Gateways", func() error { return m.gateway(s.host("www"), s.host("api"), "www.elsewhere.example", "") })
		m.waitPolicy("0/2 Accepted NoAddresses NotChecked NoConflict l0:NoAddresses l1:NoAddresses l2:NoZone l3:NoHost")
		m.patchStatus("gateway", "web", `{"addresses": [{"value": "`+address+`"}]}`)
	}
	const published = "2/2 Accepted Programmed NotChecked NoConflict l2:NoZone l3:NoHost"
	s.a.waitPolicy(published)
	s.b.waitPolicy(published)
	s.want("www", "A 192.0.2.1, A 192.0.2.2")
	s.want("api", "A 192.0.2.1, A 192.0.2.2")
	s.policyConflicts()
	s.policyEnds()
}

// policyConflicts: what a person made of a host, or makes of a DNSPolicy's DNSRecord.
func (s *shared) policyConflicts() {
	s.t.Helper()
	s.a.publish("own", `{host: `+s.host("lb")+`, addresses: [192.0.2.9]}`)
	s.a.wait("own", "Programmed", "Programmed")
	testutil.Must(s.t, s.a.gateway(s.host("www"), s.host("lb")))
	s.a.waitPolicy("1/1 Accepted Programmed NotChecked Conflicted l1:Conflicted")
	s.awaits("api", "A 192.0.2.2") // the listener is gone
	Await(s.t, "the DNSRecord of that listener is gone, too", func() error {
		left := s.a.records()
		return testutil.ErrorIf(len(left) != 2, "%v", left)
	})
	s.want("lb", "A 192.0.2.9")
	if own := s.a.record("own"); own.Generation != 1 || own.Spec.TTL != 60 {
		s.t.Errorf("%+v", own)
	}
	s.a.restart()
	for _, r := range s.a.records() {
		if r == "own" {
			continue
		}
		s.a.patch("dnsrecord", r, `{"spec": {"ttl": 99}}`)
	}
	Await(s.t, "the DNSRecord has the DNSPolicy's TTL again", func() error {
		for _, r := range s.a.records() {
			if ttl := s.a.record(r).Spec.TTL; r != "own" && ttl != 30 {
				return fmt.Errorf("%s has %d", r, ttl)
			}
		}
		return nil
	})
}

// policyEnds: the DNSPolicy's deletion waits for what it published, and takes nothing else.
func (s *shared) policyEnds() {
	s.t.Helper()
	s.a.remove("dnspolicy", "web", "--cascade=foreground")
	s.want("www", "A 192.0.2.2")
	s.want("lb", "A 192.0.2.9")
	if left := s.a.records(); len(left) != 1 || left[0] != "own" {
		s.t.Errorf("left: %v", left)
	}
	s.b.remove("dnspolicy", "web")
	s.awaits("www", "")
	s.awaits("api", "")
	Await(s.t, "the DNSRecords are gone", func() error {
		left := s.b.records()
		return testutil.ErrorIf(len(left) > 0, "%v", left)
	})
	s.a.remove("dnsrecord", "own")
	for _, m := range []*member{s.a, s.b} {
		m.remove("dnszone", s.name)
	}
	for name, data := range hold(s.t, s.server) {
		s.t.Errorf("%s is left: %v", name, data)
	}
}

// gateway applies a Gateway with a listener for each host, l0, l1 and so on.
func (m *member) gateway(hosts ...string) error {
	var listeners []string
	for i, host := range hosts {
		listeners = append(listeners, fmt.Sprintf("{name: l%d, port: 80, protocol: HTTP, hostname: %q}", i, host))
	}
	const head = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: web, namespace: default}\n"
	text := head + "spec: {listeners: [" + strings.Join(listeners, ", ") + "]}\n"
	m.write("object.yaml", text)
	_, err := m.Kubectl("apply", "-f", m.path("object.yaml"))
	if err == nil { // a new kind takes some tries
		showApply(m.context(), text)
	}
	return err
}

// records are the names of the DNSRecords.
func (m *member) records() (names []string) {
	m.t.Helper()
	var list v1alpha1.DNSRecordList
	testutil.Must(m.t, m.Client.List(m.t.Context(), &list))
	for _, r := range list.Items {
		names = append(names, r.Name)
	}
	return names
}

// waitPolicy waits until the DNSPolicy's counts, conditions and unpublished listeners are as wanted, and returns the message of Accepted.
func (m *member) waitPolicy(want string) (message string) {
	m.t.Helper()
	Await(m.t, "the DNSPolicy of "+m.id+" is "+want, func() error {
		p := &v1alpha1.DNSPolicy{}
		if err := m.Client.Get(m.t.Context(), client.ObjectKey{Namespace: "default", Name: "web"}, p); err != nil {
			return err
		}
		got := fmt.Sprintf("%d/%d", p.Status.Programmed, p.Status.Records)
		for _, kind := range []string{"Accepted", "Programmed", "Healthy", "UnresolvedConflictDiscovered"} {
			c := meta.FindStatusCondition(p.Status.Conditions, kind)
			if c == nil {
				return fmt.Errorf("it has no %s", kind)
			}
			got += " " + c.Reason
		}
		for _, u := range p.Status.Unpublished {
			got += " " + u.Listener + ":" + u.Reason
		}
		message = meta.FindStatusCondition(p.Status.Conditions, "Accepted").Message
		return testutil.ErrorIf(got != want, "%s: %+v", got, p.Status)
	})
	m.showKubectl("get", "dnspolicy,dnsrecord", "--all-namespaces")
	return message
}
