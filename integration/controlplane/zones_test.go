package controlplane

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// held is what a zone has, by name: types and data, sorted.
type held map[string][]string

func hold(t *testing.T, s *zoneserver.Server) held {
	t.Helper()
	rrs, err := s.Transfer()
	testutil.Must(t, err)
	out := held{}
	for _, rr := range rrs {
		name := strings.TrimSuffix(dns.CanonicalName(rr.Header().Name), "."+s.Zone())
		text := dns.TypeToString[rr.Header().Rrtype] + " " + strings.TrimPrefix(rr.String(), rr.Header().String())
		if kind := rr.Header().Rrtype; kind != dns.TypeSOA && kind != dns.TypeNS && name != "ns1" {
			out[name] = append(out[name], text)
			slices.Sort(out[name])
		}
	}
	return out
}

// of lists the names that a cluster has anything at: those that bear its id, and those whose text does.
func (h held) of(id string) (out []string) {
	for name, data := range h {
		if strings.Contains(name, id) || strings.Contains(strings.Join(data, " "), id) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func addresses(h held, name string) string { return strings.Join(h[name], ", ") }

// Two clusters that know nothing of each other publish hosts in one zone, on each of the servers.
func TestZonesBIND(t *testing.T)     { testZones(t, zoneserver.BIND) }
func TestZonesKnot(t *testing.T)     { testZones(t, zoneserver.Knot) }
func TestZonesPowerDNS(t *testing.T) { testZones(t, zoneserver.PowerDNS) }

func testZones(t *testing.T, kind zoneserver.Kind) {
	t.Helper()
	zoneserver.Require(t, kind)
	runtime.LockOSThread() // what is started here ends with its thread, and the server's start leaves its thread locked
	s := &shared{t: t, a: newMember(t), b: newMember(t, "--cluster-id=bbbbbbbb"), name: strings.ToLower(string(kind))}
	s.start(kind)
	s.joinAndChange()
	s.conflict()
	s.keys()
	s.deletion()
	s.away()
	s.killed()
	s.end()
}

// shared is one zone of both.
type shared struct {
	t      *testing.T
	a, b   *member
	name   string // of the DNSZone
	server *zoneserver.Server
}

func (s *shared) zone() string             { return s.name + ".example" }
func (s *shared) host(label string) string { return label + "." + s.zone() }

// start makes the zone known to both. A cluster shows its id before it has a key, so that the server's operator can make one.
func (s *shared) start(kind zoneserver.Kind) {
	s.t.Helper()
	for _, m := range []*member{s.a, s.b} {
		m.zone(s.name, s.zone(), "192.0.2.53")
		Await(s.t, "the cluster has a name", func() error {
			z := &v1alpha1.DNSZone{}
			if err := m.Client.Get(s.t.Context(), client.ObjectKey{Name: s.name}, z); err != nil {
				return err
			}
			if m.id = z.Status.ClusterID; m.id == "" {
				return fmt.Errorf("%+v", z.Status)
			}
			c := meta.FindStatusCondition(z.Status.Conditions, "Accepted")
			return testutil.ErrorIf(c == nil || c.Reason != "NoKey" || !strings.Contains(c.Message, "neardns-zones/"+s.name), "%+v", c)
		})
	}
	if len(s.a.id) != 8 || s.b.id != "bbbbbbbb" {
		s.t.Fatalf("the clusters are %q and %q", s.a.id, s.b.id)
	}
	hosts := []string{"www", "lb", "api"}
	s.server = zoneserver.Start(s.t, kind, zoneserver.Config{Zone: s.zone() + ".", Clusters: []string{s.a.id, s.b.id}, Hosts: hosts})
	for _, m := range []*member{s.a, s.b} {
		m.secret(s.name, s.key(m))
		m.zone(s.name, s.zone(), s.server.Addr().String())
	}
}

// key is a cluster's own, but on PowerDNS, where a message is whole with a key for all alone.
func (s *shared) key(m *member) zoneserver.Key {
	if s.server.Kind() == zoneserver.PowerDNS {
		return s.server.Operator()
	}
	return s.server.Key(m.id)
}

func (s *shared) want(name, want string) {
	s.t.Helper()
	got := addresses(hold(s.t, s.server), name)
	if got != want {
		s.t.Errorf("%s has %q, want %q", name, got, want)
	}
	show("dig "+s.host(name)+" ANY, at the primary", got)
}

// joinAndChange: the zone holds the union, each status reports it, and neither cluster's change touches the other's.
func (s *shared) joinAndChange() {
	s.t.Helper()
	s.a.publish(s.name+"-www", `{host: `+s.host("www")+`, addresses: [192.0.2.1]}`)
	s.b.publish(s.name+"-www", `{host: `+s.host("www")+`, addresses: [192.0.2.2, 192.0.2.3]}`)
	s.a.wait(s.name+"-www", "Programmed", "Programmed")
	s.b.wait(s.name+"-www", "Programmed", "Programmed")
	s.want("www", "A 192.0.2.1, A 192.0.2.2, A 192.0.2.3")
	for _, m := range []*member{s.a, s.b} {
		Await(s.t, "the status has what the zone has", func() error {
			status := m.record(s.name + "-www").Status
			owners := slices.Sorted(slices.Values([]string{s.a.id, s.b.id}))
			return testutil.ErrorIf(status.Published == nil || strings.Join(status.Published.Addresses, " ") != "192.0.2.1 192.0.2.2 192.0.2.3" ||
				!slices.Equal(status.Owners, owners) || status.Generation == 0, "%+v", status)
		})
	}
	s.b.publish(s.name+"-www", `{host: `+s.host("www")+`, addresses: [192.0.2.2]}`)
	s.b.wait(s.name+"-www", "Programmed", "Programmed")
	s.want("www", "A 192.0.2.1, A 192.0.2.2")
	// What the API server takes and this cluster's administrator does not allow: one reason, nothing written.
	s.a.publish(s.name+"-far", `{host: `+s.host("api")+`, addresses: [203.0.113.1]}`)
	s.a.wait(s.name+"-far", "Accepted", "NotAllowed")
	s.a.publish(s.name+"-none", `{host: www.elsewhere.example, addresses: [192.0.2.1]}`)
	s.a.wait(s.name+"-none", "Accepted", "NoZone")
	s.want("api", "")
	s.a.remove("dnsrecord", s.name+"-far")
	s.a.remove("dnsrecord", s.name+"-none")
}

// conflict: of two strategies the first has the host; the other cluster writes nothing, reports it, and goes on by itself.
func (s *shared) conflict() {
	s.t.Helper()
	s.a.publish(s.name+"-lb", `{host: `+s.host("lb")+`, addresses: [192.0.2.1]}`)
	s.a.wait(s.name+"-lb", "Programmed", "Programmed")
	before := hold(s.t, s.server)
	begun := time.Now()
	s.b.publish(s.name+"-lb", `{host: `+s.host("lb")+`, strategy: LoadBalanced, geo: IE, addresses: [192.0.2.2]}`)
	var c *metav1.Condition
	Await(s.t, "the conflict is told", func() error {
		rec := s.b.record(s.name + "-lb")
		c = meta.FindStatusCondition(rec.Status.Conditions, "UnresolvedConflictDiscovered")
		return testutil.ErrorIf(c == nil || c.Status != metav1.ConditionTrue, "%+v", rec.Status.Conditions)
	})
	s.t.Logf("%s: %s after %s: %s", s.name, c.Reason, time.Since(begun).Round(time.Millisecond), c.Message)
	if reason(s.b.record(s.name+"-lb"), "Programmed") == "Programmed" || c.Reason != "ConflictingStrategyDiscovered" || !strings.Contains(c.Message, s.a.id) {
		s.t.Errorf("%+v", c)
	}
	after := hold(s.t, s.server)
	if got := addresses(after, "lb"); got != addresses(before, "lb") || slices.ContainsFunc(after.of(s.b.id), func(name string) bool { return strings.Contains(name, "lb.") }) {
		s.t.Errorf("the loser wrote: %q, %v", got, after.of(s.b.id))
	}
	var list eventsv1.EventList
	Await(s.t, "an Event tells of it", func() error {
		if err := s.b.Client.List(s.t.Context(), &list, client.InNamespace("default")); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Regarding.Name == s.name+"-lb" && e.Reason == c.Reason && e.Type == corev1.EventTypeWarning {
				return nil
			}
		}
		return fmt.Errorf("%d others", len(list.Items))
	})
	s.a.remove("dnsrecord", s.name+"-lb")
	s.b.wait(s.name+"-lb", "Programmed", "Programmed")
	s.b.wait(s.name+"-lb", "UnresolvedConflictDiscovered", "NoConflict")
	s.want("lb", "A 192.0.2.2")
	s.b.remove("dnsrecord", s.name+"-lb")
	s.want("lb", "")
}

// keys: another key is the next message's, without a restart; one that the server does not know ends as a reason, and writes nothing.
func (s *shared) keys() {
	s.t.Helper()
	s.b.secret(s.name, s.server.Operator())
	s.b.publish(s.name+"-www", `{host: `+s.host("www")+`, addresses: [192.0.2.4]}`)
	s.b.wait(s.name+"-www", "Programmed", "Programmed")
	s.want("www", "A 192.0.2.1, A 192.0.2.4")
	wrong := s.server.Operator()
	wrong.Name = "nobody." + wrong.Name
	s.b.secret(s.name, wrong)
	s.b.publish(s.name+"-www", `{host: `+s.host("www")+`, addresses: [192.0.2.5]}`)
	rec := s.b.wait(s.name+"-www", "Programmed", "NotPermitted", "BadKey")
	s.t.Logf("%s: a key that the server does not know: %s: %s", s.name, reason(rec, "Programmed"), meta.FindStatusCondition(rec.Status.Conditions, "Programmed").Message)
	s.want("www", "A 192.0.2.1, A 192.0.2.4")
	s.b.secret(s.name, s.key(s.b))
	s.b.wait(s.name+"-www", "Programmed", "Programmed")
	s.want("www", "A 192.0.2.1, A 192.0.2.5")
	select {
	case <-s.b.controller.Ended():
		s.t.Error("the controller has ended amid keys")
	default:
	}
	for _, m := range []*member{s.a, s.b} {
		log := testutil.ReadFile(s.t, m.controller.Log)
		status, err := json.Marshal(m.record(s.name + "-www").Status)
		testutil.Must(s.t, err)
		var list eventsv1.EventList
		testutil.Must(s.t, m.Client.List(s.t.Context(), &list))
		events := fmt.Sprint(list.Items)
		for _, key := range []zoneserver.Key{s.server.Operator(), s.key(m)} {
			if strings.Contains(log+string(status)+events, key.Secret) {
				s.t.Errorf("%s tells the secret of %s", m.id, key.Name)
			}
		}
	}
}

// deletion: kubectl delete returns when what was published is gone, and the other cluster's stays.
func (s *shared) deletion() {
	s.t.Helper()
	s.a.remove("dnsrecord", s.name+"-www")
	h := hold(s.t, s.server)
	if got := addresses(h, "www"); got != "A 192.0.2.5" {
		s.t.Errorf("after the deletion www has %q", got)
	}
	for _, name := range h.of(s.a.id) {
		if strings.HasPrefix(name, "www.") || strings.Contains(name, ".www.") {
			s.t.Errorf("%s is left", name)
		}
	}
	// It comes back whole, and a DNSZone waits for its records.
	s.a.publish(s.name+"-www", `{host: `+s.host("www")+`, addresses: [192.0.2.1]}`)
	s.a.wait(s.name+"-www", "Programmed", "Programmed")
	s.want("www", "A 192.0.2.1, A 192.0.2.5")
}

// away: while the primary is, a deletion waits, and gives the reason; an orphan does not wait.
func (s *shared) away() {
	s.t.Helper()
	s.b.publish(s.name+"-api", `{host: `+s.host("api")+`, addresses: [192.0.2.9]}`)
	s.b.wait(s.name+"-api", "Programmed", "Programmed")
	s.server.Kill()
	s.a.publish(s.name+"-www", `{host: `+s.host("www")+`, addresses: [192.0.2.6]}`)
	s.a.wait(s.name+"-www", "Programmed", "Unreachable", "NoAnswer")
	s.a.remove("dnsrecord", s.name+"-www", "--wait=false")
	s.b.remove("dnsrecord", s.name+"-api", "--wait=false")
	s.a.wait(s.name+"-www", "Programmed", "Unreachable", "NoAnswer")
	s.b.wait(s.name+"-api", "Accepted", "Deleting")
	s.b.patch("dnsrecord", s.name+"-api", `{"spec": {"deletionPolicy": "Orphan"}}`)
	s.b.waitGone(s.name + "-api")
	if s.a.record(s.name+"-www") == nil {
		s.t.Error("the record went before what it published")
	}
	s.server.Run()
	s.a.waitGone(s.name + "-www")
	s.want("www", "A 192.0.2.5")
	s.want("api", "A 192.0.2.9")
	// An orphan is this cluster's: a record of the host takes it up.
	s.b.publish(s.name+"-api", `{host: `+s.host("api")+`, addresses: [192.0.2.8]}`)
	s.b.wait(s.name+"-api", "Programmed", "Programmed")
	s.want("api", "A 192.0.2.8")
}

// killed: the next controller goes on from what is there.
func (s *shared) killed() {
	s.t.Helper()
	testutil.Must(s.t, s.b.controller.Process.Signal(syscall.SIGKILL))
	<-s.b.controller.Ended()
	s.b.remove("dnsrecord", s.name+"-api", "--wait=false")
	s.b.publish(s.name+"-www", `{host: `+s.host("www")+`, addresses: [192.0.2.7]}`)
	s.b.run()
	s.b.waitGone(s.name + "-api")
	s.b.wait(s.name+"-www", "Programmed", "Programmed")
	s.want("www", "A 192.0.2.7")
	s.want("api", "")
}

// end: a DNSZone goes with its last record, and nothing is left in the zone, not even a heartbeat.
func (s *shared) end() {
	s.t.Helper()
	s.b.remove("dnszone", s.name, "--wait=false")
	s.b.remove("dnsrecord", s.name+"-www")
	for _, m := range []*member{s.a, s.b} {
		m.remove("dnszone", s.name, "--ignore-not-found")
	}
	for name, data := range hold(s.t, s.server) {
		s.t.Errorf("%s is left: %v", name, data)
	}
}

// TestZonesRights has the API server refuse what is none of the account's.
func TestZonesRights(t *testing.T) {
	m := newMember(t)
	m.zone("z", "z.example", "192.0.2.53")
	m.publish("r", "{host: www.z.example, addresses: [192.0.2.1]}")
	account := m.As(m.Token("neardns-zones", "neardns-zones"))
	ours := &v1alpha1.DNSRecord{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "r"}}
	patch := patches(t, account)
	Await(t, "the policy is in force, and lets the finalizer through", func() error {
		if err := patch(ours, `{"metadata":{"labels":{"a":"b"}}}`)(); err == nil {
			return patch(ours, `{"metadata":{"labels":null}}`)()
		}
		return patch(ours, `{"metadata":{"finalizers":["neardns.io/zones"]}}`)()
	})
	wantRefused(t, "neardns-zones may", map[string]func() error{
		"a record's spec":    patch(ours, `{"spec":{"ttl":61}}`),
		"a label":            patch(ours, `{"metadata":{"labels":{"a":"b"}}}`),
		"an annotation":      patch(ours, `{"metadata":{"annotations":{"a":"b"}}}`),
		"another finalizer":  patch(ours, `{"metadata":{"finalizers":["neardns.io/zones","a.io/b"]}}`),
		"a zone's publisher": patch(&v1alpha1.DNSZone{ObjectMeta: metav1.ObjectMeta{Name: "z"}}, `{"spec":{"publishers":[]}}`),
		"a record deleted":   func() error { return account.Delete(t.Context(), ours.DeepCopy()) },
		"a record made": func() error {
			return account.Create(t.Context(), &v1alpha1.DNSRecord{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "n"}, Spec: v1alpha1.DNSRecordSpec{Host: "a.z.example", Addresses: []v1alpha1.Address{"192.0.2.1"}}})
		},
		"other Secrets": func() error {
			return account.List(t.Context(), &corev1.SecretList{}, client.InNamespace("kube-system"))
		},
		"a Secret written": func() error {
			return account.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "neardns-zones", Name: "n"}})
		},
		"Nodes": func() error { return account.List(t.Context(), &corev1.NodeList{}) },
		"pods":  func() error { return account.List(t.Context(), &corev1.PodList{}) },
		"ConfigMaps": func() error {
			return account.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace("neardns-zones"))
		},
		"namespaces": func() error { return account.List(t.Context(), &corev1.NamespaceList{}) },
	})
	m.policyRights(account)
	testutil.Check(t, account.List(t.Context(), &corev1.SecretList{}, client.InNamespace("neardns-zones")), "its own Secrets")
	testutil.Check(t, patch(ours, `{"metadata":{"finalizers":null}}`)(), "the finalizer cannot be taken away")
}

