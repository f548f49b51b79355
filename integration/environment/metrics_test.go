package environment

import (
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestMetricsTable holds the table in docs/reference/metrics.md to what a running agent exports: every metric of ours stands in it
// with its labels, and every metric in it is exported, or at least in the sources.
func TestMetricsTable(t *testing.T) {
	n := newNode(t, testutil.IPv4, testutil.NFTables)
	n.start()
	n.awaitCached("metrics")
	families := n.scrape()
	if s := n.status().Agent; s.PID != n.agent.PID() || s.Cache.Hits < 1 || s.Cache.Misses < 1 || s.Cache.Bytes < 1 {
		t.Errorf("status does not tell of the process and its cache: %+v", s)
	}
	_, table, _ := strings.Cut(testutil.ReadFile(t, "../../docs/reference/metrics.md"), "## Metrics")
	table, _, _ = strings.Cut(table, "\n## ")
	documented := map[string]string{} // labels by name
	for _, m := range regexp.MustCompile("`(neardns_\\w+\\*?)(?:\\{([\\w,]+)\\})?`").FindAllStringSubmatch(table, -1) {
		documented[m[1]] = m[2]
	}
	covered := func(name string) (labels string, exact, ok bool) {
		if labels, ok := documented[name]; ok {
			return labels, true, true
		}
		for d := range documented {
			if prefix, wild := strings.CutSuffix(d, "*"); wild && strings.HasPrefix(name, prefix) {
				return "", false, true
			}
		}
		return "", false, false
	}
	for name, f := range families {
		if !strings.HasPrefix(name, "neardns_") {
			continue
		}
		labels, exact, ok := covered(name)
		if !ok {
			t.Errorf("%s (%s) does not stand in docs/reference/metrics.md", name, f.GetHelp())
		}
		for _, l := range f.GetMetric()[0].GetLabel() {
			if exact && !strings.Contains(","+labels+",", ","+l.GetName()+",") {
				t.Errorf("%s has a label %s, docs/reference/metrics.md says {%s}", name, l.GetName(), labels)
			}
		}
	}
	sources := n.sources()
	for name := range documented {
		// What never happened here is not exported yet; then its name stands in the sources.
		short := strings.TrimPrefix(strings.TrimSuffix(name, "*"), "neardns_")
		if _, ok := families[name]; !ok && !strings.HasSuffix(name, "*") && !strings.Contains(sources, `"`+short+`"`) && !strings.Contains(sources, `"`+strings.TrimPrefix(short, "upstream_")+`"`) && !strings.Contains(sources, `"`+name+`"`) && !strings.Contains(sources, `"_`+short+`"`) {
			t.Errorf("%s stands in docs/reference/metrics.md and nowhere else", name)
		}
	}
}

// scrape reads the running agent's metrics, and has promlint look at ours.
func (n *node) scrape() map[string]*dto.MetricFamily {
	n.t.Helper()
	text, err := n.Host.Get("http://127.0.0.1:9253/metrics")
	testutil.Must(n.t, err)
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	testutil.Must(n.t, err)
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	testutil.Must(n.t, err)
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "neardns_") {
			n.t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	return families
}

// sources is the text of all files that make metrics.
func (n *node) sources() string {
	n.t.Helper()
	return n.Host.Run("sh", "-c", "cat $(find ../../agent ../../internal ../../fleet/edge -name metrics.go) ../../internal/telemetry/*.go")
}
