//go:build picture

package monitoring

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/integration/faults/load"
	"github.com/neardns/neardns/pkg/testutil"
)

// What the picture shows: two minutes of load but for the first seconds, in which rates only begin. In the middle a firewall keeps pods
// from the agent.
const (
	loadFor     = 2 * time.Minute
	shown       = loadFor - 15*time.Second
	faultAfter  = 55 * time.Second
	faultFor    = 15 * time.Second
	mostBytes   = 400 << 10
	browser     = "chromium-headless-shell"
	pageOnStand = "http://127.0.0.1:9090/consoles/dashboard.html"
)

// TestPicture draws docs/pictures/dashboard.png: the committed dashboard over a real agent under load, by Prometheus's own graphs in a
// browser. `make dashboard-picture` runs it. A panel without data fails it.
func TestPicture(t *testing.T) {
	file := os.Getenv("NEARDNS_PICTURE")
	if file == "" {
		t.Fatal("NEARDNS_PICTURE names no file to draw")
	}
	s := newStand(t)
	s.prometheus(oneJob(t), "--web.console.templates="+s.path("consoles"))
	s.ask("a.default.svc.cluster.local.", "b.default.svc.cluster.local.", "www.example.org.")
	begun := time.Now()
	loaded := s.load()
	pass(time.Until(begun.Add(faultAfter)))
	s.Host.Run("nft", "add table inet wall; add chain inet wall input { type filter hook input priority 0; }; add rule inet wall input meta l4proto { tcp, udp } th dport 53 drop")
	pass(faultFor)
	s.Host.Run("nft", "delete table inet wall")
	pass(time.Until(begun.Add(loadFor + time.Second)))
	s.wantDashboard()
	end := begun.Add(loadFor)
	text, err := page(panels(t), testutil.ReadFile(t, "testdata/dashboard.html"), end, shown)
	testutil.Must(t, err)
	s.write("consoles/dashboard.html", text)
	s.wantDrawn(end)
	s.browse("--screenshot=" + s.path("dashboard.png"))
	s.keep(file)
	t.Log(<-loaded)
}

// oneJob is the configuration without the second job, by which each number would be there twice.
func oneJob(t *testing.T) string {
	t.Helper()
	var conf object
	testutil.Must(t, yaml.Unmarshal([]byte(config(t)), &conf))
	conf["scrape_configs"] = conf["scrape_configs"].([]any)[:1]
	text, err := yaml.Marshal(conf)
	testutil.Must(t, err)
	return string(text)
}

// load has the pod send 400 queries per second over UDP and 20 over TCP for two minutes, and reports what became of them.
func (s *stand) load() <-chan string {
	s.t.Helper()
	stream := load.Stream{Name: "udp", Way: load.UDP, Server: s.Service(true), Zone: "shop.svc.cluster.local", Label: "n", Names: 200, Rate: 400, Sockets: 8}
	tcp := stream
	tcp.Name, tcp.Way, tcp.Rate = "tcp", load.OneShot, 20
	plan, err := json.Marshal(load.Plan{Streams: []load.Stream{stream, tcp}, Duration: loadFor / 2})
	testutil.Must(s.t, err)
	out := make(chan string, 1)
	go func() {
		var told []string
		for range 2 { // a plan is no longer than a minute
			cmd := exec.Command("../../bin/tools/faults", "load")
			var result bytes.Buffer
			cmd.Stdin, cmd.Stdout = bytes.NewReader(plan), &result
			err := s.pod.StartCmd(cmd).Wait()
			_, books, _ := strings.Cut(result.String(), "\n") // the line that reports that it begins
			var r load.Result
			if err = errors.Join(err, json.Unmarshal([]byte(books), &r)); err != nil {
				told = append(told, err.Error())
			}
			for _, b := range r.Books {
				told = append(told, fmt.Sprintf("%s: %s", b.Stream.Name, b.Line()))
			}
		}
		out <- strings.Join(told, "\n")
	}()
	return out
}

// pass lets time go by, which the picture is of.
func pass(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}

// browse opens the page on the node and returns what the browser prints. The page is ours, so that root needs no sandbox for it.
func (s *stand) browse(what string) string {
	s.t.Helper()
	height := 0
	for _, p := range panels(s.t) {
		height = max(height, p.GridPos.Y+p.GridPos.H)
	}
	// 19 pixels and a gap of 3 for each unit of the grid, as the page has it. Time runs ahead as long as nothing is loaded.
	return s.Host.Run("env", "HOME="+s.dir, browser, "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--user-data-dir="+s.path("browser"),
		fmt.Sprintf("--window-size=1280,%d", 22*height+16), "--virtual-time-budget=20000", what, pageOnStand)
}

// wantDrawn checks that the page has a graph or a number for each panel, and that each query gave data for the time shown.
func (s *stand) wantDrawn(end time.Time) {
	s.t.Helper()
	graphs, numbers := 0, 0
	for _, p := range panels(s.t) {
		d, err := p.draw()
		testutil.Must(s.t, err)
		switch d.Kind {
		case "stat":
			numbers++
		case "graph":
			graphs++
		default:
			continue
		}
		for _, expr := range d.Exprs {
			if ofAnother[metricName.FindString(expr)] != "" {
				continue
			}
			var data struct{ Result []object }
			values := url.Values{"query": {expr}, "start": {unix(end.Add(-shown))}, "end": {unix(end)}, "step": {"1"}}
			if err := s.api("query_range", values, &data); err != nil || len(data.Result) == 0 {
				s.t.Errorf("panel %q shows nothing (%v): %s", p.Title, err, expr)
			}
		}
	}
	dom := s.browse("--dump-dom")
	_, body, _ := strings.Cut(dom, "<body>")
	if got := len(graphOnPage.FindAllString(body, -1)); got != graphs {
		s.t.Errorf("the page has %d graphs, want %d", got, graphs)
	}
	if got := strings.Count(body, `<div class="number"`); got != numbers {
		s.t.Errorf("the page has %d numbers, want %d", got, numbers)
	}
	for _, bad := range []string{`class="prom_graph_error"`, `class="prom_graph_loading"`, ">NaN"} {
		if strings.Contains(body, bad) {
			s.t.Errorf("the page has %s", bad)
		}
	}
	if s.t.Failed() {
		s.t.Fatal(dom)
	}
}

// graphOnPage is where Prometheus's script has drawn one.
var graphOnPage = regexp.MustCompile(`class="rickshaw_graph"[^>]*><svg`)

func unix(t time.Time) string { return fmt.Sprintf("%.3f", float64(t.UnixMilli())/1000) }

// keep stores the picture, as small as PNG gets it.
func (s *stand) keep(file string) {
	s.t.Helper()
	f, err := os.Open(s.path("dashboard.png"))
	testutil.Must(s.t, err)
	defer f.Close()
	picture, err := png.Decode(f)
	testutil.Must(s.t, err)
	var out bytes.Buffer
	testutil.Must(s.t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, picture))
	if out.Len() > mostBytes {
		s.t.Errorf("the picture has %d bytes, more than %d", out.Len(), mostBytes)
	}
	testutil.Must(s.t, os.WriteFile(file, out.Bytes(), 0o644))
	s.t.Logf("%s: %v, %d bytes", file, picture.Bounds().Size(), out.Len())
}