// policyRights: a DNSPolicy's DNSRecord is the account's own. This one has a finalizer, because the garbage collector deletes it soon.
func (m *member) policyRights(account client.Client) {
	m.t.Helper()
	yes := true
	owner := metav1.OwnerReference{APIVersion: "neardns.io/v1alpha1", Kind: "DNSPolicy", Name: "p", UID: "u",
		Controller: &yes, BlockOwnerDeletion: &yes}
	made := &v1alpha1.DNSRecord{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p-made",
		OwnerReferences: []metav1.OwnerReference{owner}, Finalizers: []string{"neardns.io/zones"}},
		Spec: v1alpha1.DNSRecordSpec{Host: "a.z.example", AddressesFrom: &v1alpha1.AddressesFrom{Kind: "Gateway", Name: "g"}}}
	testutil.Check(m.t, account.Create(m.t.Context(), made.DeepCopy()), "a DNSPolicy's DNSRecord cannot be made")
	for text, allowed := range map[string]bool{
		`{"spec":{"ttl":61}}`: true, `{"metadata":{"labels":{"a":"b"}}}`: false, `{"metadata":{"ownerReferences":null}}`: false,
		`{"spec":{"addressesFrom":null,"addresses":["192.0.2.1"]}}`: false,
	} {
		err := account.Patch(m.t.Context(), made.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(text)))
		if (err == nil) != allowed {
			m.t.Errorf("%s: %v", text, err)
		}
	}
	testutil.Check(m.t, account.Delete(m.t.Context(), made.DeepCopy()), "a DNSPolicy's DNSRecord cannot be deleted")
	m.forged(account, made)
}

