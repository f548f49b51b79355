package monitoring

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// ofAnother are metrics that a node like this one never has, and whose they are. Their names are in the sources at least.
var ofAnother = map[string]string{
	"neardns_iptables_runs_total":        "the iptables back end",
	"neardns_iptables_run_seconds_total": "the iptables back end",
	"neardns_hosts_services":             "the role hosts",
	"neardns_hosts_file_ok":              "the role hosts",
	"neardns_hosts_fighting":             "the role hosts",
}

// legendLabel is a label that a legend shows.
var legendLabel = regexp.MustCompile(`\{\{(\w+)\}\}`)

const dashboardSample = "../../conf/grafana-dashboard.json"

// panel is what the tests read of a dashboard's panel.
type panel struct {
	Title, Type, Description string
	GridPos                  struct{ X, Y, W, H int }
	FieldConfig              struct {
		Defaults struct {
			Unit       string
			Min, Max   *float64
			Thresholds struct {
				Steps []step
			}
			Custom struct{ Stacking struct{ Mode string } }
		}
	}
	Targets []struct{ Expr, LegendFormat string }
}

// step is the colour of a number from a value on; the first step of a panel has none.
type step struct {
	Color string   `json:"color"`
	Value *float64 `json:"value"`
}

// panels returns all of the dashboard's, rows among them.
func panels(t *testing.T) []panel {
	t.Helper()
	var d struct{ Panels []panel }
	testutil.Must(t, json.Unmarshal([]byte(testutil.ReadFile(t, dashboardSample)), &d))
	return d.Panels
}

// dashboard returns the panels that show something.
func dashboard(t *testing.T) []panel {
	t.Helper()
	return slices.DeleteFunc(panels(t), func(p panel) bool { return p.Type == "row" })
}

// filled is an expression as Grafana fills it in, with all nodes chosen.
func filled(expr string) string {
	return strings.NewReplacer("$node", ".*", "$__rate_interval", "15s").Replace(expr)
}

// ofAnotherOnly names the component of a panel that has nothing to show on a node like this one; "" for all others.
func (p panel) ofAnotherOnly() (whose string) {
	for _, target := range p.Targets {
		if whose = ofAnother[metricName.FindString(target.Expr)]; whose == "" {
			return ""
		}
	}
	return whose
}

// wantDashboard runs every query of the dashboard.
func (s *stand) wantDashboard() {
	s.t.Helper()
	queries := 0
	for _, p := range dashboard(s.t) {
		if len(p.Targets) == 0 || p.Description == "" {
			s.t.Errorf("panel %q has %d queries, description %q", p.Title, len(p.Targets), p.Description)
		}
		for _, target := range p.Targets {
			expr := filled(target.Expr)
			if strings.Contains(expr, "$") {
				s.t.Errorf("panel %q: a variable that the test does not know: %s", p.Title, expr)
			}
			queries++
			if metric := metricName.FindString(expr); ofAnother[metric] != "" {
				if result, err := s.query(expr); err != nil || len(result) > 0 {
					s.t.Errorf("panel %q is of %s, but has %v (%v): %s", p.Title, ofAnother[metric], result, err, expr)
				}
				continue
			}
			testutil.Eventually(s.t, func() error {
				if err := s.hasData(expr, legendLabel.FindAllStringSubmatch(target.LegendFormat, -1)...); err != nil {
					return fmt.Errorf("panel %q: %w", p.Title, err)
				}
				return nil
			})
		}
	}
	if queries < 50 {
		s.t.Errorf("%d queries", queries)
	}
}

// TestDashboardIsWhole checks what Grafana would put up with, and people would not: panels over each other or out of the frame, and
// a data source that only the author has.
func TestDashboardIsWhole(t *testing.T) {
	type source struct{ Type, UID string }
	var d struct {
		UID, Title string
		Panels     []struct {
			ID         int
			Title      string
			Type       string
			GridPos    struct{ H, W, X, Y int }
			Datasource *source
			Targets    []struct {
				RefID      string
				Datasource *source
			}
		}
		Templating struct{ List []struct{ Name, Type string } }
	}
	testutil.Must(t, json.Unmarshal([]byte(testutil.ReadFile(t, dashboardSample)), &d))
	if d.UID == "" || d.Title == "" || len(d.Templating.List) != 2 || d.Templating.List[0].Name != "datasource" {
		t.Errorf("uid %q, title %q, variables %v", d.UID, d.Title, d.Templating.List)
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	variable := source{Type: "prometheus", UID: "${datasource}"}
	for _, p := range d.Panels {
		if p.Title == "" || ids[p.ID] {
			t.Errorf("panel %d %q: no title, or an id twice", p.ID, p.Title)
		}
		ids[p.ID] = true
		if g := p.GridPos; g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("panel %q at %+v", p.Title, g)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("panels %q and %q are over each other", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Datasource == nil || *p.Datasource != variable {
			t.Errorf("panel %q: data source %v", p.Title, p.Datasource)
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if target.Datasource == nil || *target.Datasource != variable || refs[target.RefID] {
				t.Errorf("panel %q, query %s: data source %v", p.Title, target.RefID, target.Datasource)
			}
			refs[target.RefID] = true
		}
	}
}
