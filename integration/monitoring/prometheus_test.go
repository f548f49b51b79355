package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/url"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/pkg/testutil"
)

const (
	scrapeSample = "../../conf/prometheus.yaml"
	alertsSample = "../../conf/alerts.yaml"
	nodeName     = "worker-1"
)

// object is a piece of YAML or JSON of which only a part matters.
type object = map[string]any

func readYAML(t *testing.T, file string) (out object) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(testutil.ReadFile(t, file)), &out); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return out
}

// discovered is what Kubernetes discovery reports about the containers of one of our pods: none lists ports.
func discovered(ip string) []any {
	var out []any
	for _, container := range []string{"install", "agent", "watch"} {
		out = append(out, object{"targets": []string{ip}, "labels": object{
			"__meta_kubernetes_namespace": "kube-system", "__meta_kubernetes_pod_name": "neardns-x7k2p", "__meta_kubernetes_pod_node_name": nodeName,
			"__meta_kubernetes_pod_ip": ip, "__meta_kubernetes_pod_container_name": container, "__meta_kubernetes_pod_label_app_kubernetes_io_name": "neardns",
		}})
	}
	return out
}

// config is the sample, with what discovery would find on this node in place of the discovery (which Debian's Prometheus lacks), and
// the same once more by IPv6.
func config(t *testing.T) string {
	t.Helper()
	conf := readYAML(t, scrapeSample)
	jobs, ok := conf["scrape_configs"].([]any)
	if !ok || len(jobs) != 1 {
		t.Fatalf("%s: scrape_configs: %v", scrapeSample, conf["scrape_configs"])
	}
	job := jobs[0].(object)
	second := maps.Clone(job)
	second["job_name"] = "by-ipv6"
	for _, j := range []struct {
		job object
		ip  string
	}{{job, "127.0.0.1"}, {second, "::1"}} {
		if j.job["kubernetes_sd_configs"] == nil {
			t.Fatalf("%s discovers nothing", scrapeSample)
		}
		delete(j.job, "kubernetes_sd_configs")
		j.job["static_configs"] = discovered(j.ip)
	}
	alerts, err := filepath.Abs(alertsSample)
	testutil.Must(t, err)
	conf["scrape_configs"], conf["rule_files"] = []any{job, second}, []string{alerts}
	conf["global"] = object{"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
	text, err := yaml.Marshal(conf)
	testutil.Must(t, err)
	return string(text)
}

// prometheus starts one on the node's loopback.
func (s *stand) prometheus(config string, args ...string) {
	s.t.Helper()
	s.write("prometheus.yml", config)
	p := s.Host.Start(append([]string{"prometheus", "--config.file=" + s.path("prometheus.yml"), "--storage.tsdb.path=" + s.path("tsdb"),
		"--web.listen-address=127.0.0.1:9090", "--log.level=warn"}, args...)...)
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("Prometheus's log:\n%s", p.Output())
		}
	})
	testutil.Eventually(s.t, func() error { return s.api("targets", nil, &object{}) })
}

// api queries Prometheus.
func (s *stand) api(path string, values url.Values, data any) error {
	page, err := s.Host.Get("http://127.0.0.1:9090/api/v1/" + path + "?" + values.Encode())
	if err != nil {
		return err
	}
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.Unmarshal([]byte(page), &answer); err != nil {
		return err
	}
	return testutil.ErrorIf(answer.Status != "success", "%s", answer.Error)
}

// sample is one series of an answer.
type sample struct {
	Metric map[string]string `json:"metric"`
	Value  [2]any            `json:"value"`
}

// query returns what an expression gives now.
func (s *stand) query(expr string) ([]sample, error) {
	var data struct {
		ResultType string   `json:"resultType"`
		Result     []sample `json:"result"`
	}
	if err := s.api("query", url.Values{"query": {expr}}, &data); err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	return data.Result, nil
}

// hasData fails where an expression gives nothing, what is no number, or lacks a label (each the second of its match).
func (s *stand) hasData(expr string, labels ...[]string) error {
	result, err := s.query(expr)
	if err != nil {
		return err
	}
	if len(result) == 0 {
		return fmt.Errorf("no data: %s", expr)
	}
	for _, r := range result {
		text, _ := r.Value[1].(string)
		if v, err := strconv.ParseFloat(text, 64); err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("%s gives %v for %v", expr, r.Value[1], r.Metric)
		}
		for _, l := range labels {
			if r.Metric[l[1]] == "" {
				return fmt.Errorf("%s gives no label %s: %v", expr, l[1], r.Metric)
			}
		}
	}
	return nil
}

// ask has the pod send queries until the test ends: names that are known and new ones, of the cluster and outside, over both protocols.
func (s *stand) ask(questions ...string) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	s.t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
			name, network := questions[i%len(questions)], "udp"
			if i%5 == 0 {
				network = "tcp"
			}
			if i%4 == 0 {
				name = fmt.Sprintf("new-%d.%s", i, name)
			}
			// Whether this one is answered is another test's matter: some of them fall into a fault.
			_, _ = testutil.Ask(s.pod.NetNS, s.Service(true), name, 1+uint16(i%2)*27, network, testutil.AskOptions{Timeout: 300 * time.Millisecond})
		}
	}()
}
