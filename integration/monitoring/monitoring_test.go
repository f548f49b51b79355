package monitoring

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

// TestMonitoring has a real Prometheus scrape a real agent, and looks at targets, dashboard and alerts: first while all is well, then
// with one fault after the other.
func TestMonitoring(t *testing.T) {
	s := newStand(t)
	s.prometheus(config(t))
	s.ask("a.default.svc.cluster.local.", "b.default.svc.cluster.local.", "www.example.org.")
	s.wantTargets()
	s.wantDashboard()
	s.wantQuiet()
	s.wantAlerts()
	s.wantCovered()
}

// wantTargets checks that of the containers of a pod the agent alone is scraped, by either family, under the labels that dashboard
// and alerts need.
func (s *stand) wantTargets() {
	s.t.Helper()
	type target struct {
		ScrapeURL string `json:"scrapeUrl"`
		Health    string
		Labels    map[string]string
	}
	labels := func(job, instance string) map[string]string {
		return map[string]string{"job": job, "instance": instance, "node": nodeName, "namespace": "kube-system", "pod": "neardns-x7k2p"}
	}
	want := []target{
		{"http://127.0.0.1:9253/metrics", "up", labels("neardns", "127.0.0.1:9253")},
		{"http://[::1]:9253/metrics", "up", labels("by-ipv6", "[::1]:9253")},
	}
	testutil.Eventually(s.t, func() error {
		var got struct{ ActiveTargets []target }
		if err := s.api("targets", nil, &got); err != nil {
			return err
		}
		slices.SortFunc(got.ActiveTargets, func(a, b target) int { return strings.Compare(a.ScrapeURL, b.ScrapeURL) })
		d := cmp.Diff(want, got.ActiveTargets)
		return testutil.ErrorIf(d != "", "targets (-want +got):\n%s", d)
	})
}

// rule is what Prometheus reports about one of our alerts.
type rule struct {
	Name, Query, Health, LastError, State string
	Alerts                                []struct {
		Labels, Annotations map[string]string
	}
}

// rules returns the alerts by name, once all of them have been evaluated.
func (s *stand) rules() (map[string]rule, error) {
	var data struct {
		Groups []struct{ Rules []rule }
	}
	if err := s.api("rules", nil, &data); err != nil {
		return nil, err
	}
	out := map[string]rule{}
	for _, g := range data.Groups {
		for _, r := range g.Rules {
			if r.Health != "ok" {
				return nil, fmt.Errorf("%s is %s: %s", r.Name, r.Health, r.LastError)
			}
			out[r.Name] = r
		}
	}
	if len(out) < 20 {
		return nil, fmt.Errorf("%d alerts", len(out))
	}
	return out, nil
}

// busy are the alerts that a busy machine may bring about, by what shows it: an agent that gets no CPU for long enough loses its leases,
// and an upstream that gets none answers late.
var busy = map[string][]string{
	"sum(neardns_lease_lost_total) > 0":                               {"NeardnsLeaseNotHeld", "NeardnsLeaseFlaps", "NeardnsFallbackUsed"},
	`sum(neardns_upstream_requests_total{result=~"slow|silent"}) > 0`: {"NeardnsLastResort", "NeardnsUpstreamDead"},
}

// wantQuiet checks that no alert speaks while all is well.
func (s *stand) wantQuiet() {
	s.t.Helper()
	testutil.Eventually(s.t, func() error {
		var excused []string
		for shown, alerts := range busy {
			if found, err := s.query(shown); err != nil {
				return err
			} else if len(found) > 0 {
				excused = append(excused, alerts...)
			}
		}
		rules, err := s.rules()
		for _, r := range rules {
			if r.State != "inactive" && !slices.Contains(excused, r.Name) {
				return fmt.Errorf("%s is %s while all is well: %v", r.Name, r.State, r.Alerts)
			}
		}
		return err
	})
}

// wantAlerts brings about faults and waits for the alerts that tell of them, with the node's name and a remedy in their text.
func (s *stand) wantAlerts() {
	s.t.Helper()
	good := s.nodeConfig("")
	for _, c := range []struct {
		fault  string
		make   func()
		alerts []string
	}{
		{"a dead upstream", func() {
			s.write("node.yaml", s.nodeConfig(fmt.Sprintf("%q", s.KubeDNSAddrs()[0].String()+":5353")))
		}, []string{"NeardnsUpstreamDead", "NeardnsLastResort"}},
		{"a faulty configuration", func() { s.write("node.yaml", "kind: [") }, []string{"NeardnsReloadRefused"}},
		{"a watch in a fight, which hangs", func() {
			s.write("node.yaml", good)
			w := nodestate.Watch{Looked: time.Now().Add(-time.Hour), Fighting: true, Repairs: 4}
			testutil.Must(s.t, nodestate.WatchFile(s.path("run")).Write(w))
		}, []string{"NeardnsConflistFight", "NeardnsNotChained", "NeardnsWatchSilent"}},
		{"a firewall", func() {
			s.Host.Run("nft", "add table inet wall; add chain inet wall input { type filter hook input priority 0; }; add rule inet wall input meta l4proto { tcp, udp } th dport 53 drop")
		}, []string{"NeardnsLeaseNotHeld", "NeardnsFallbackUsed"}},
		{"a kill", func() { s.agent.Kill() }, []string{"NeardnsDown"}},
	} {
		c.make()
		for _, name := range c.alerts {
			testutil.Eventually(s.t, func() error {
				rules, err := s.rules()
				if err != nil {
					return err
				}
				r := rules[name]
				if r.State == "inactive" || len(r.Alerts) == 0 {
					return fmt.Errorf("%s: %s says nothing", c.fault, name)
				}
				a := r.Alerts[0]
				return testutil.ErrorIf(a.Labels["node"] != nodeName || a.Labels["severity"] == "" || !strings.Contains(a.Annotations["summary"], nodeName) ||
					!strings.Contains(a.Annotations["remedy"], "neardns-agent doctor"), "%s: %s has %v", c.fault, name, a)
			})
		}
	}
}
