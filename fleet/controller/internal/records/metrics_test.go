package records

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/neardns/neardns/fleet/controller/zones"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/fleet/zones/zonewriter"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := NewMetrics(registry)
	testutil.Must(t, err)
	m.begin()
	m.record("shared", []metav1.Condition{{Type: "Accepted", Reason: "Accepted"}})
	m.end()
	m.zone("shared", []metav1.Condition{{Type: "Read", Reason: "Read"}})
	m.setPolicies(nil)
	if problems, err := promtest.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	m.begin()
	m.end()
	m.zone("shared", []metav1.Condition{{Type: "Read", Reason: "NotPermitted"}})
	if was, is := promtest.ToFloat64(m.conditions.WithLabelValues("shared", "Read", "Read")), promtest.ToFloat64(m.conditions.WithLabelValues("shared", "Read", "NotPermitted")); was != 0 || is != 1 {
		t.Errorf("%v, %v", was, is)
	}
	if got := promtest.ToFloat64(m.records.WithLabelValues("shared", "Accepted", "Accepted")); got != 0 {
		t.Errorf("%v records that are gone", got)
	}
	m.keep(nil)
	if n := promtest.CollectAndCount(m.conditions); n != 0 {
		t.Errorf("%d series are left", n)
	}
}

// names collects what is registered.
type names struct {
	prometheus.Registerer
	all strings.Builder
}

func (n *names) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc, 10)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		fmt.Fprintln(&n.all, d)
	}
	return n.Registerer.Register(c)
}

func (n *names) MustRegister(collectors ...prometheus.Collector) {
	for _, c := range collectors {
		if err := n.Register(c); err != nil {
			panic(err)
		}
	}
}

// Alerts and dashboard use series and reasons that there are, and every metric has its place in the dashboard.
func TestAlerts(t *testing.T) {
	registered := &names{Registerer: prometheus.NewRegistry()}
	_, err := NewMetrics(registered)
	testutil.Must(t, err)
	zonewriter.NewMetrics(registered)
	ours := regexp.MustCompile(`fqName: "(neardns_\w+)"`).FindAllStringSubmatch(registered.all.String(), -1)
	known := map[string]bool{}
	for _, m := range ours {
		known[m[1]] = true
	}
	reasons := []string{zones.Accepted, zones.Deleting, zones.TargetNotFound, zones.ReadReason, zones.Programmed, zones.NotAccepted, zones.NoConflict, zones.SomeSick, zones.AllSick, zones.Silent, string(zone.RRsetFull)}
	text := func(file string) string { return testutil.ReadFile(t, "../../../conf/"+file) }
	dashboard := strings.ReplaceAll(text("zones-dashboard.json"), `\"`, `"`)
	for file, content := range map[string]string{"zones-alerts.yaml": text("zones-alerts.yaml"), "zones-dashboard.json": dashboard} {
		for _, name := range regexp.MustCompile(`neardns_(?:zone|dnszone|dnsrecord|dnspolic)\w*`).FindAllString(content, -1) {
			if !known[name] {
				t.Errorf("%s asks for %s, which nothing exports", file, name)
			}
		}
		for _, m := range regexp.MustCompile(`reason(?:!?=~?)"([\w|]+)"`).FindAllStringSubmatch(content, -1) {
			for reason := range strings.SplitSeq(m[1], "|") {
				if !slices.Contains(reasons, reason) {
					t.Errorf("%s asks for the reason %s, which nothing has", file, reason)
				}
			}
		}
	}
	for name := range known {
		if !strings.Contains(dashboard, name) {
			t.Errorf("%s has no panel", name)
		}
	}
	if len(known) < 12 {
		t.Errorf("only %d metrics: %v", len(known), known)
	}
}
