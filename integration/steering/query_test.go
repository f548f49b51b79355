package steering

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestQuery: `query` names the server that answers a pod, and whether the cache had the name.
func TestQuery(t *testing.T) {
	n, p := newServed(t, setup{families: testutil.IPv4, config: calm})
	n.wantSteered(p.client(), "agent up", n.all()...)
	type lookup struct {
		Cached  string
		Path    string
		Replies []struct {
			From, Code, Error string
			By                string `json:"answeredBy"`
		}
	}
	name := ""
	query := func() (l lookup) {
		code, out, errs := n.run("query", "--config", n.configFile(), "--pod", "default/"+p.name, "-o", "json", name)
		if err := json.Unmarshal([]byte(out), &l); err != nil || code != 0 || len(l.Replies) != 3 {
			t.Fatalf("exit code %d, %v\n%s%s", code, err, out, errs)
		}
		return l
	}
	differs := func(l lookup, when, cached, pod, cache, kubeDNS string) error {
		r := l.Replies
		right := l.Cached == cached && l.Path == "steered" && r[0].By == pod && r[1].By == cache && r[2].By == kubeDNS
		return testutil.ErrorIf(!right || r[2].Code != "NOERROR", "%s: %+v", when, l)
	}
	testutil.Eventually(t, func() error { // kube-dns, in this process, may be silent for too long
		name = fmt.Sprintf("query-test-%d.example", names.Add(1))
		return errors.Join(differs(query(), "a new name", "miss", "agent", "agent", "kube-dns"),
			differs(query(), "the same again", "hit", "agent", "agent", "kube-dns"))
	})
	// What kubectl neardns reads names no pod and nothing that pods query.
	status := n.fetch("/v1/status")
	text := status + n.fetch("/metrics")
	var o struct {
		Serving bool
		Leases  []struct{ Held bool }
		Counts  struct{ Queries, Hits int }
		States  map[string]int `json:"podStates"`
	}
	if err := json.Unmarshal([]byte(status), &o); err != nil || !o.Serving ||
		o.States["steered"] != 1 || len(o.Leases) == 0 || !o.Leases[0].Held || o.Counts.Hits < 2 || o.Counts.Queries < 4 {
		t.Errorf("%v\n%s", err, text)
	}
	if strings.Contains(text, p.name) || strings.Contains(text, "query-test") || strings.Contains(text, "neardns_namespace_") {
		t.Errorf("it names the pod, its namespace or the name:\n%s", text)
	}
	n.kill()
	n.wantFallback(p.client(), "agent killed", n.all()...)
	testutil.Eventually(t, func() error {
		return differs(query(), "without an agent", "no agent answers", "kube-dns", "none", "kube-dns")
	})
	if code, _, errs := n.run("query", "--config", n.configFile(), "--pod", "default/none", "a.example"); code != 1 {
		t.Errorf("a pod that is not there: %d %s", code, errs)
	}
}
