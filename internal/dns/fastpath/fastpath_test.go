package fastpath

import (
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestZones: the longest zone on a border of labels is found.
func TestZones(t *testing.T) {
	var z Zones[string]
	for _, name := range []string{".", "cluster.local.", "svc.cluster.local.", "b.example.", "-.example."} {
		testutil.Must(t, z.Add(name, name))
	}
	testutil.Must(t, z.Add("Cluster.Local.", "second"))
	if err := z.Add("no..name.", ""); err == nil {
		t.Error("a name that is none was added")
	}
	q := new(msg.Query)
	for name, want := range map[string]string{
		".": ".", "a.": ".", "cluster.local.": "cluster.local.", "CLUSTER.LOCAL.": "cluster.local.", "xcluster.local.": ".", "local.": ".",
		"a.svc.cluster.local.": "svc.cluster.local.", "svc.cluster.local.": "svc.cluster.local.", "a.b.example.": "b.example.", "ab.example.": ".",
	} {
		b, err := new(dns.Msg).SetQuestion(name, dns.TypeAAAA).Pack()
		if err != nil || !q.Read(b) {
			t.Errorf("%s: not plain", name)
		}
		if got, ok := z.Find(q); got != want || !ok {
			t.Errorf("%s: found %s", name, got)
		}
	}
	if _, ok := new(Zones[string]).Find(q); ok {
		t.Error("no zones, and one was found")
	}
}
