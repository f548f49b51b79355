package controlplane

import (
	"fmt"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// member is a cluster that shares zones: a control plane with the product's manifests, and the controller with their account.
type member struct {
	*Plane
	t          *testing.T
	flags      []string
	running    int
	controller *Process
	id         string
}

func newMember(t *testing.T, flags ...string) *member {
	t.Helper()
	m := &member{Plane: Start(t, false, "serviceaccount-controller,service-lb-controller,garbage-collector-controller"), t: t, flags: flags}
	m.AwaitKubectl("apply", "-k", "../../fleet/install/zones")
	m.run()
	return m
}

// run starts the controller.
func (m *member) run() {
	m.t.Helper()
	m.running++
	config := m.Kubeconfig("zones.kubeconfig", m.Token("neardns-zones", "neardns-zones"))
	m.controller = Run(m.t, m.path(fmt.Sprintf("zones%d.log", m.running)), "../../bin/neardns-controller",
		append([]string{"zones", "--kubeconfig=" + config, "--metrics=0", "--health=0"}, m.flags...)...)
}

// apply has kubectl apply a manifest.
func (m *member) apply(text string) {
	m.t.Helper()
	showApply(m.context(), text)
	m.write("object.yaml", text)
	m.MustKubectl("apply", "-f", m.path("object.yaml"))
}

func (m *member) secret(name string, key zoneserver.Key) {
	m.t.Helper()
	m.apply(fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: neardns-zones}\nstringData: {name: %q, algorithm: hmac-sha256, secret: %q}\n",
		name, key.Name, key.Secret))
}

func (m *member) zone(name, zone, primary string) {
	m.t.Helper()
	m.apply(fmt.Sprintf(`apiVersion: neardns.io/v1alpha1
kind: DNSZone
metadata: {name: %s}
spec:
  zone: %s
  primary: %s
  tsig: {secretName: %s}
  heartbeatSeconds: 5
  publishers:
  - {namespaces: [default], hosts: ["*.%[2]s"], targets: [192.0.2.0/24]}
`, name, zone, primary, name))
}

func (m *member) publish(name, spec string) {
	m.t.Helper()
	m.apply(fmt.Sprintf("apiVersion: neardns.io/v1alpha1\nkind: DNSRecord\nmetadata: {name: %s, namespace: default}\nspec: %s\n", name, spec))
}

// record is read, or nil if it is gone.
func (m *member) record(name string) *v1alpha1.DNSRecord {
	m.t.Helper()
	out := &v1alpha1.DNSRecord{}
	err := m.Client.Get(m.t.Context(), client.ObjectKey{Namespace: "default", Name: name}, out)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		m.t.Fatal(err)
	}
	return out
}

// reason is that of a condition of the present generation.
func reason(rec *v1alpha1.DNSRecord, kind string) string {
	if rec == nil {
		return "gone"
	}
	c := meta.FindStatusCondition(rec.Status.Conditions, kind)
	if c == nil || c.ObservedGeneration != rec.Generation {
		return "not looked at"
	}
	return c.Reason
}

// wait waits until a condition of a record has a reason, or one of several.
func (m *member) wait(name, kind string, want ...string) *v1alpha1.DNSRecord {
	m.t.Helper()
	var rec *v1alpha1.DNSRecord
	Await(m.t, fmt.Sprintf("%s of %s in %s is %v", kind, name, m.id, want), func() error {
		if rec = m.record(name); !slices.Contains(want, reason(rec, kind)) {
			if rec == nil {
				return fmt.Errorf("it is gone")
			}
			return fmt.Errorf("%s: %+v", reason(rec, kind), rec.Status.Conditions)
		}
		return nil
	})
	return rec
}

func (m *member) waitGone(name string) {
	m.t.Helper()
	Await(m.t, name+" is gone", func() error {
		rec := m.record(name)
		return testutil.ErrorIf(rec != nil, "%+v", rec)
	})
}

func (m *member) remove(kind, name string, flags ...string) {
	m.t.Helper()
	show("kubectl"+m.context()+"delete "+kind+" "+name, m.MustKubectl(append([]string{"delete", kind, name}, flags...)...))
}

// patch changes fields of an object.
func (m *member) patch(kind, name, fields string, flags ...string) {
	m.t.Helper()
	m.MustKubectl(append([]string{"patch", kind, name, "--type=merge", "-p", fields}, flags...)...)
}
