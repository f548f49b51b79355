package monitoring

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/pkg/testutil"
)

// unitsOfPage are what testdata/dashboard.html can write numbers in.
var unitsOfPage = []string{"percentunit", "s", "bytes", "pps", "reqps", "ops", "short"}

// drawn is a panel as testdata/dashboard.html takes it.
type drawn struct {
	Kind    string   `json:"kind"` // row, stat, graph; note: what stands in a graph's place
	Title   string   `json:"title"`
	X       int      `json:"x"`
	Y       int      `json:"y"`
	W       int      `json:"w"`
	H       int      `json:"h"`
	Unit    string   `json:"unit,omitempty"`
	Note    string   `json:"note,omitempty"`
	Exprs   []string `json:"exprs,omitempty"`
	Names   []string `json:"names,omitempty"` // of series, with [[label]]
	Steps   []step   `json:"steps,omitempty"`
	Stacked bool     `json:"stacked,omitempty"`
	Min     *float64 `json:"min"`
	Max     *float64 `json:"max"`
}

// draw is a panel for the page. What the page cannot show is an error: its absence from the picture would not be noticed.
func (p panel) draw() (drawn, error) {
	defaults := p.FieldConfig.Defaults
	d := drawn{Title: p.Title, X: p.GridPos.X, Y: p.GridPos.Y, W: p.GridPos.W, H: p.GridPos.H, Unit: defaults.Unit, Min: defaults.Min, Max: defaults.Max}
	for _, target := range p.Targets {
		d.Exprs = append(d.Exprs, filled(target.Expr))
		d.Names = append(d.Names, legendLabel.ReplaceAllString(target.LegendFormat, "[[$1]]"))
	}
	switch p.Type {
	case "row":
		d.Kind = "row"
		return d, nil
	case "stat":
		d.Kind, d.Steps = "stat", defaults.Thresholds.Steps
		if len(d.Exprs) != 1 {
			return d, fmt.Errorf("panel %q shows one number of %d queries", p.Title, len(d.Exprs))
		}
	case "timeseries":
		d.Kind, d.Stacked = "graph", defaults.Custom.Stacking.Mode == "normal"
		if whose := p.ofAnotherOnly(); whose != "" {
			d.Kind, d.Note = "note", "only with "+whose
		}
	default:
		return d, fmt.Errorf("panel %q: the picture has no way to draw type %q", p.Title, p.Type)
	}
	if !slices.Contains(unitsOfPage, d.Unit) {
		return d, fmt.Errorf("panel %q: the picture has no way to write unit %q", p.Title, d.Unit)
	}
	return d, nil
}

// page is the dashboard drawn by Prometheus's own graphs, over the span before an end.
func page(all []panel, frame string, end time.Time, span time.Duration) (string, error) {
	data := struct {
		End    float64 `json:"end"`
		Span   float64 `json:"span"`
		Panels []drawn `json:"panels"`
	}{End: float64(end.UnixMilli()) / 1000, Span: span.Seconds()}
	for _, p := range all {
		d, err := p.draw()
		if err != nil {
			return "", err
		}
		data.Panels = append(data.Panels, d)
	}
	text, err := json.Marshal(data) // escapes what would end the script
	if err != nil {
		return "", err
	}
	const place = "const dashboard = PANELS;"
	if strings.Count(frame, place) != 1 {
		return "", fmt.Errorf("the page has no one place %q", place)
	}
	return strings.Replace(frame, place, "const dashboard = "+string(text)+";", 1), nil
}

// expressions are all that a dashboard has, wherever in it they stand.
func expressions(value any) (out []string) {
	switch v := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if expr, ok := v[key].(string); ok && key == "expr" {
				out = append(out, expr)
			}
			out = append(out, expressions(v[key])...)
		}
	case []any:
		for _, one := range v {
			out = append(out, expressions(one)...)
		}
	}
	return out
}

// TestPageShowsDashboard holds that the picture has every expression of the dashboard, and that what cannot be drawn is an error.
func TestPageShowsDashboard(t *testing.T) {
	frame := testutil.ReadFile(t, "testdata/dashboard.html")
	text, err := page(panels(t), frame, time.Unix(1, 0), time.Minute)
	testutil.Must(t, err)
	var d any
	testutil.Must(t, json.Unmarshal([]byte(testutil.ReadFile(t, dashboardSample)), &d))
	all := expressions(d)
	for _, expr := range all {
		quoted, err := json.Marshal(filled(expr))
		if err != nil || !strings.Contains(text, string(quoted)) {
			t.Errorf("the page lacks %s (%v)", expr, err)
		}
	}
	if len(all) < 50 || strings.Contains(text, "$__") || strings.Contains(text, "{{") {
		t.Errorf("%d expressions; variables or labels are left:\n%s", len(all), text)
	}
	for _, unit := range unitsOfPage {
		if !strings.Contains(frame, "  "+unit+": { write: ") {
			t.Errorf("the page knows no unit %q", unit)
		}
	}
	odd := panel{Title: "odd", Type: "timeseries"}
	odd.FieldConfig.Defaults.Unit = "furlongs"
	two := panel{Title: "two numbers", Type: "stat"}
	two.Targets = make([]struct{ Expr, LegendFormat string }, 2)
	for _, p := range []panel{{Title: "other", Type: "table"}, odd, two} {
		_, err := page([]panel{p}, frame, time.Unix(1, 0), time.Minute)
		testutil.WantError(t, err, p.Title)
	}
}

// variable is one of Grafana's.
var variable = regexp.MustCompile(`\$\w+`)

// TestDashboardsParse has promtool read every expression of every dashboard.
func TestDashboardsParse(t *testing.T) {
	for _, file := range []string{dashboardSample, "../../fleet/conf/zones-dashboard.json"} {
		var d any
		if err := json.Unmarshal([]byte(testutil.ReadFile(t, file)), &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var rules []object
		for i, expr := range expressions(d) {
			rules = append(rules, object{"record": fmt.Sprintf("query_%d", i), "expr": variable.ReplaceAllString(filled(expr), "all")})
		}
		text, err := yaml.Marshal(object{"groups": []object{{"name": filepath.Base(file), "rules": rules}}})
		testutil.Must(t, err)
		asRules := filepath.Join(t.TempDir(), "rules.yaml")
		testutil.Must(t, os.WriteFile(asRules, text, 0o600))
		out, err := exec.CommandContext(t.Context(), "promtool", "check", "rules", asRules).CombinedOutput()
		if err != nil || !strings.Contains(string(out), fmt.Sprintf("%d rules found", len(rules))) || len(rules) < 5 {
			t.Errorf("%s, %d expressions: %v\n%s", file, len(rules), err, out)
		}
	}
}