// forged: DNSRecords with a DNSPolicy's reference that the controller does not make so are refused, or do not last.
func (m *member) forged(account client.Client, made *v1alpha1.DNSRecord) {
	m.t.Helper()
	for name, change := range map[string]func(*v1alpha1.DNSRecord){
		"with another name": func(r *v1alpha1.DNSRecord) { r.Name = "made" },
		"with addresses": func(r *v1alpha1.DNSRecord) {
			r.Spec.AddressesFrom, r.Spec.Addresses = nil, []v1alpha1.Address{"192.0.2.1"}
		},
		"with a Service's": func(r *v1alpha1.DNSRecord) { r.Spec.AddressesFrom.Kind = "Service" },
		"of another kind":  func(r *v1alpha1.DNSRecord) { r.OwnerReferences[0].Kind = "Gateway" },
		"of no controller": func(r *v1alpha1.DNSRecord) { r.OwnerReferences[0].Controller = nil },
		"of another API":   func(r *v1alpha1.DNSRecord) { r.OwnerReferences[0].APIVersion = "a.io/v1" },
	} {
		r := made.DeepCopy()
		change(r)
		testutil.WantError(m.t, account.Create(m.t.Context(), r), "neardns-zones may", "a DNSRecord "+name)
	}
	none := made.DeepCopy()
	none.Name = "p-none"
	testutil.Must(m.t, account.Create(m.t.Context(), none))
	Await(m.t, "the garbage collector deletes a DNSRecord whose DNSPolicy does not exist", func() error {
		r := m.record("p-none")
		return testutil.ErrorIf(r != nil && r.DeletionTimestamp == nil, "%+v", r)
	})
}
