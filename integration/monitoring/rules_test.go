package monitoring

import (
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestRules has promtool check the alerts, and run the tests of each.
func TestRules(t *testing.T) {
	samples, err := filepath.Glob("../../fleet/conf/*-alerts.yaml")
	if err != nil || len(samples) != 3 {
		t.Fatal(samples, err)
	}
	names := map[string]bool{}
	for _, file := range append(samples, alertsSample) {
		doctor, tests := file == alertsSample, strings.Replace(file, ".yaml", "_test.yaml", 1)
		for verb, file := range map[string]string{"check": file, "test": tests} {
			if out, err := exec.CommandContext(t.Context(), "promtool", verb, "rules", file).CombinedOutput(); err != nil {
				t.Errorf("promtool %s rules %s: %v\n%s", verb, file, err, out)
			}
		}
		tested := testutil.ReadFile(t, tests)
		for _, a := range alerts(t, file) {
			name, _ := a["alert"].(string)
			if name == "" || names[name] {
				t.Errorf("an alert without a name of its own: %v", a)
			}
			names[name] = true
			// promtool fails where it does not fire then.
			if !strings.Contains(tested, `alertname="`+name+`", alertstate="firing"`) {
				t.Errorf("%s has no test in which it fires", name)
			}
			labels, _ := a["labels"].(object)
			if severity, _ := labels["severity"].(string); !slices.Contains([]string{"info", "warning", "critical"}, severity) || a["for"] == nil {
				t.Errorf("%s: severity %q, for %v", name, severity, a["for"])
			}
			notes, _ := a["annotations"].(object)
			for _, key := range []string{"summary", "description", "remedy"} {
				if text, _ := notes[key].(string); text == "" || doctor && key == "remedy" && !strings.Contains(text, "neardns-agent doctor") && name != "NeardnsAbsent" {
					t.Errorf("%s: %s is %q", name, key, text)
				}
			}
		}
	}
	if len(names) < 25 {
		t.Errorf("only %d alerts", len(names))
	}
}

// The query by which a rollout halts is one of the tests that promtool runs.
func TestRolloutHalts(t *testing.T) {
	const query = `ALERTS{alertname=~"Neardns.*", alertstate="firing"}`
	if !strings.Contains(testutil.ReadFile(t, "../../docs/rollout.md"), "'"+query+"'") || !strings.Contains(testutil.ReadFile(t, "../../conf/alerts_test.yaml"), "- expr: "+query+"\n") {
		t.Errorf("docs/rollout.md and conf/alerts_test.yaml must both have %s", query)
	}
}

// alerts are the rules of a sample.
func alerts(t *testing.T, file string) (out []object) {
	t.Helper()
	groups, _ := readYAML(t, file)["groups"].([]any)
	for _, g := range groups {
		rules, _ := g.(object)["rules"].([]any)
		for _, r := range rules {
			out = append(out, r.(object))
		}
	}
	return out
}

// Metrics of ours that no alert is about, and why.
var noAlert = map[string]string{
	"neardns_build_info":                        "says which version it is",
	"neardns_bypass_events_total":               "NeardnsPodsBypassed tells of those that last",
	"neardns_cache_bytes":                       "bounded: what is full makes room",
	"neardns_cache_limit_bytes":                 "a setting",
	"neardns_conflist_repairs_total":            "a main network may write its list as it likes; NeardnsConflistFight tells when it goes on",
	"neardns_iptables_run_seconds_total":        "cost, not fault",
	"neardns_kernel_entries":                    "bounded: what is full makes room",
	"neardns_kernel_hits_total":                 "traffic",
	"neardns_kernel_pods":                       "the agent answers who is refused, and its status and doctor say why; NeardnsKernelHitsOff tells of whole nodes",
	"neardns_misses_in_flight":                  "NeardnsMissesShed tells when they are too many",
	"neardns_misses_in_flight_limit":            "a setting",
	"neardns_namespace_failures_total":          "NeardnsServfail tells of the node that they are on",
	"neardns_namespace_hits_total":              "a cache may be of little worth to somebody",
	"neardns_namespace_kernel_hits_total":       "a share of the hits",
	"neardns_namespace_queries_total":           "traffic",
	"neardns_reloads_total":                     "NeardnsReloadRefused tells of a configuration that is refused, for as long as it is",
	"neardns_probes_total":                      "a lost probe costs nothing; NeardnsLeaseNotHeld and NeardnsLeaseFlaps tell of what does",
	"neardns_switch_restored_total":             "it is mended, and the agent that was away has its own alert",
	"neardns_tcp_connections":                   "NeardnsQuestionsDropped tells when they are too many",
	"neardns_tcp_connections_limit":             "a setting",
	"neardns_udp_in_flight":                     "NeardnsQuestionsDropped tells when they are too many",
	"neardns_udp_in_flight_limit":               "a setting",
	"neardns_upstream_connections_opened_total": "cost, not fault",
	"neardns_upstream_health_changes_total":     "NeardnsUpstreamDead tells of those that last",
	"neardns_upstream_hedges_total":             "a slow upstream that is stood in for",
	"neardns_upstream_probes_total":             "how the dead are tried again",
	"neardns_upstream_shed_total":               "NeardnsUpstreamDead tells of the servers that were dead",
	"neardns_upstream_requests_total":           "single failures are stood in for; NeardnsUpstreamDead and NeardnsServfail tell of what is not",
}

// Metrics of ours that the dashboard does not show, and why.
var noPanel = map[string]string{
	"neardns_can_ask":                           "leases lost and the servers' health are shown",
	"neardns_config_ok":                         "reloads that were refused are shown",
	"neardns_conflist_looked_timestamp_seconds": "NeardnsWatchSilent tells of it",
	"neardns_hosts_fighting":                    "the role hosts has no dashboard: its alerts and status tell of it",
	"neardns_hosts_file_ok":                     "the role hosts has no dashboard: its alerts and status tell of it",
	"neardns_hosts_services":                    "the role hosts has no dashboard: its alerts and status tell of it",
	"neardns_lease_changes_total":               "leases held and lost are shown",
	"neardns_namespace_kernel_hits_total":       "hits are shown, wherever they are answered",
	"neardns_switch_restored_total":             "the watch's, while no agent answers: over by the time that one is scraped again",
	"neardns_upstream_connections_opened_total": "for a developer of the agent",
	"neardns_upstream_health_changes_total":     "health is shown",
	"neardns_upstream_probes_total":             "health is shown",
	"neardns_upstream_shed_total":               "health is shown",
}

var metricName = regexp.MustCompile(`\b(?:neardns|coredns|process|go)_\w+`)

// wantCovered checks, with everything that Prometheus has seen by now, that alerts and dashboard name no metric which is not
// there, and that each of ours has its place in both or a reason why not.
func (s *stand) wantCovered() {
	s.t.Helper()
	var names []string
	testutil.Must(s.t, s.api("label/__name__/values", nil, &names))
	sources := s.Host.Run("sh", "-c", "cat ../../internal/telemetry/*.go ../../agent/internal/lifecycle/*.go ../../agent/internal/hostsfile/*.go")
	for name := range ofAnother {
		if slices.Contains(names, name) || !strings.Contains(sources, strings.TrimPrefix(name, "neardns_")+`"`) {
			s.t.Errorf("%s is exported here, or nowhere", name)
		}
		names = append(names, name)
	}
	used := func(text string) map[string]bool {
		out := map[string]bool{}
		for _, name := range metricName.FindAllString(text, -1) {
			out[name] = true
			if !slices.Contains(names, name) {
				s.t.Errorf("%s is not exported", name)
			}
		}
		return out
	}
	var exprs strings.Builder
	for _, a := range alerts(s.t, alertsSample) {
		exprs.WriteString(a["expr"].(string) + "\n")
	}
	var queries strings.Builder
	for _, p := range dashboard(s.t) {
		for _, target := range p.Targets {
			queries.WriteString(target.Expr + "\n")
		}
	}
	for what, c := range map[string]struct {
		used   map[string]bool
		except map[string]string
	}{"alert": {used(exprs.String()), noAlert}, "panel": {used(queries.String()), noPanel}} {
		for _, name := range names {
			switch reason := c.except[name]; {
			case !strings.HasPrefix(name, "neardns_"):
			case !c.used[name] && reason == "":
				s.t.Errorf("%s has no %s: add one in conf/ (an alert with its test), or here the reason why there is none", name, what)
			case c.used[name] && reason != "":
				s.t.Errorf("%s has its %s, so there is no reason here why not (%s)", name, what, reason)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(c.except)) {
			if !slices.Contains(names, name) {
				s.t.Errorf("%s, which has no %s, is not exported either", name, what)
			}
		}
	}
}
