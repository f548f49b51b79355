package commands

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/agent/internal/overview"
	"github.com/neardns/neardns/agent/kubectl/internal/cluster"
	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

func TestCommandLine(t *testing.T) {
	for line, want := range map[string]struct {
		code        int
		stdout, err string
	}{
		"":                              {cli.Config, "", "kubectl neardns [command]"},
		"--help":                        {cli.Good, "kubectl neardns [command]", ""},
		"help doctor":                   {cli.Good, "kubectl neardns doctor [flags]", ""},
		"top -o wide":                   {cli.Config, "", "flag: write json, yaml"},
		"top --sort-by latency":         {cli.Config, "", "--sort-by latency: queries, misses, nxdomain, failures"},
		"query":                         {cli.Config, "", "write one name"},
		"query a b":                     {cli.Config, "", "write one name"},
		"query a --pod web":             {cli.Config, "", "--pod web: write namespace/name"},
		"status --kubeconfig /none/x":   {cli.Config, "", "kubectl neardns status: read the kubeconfig: stat /none/x"},
		"status --request-timeout soon": {cli.Config, "", "is no duration"},
		"version":                       {cli.Good, "kubectl-neardns v1", ""},
	} {
		var stdout, stderr bytes.Buffer
		code := Run(t.Context(), "v1", strings.Fields(line), &stdout, &stderr)
		if code != want.code || !strings.Contains(stdout.String(), want.stdout) || !strings.Contains(stderr.String(), want.err) {
			t.Errorf("%q: exit code %d, want %d; standard output %q, standard error %q, want %q", line, code, want.code, stdout.String(),
				stderr.String(), want.err)
		}
	}
}

// inMemory answers a client's requests by a handler, without a network.
type inMemory struct{ http.Handler }

func (h inMemory) RoundTrip(r *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return rec.Result(), nil
}

func (f *fakeAPI) cluster(t *testing.T) *cluster.Cluster {
	t.Helper()
	o := new(cluster.Options)
	o.Bind(pflag.NewFlagSet("", pflag.ContinueOnError)) // for its defaults
	c, err := o.Connect(&rest.Config{Host: "http://api", Transport: inMemory{f}}, io.Discard)
	testutil.Must(t, err)
	return c
}

// manyNodes are 500 nodes of all kinds, with the number of each verdict.
func manyNodes() (f *fakeAPI, want map[string]int) {
	f, want = &fakeAPI{}, map[string]int{}
	for i := range 500 {
		n := fakeNode{name: fmt.Sprintf("node-%03d", i), phase: corev1.PodRunning, status: healthy()}
		verdict := serving
		switch i % 10 {
		case 0:
			n.hangs, verdict = true, noAnswer
		case 1:
			n.code, verdict = http.StatusServiceUnavailable, noAnswer
		case 2:
			n.phase, verdict = "", noAgent
		case 3:
			n.phase, n.excluded, verdict = "", true, excluded
		case 4:
			n.phase, verdict = corev1.PodPending, noAnswer
		case 5:
			n.status.Serving, verdict = false, degraded
		}
		want[verdict]++
		f.nodes = append(f.nodes, n)
	}
	return f, want
}

// deafNodes are 500 nodes of which none answers.
func deafNodes() (f *fakeAPI, want map[string]int) {
	f = &fakeAPI{}
	for i := range 500 {
		f.nodes = append(f.nodes, fakeNode{name: fmt.Sprintf("node-%03d", i), phase: corev1.PodRunning, hangs: true})
	}
	return f, map[string]int{noAnswer: 500}
}

// TestManyNodes: all nodes are listed within 10 s of their timeouts, also if no agent answers.
func TestManyNodes(t *testing.T) {
	for name, make := range map[string]func() (*fakeAPI, map[string]int){"of all kinds": manyNodes, "none answers": deafNodes} {
		t.Run(name, func(t *testing.T) {
			f, want := make()
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				nodes, err := readings(t.Context(), f.cluster(t), 0)
				testutil.Must(t, err)
				got := map[string]int{}
				for _, r := range nodes {
					got[r.Verdict]++
					if (r.Status == nil) != (r.Reason != "") {
						t.Errorf("%s: %s has status %v and reason %q", r.Node, r.Verdict, r.Status, r.Reason)
					}
				}
				testutil.Equal(t, "verdicts", want, got)
				if took := time.Since(begun); took > 10*time.Second || f.most > cluster.MaxParallel {
					t.Errorf("it took %v, with %d requests at the same time", took, f.most)
				}
				if !slices.IsSortedFunc(nodes, func(a, b reading) int { return strings.Compare(a.Node, b.Node) }) {
					t.Error("the rows are not in the order of the nodes' names")
				}
			})
		})
	}
}

func small() *fakeAPI {
	ill := healthy()
	ill.Serving, ill.Leases[1].Held, ill.Leases[1].Reason = false, false, "no answer within 40ms"
	ill.Faults = map[string]string{"rules": "iptables-nft: exit status 4, which is an error whose text is longer than a row"}
	past := healthy()
	past.LastFault = &overview.Fault{Time: now.Add(-3 * time.Hour), Part: "link", What: "no such\ndevice"}
	return &fakeAPI{nodes: []fakeNode{
		{name: "a", phase: corev1.PodRunning, status: past}, {name: "b", phase: corev1.PodRunning, status: ill},
		{name: "c", phase: corev1.PodRunning, code: http.StatusBadGateway}, {name: "d"}, {name: "e", excluded: true},
		{name: "f", phase: corev1.PodRunning, status: overview.Node{Version: "v1.0.0", Serving: true, Arranged: "transparent",
			Started: started, Time: now}},
	}}
}

func TestStatus(t *testing.T) {
	code, out, _ := small().command(t, "status")
	golden.Check(t, "status.txt", out)
	testutil.Equal(t, "exit code", cli.Degraded, code)
	code, out, _ = small().command(t, "status --node a -o wide")
	golden.Check(t, "status-wide.txt", out)
	testutil.Equal(t, "exit code of -o wide", cli.Good, code)
	_, out, _ = small().command(t, "status -o json")
	var read struct{ Nodes []reading }
	if err := json.Unmarshal([]byte(out), &read); err != nil || len(read.Nodes) != 6 || read.Nodes[0].Status.Counts.Queries != 10000 {
		t.Errorf("-o json: %v\n%s", err, out)
	}
	small().wants(t, "status --node x", cli.Failed, "", `there is no Linux node "x"`)
	f := small()
	f.forbidden = "/api/v1/nodes"
	if code, out, errs := f.command(t, "status"); code != cli.Degraded || strings.Count(out, "\n") != 5 ||
		!strings.Contains(errs, "nodes without an agent are not listed: may not read") {
		t.Errorf("without the right to list nodes: %d %s\n%s", code, errs, out)
	}
	f.forbidden = "/api/v1/namespaces"
	f.wants(t, "status", cli.Failed, "", "list the agents' pods: may not read")
}

// With --interval the counts are those between two readings.
func TestInterval(t *testing.T) {
	f := small()
	synctest.Test(t, func(t *testing.T) {
		nodes, err := readings(t.Context(), f.cluster(t), 10*time.Second)
		testutil.Must(t, err)
		if r := nodes[0]; r.seconds() != 10 || r.Status.Counts != (overview.Counts{Queries: 1000}) || r.Status.Pods[0].Counts.Queries != 0 {
			t.Errorf("%v s, %+v", r.seconds(), r.Status)
		}
	})
	other := healthy()
	other.Instance = "another agent"
	r := reading{Status: &other, From: started}
	before := healthy()
	if r.countFrom(reading{Status: &before}); r.Status.Counts.Queries != 10000 || r.From != started {
		t.Errorf("another agent counts from its own start, not %v: %+v", r.From, r.Status.Counts)
	}
}

func TestTop(t *testing.T) {
	code, out, errs := small().command(t, "top --limit 3")
	golden.Check(t, "top.txt", out)
	if code != cli.Degraded || !strings.Contains(errs, "node c is not counted: 502") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	_, out, _ = small().command(t, "top --namespaces")
	golden.Check(t, "top-namespaces.txt", out)
	for by, first := range map[string]string{"misses": "shop", "nxdomain": "pay", "failures": "shop"} {
		if _, out, _ = small().command(t, "top --namespaces --sort-by "+by); !strings.Contains(out, "FAILURES\n"+first+" ") {
			t.Errorf("--sort-by %s: %s is not first:\n%s", by, first, out)
		}
	}
	// Without listen.namespaces the endpoint names no pod, and the agent's own command does.
	n := fakeNode{name: "a", phase: corev1.PodRunning, status: healthy()}
	n.status.Pods = nil
	views, err := json.Marshal([]inspect.PodView{{Pod: "shop/web"}})
	testutil.Must(t, err)
	n.pods = strings.Replace(string(views), `"pod":"shop/web"`, `"pod":"shop/web","counts":{"queries":2000,"hits":500}`, 1)
	f := &fakeAPI{nodes: []fakeNode{n}}
	f.wants(t, "top", cli.Good, "shop/web   a      2.0         2000      25.0%", "")
	f = &fakeAPI{nodes: []fakeNode{n}}
	f.nodes[0].pods = ""
	f.wants(t, "top", cli.Degraded, "", "node a is not counted: it names no pods at /v1/status") // without pods/exec
}

// restricting is a policy of a namespace that allows kube-dns alone.
func restricting(t *testing.T, namespace string) (p networkingv1.NetworkPolicy) {
	t.Helper()
	const text = "spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {}}], ports: [{protocol: UDP, port: 53}]}]}"
	testutil.Must(t, yaml.UnmarshalStrict([]byte(text), &p))
	p.Namespace, p.Name = namespace, "restrict"
	return p
}

func TestDoctor(t *testing.T) {
	report := func(findings ...inspect.Finding) string {
		text, err := json.Marshal(inspect.Report{Findings: findings, Good: len(findings) == 1})
		testutil.Must(t, err)
		return string(text)
	}
	dead := inspect.Finding{Check: "upstreams", State: inspect.Fail, What: "192.0.2.1 does not answer", Do: "check that server"}
	odd := inspect.Finding{Check: "kube-proxy", State: inspect.Warn, What: "its rules are nftables"}
	good := inspect.Finding{Check: "link", State: inspect.OK, What: "neardns0 is up"}
	f := &fakeAPI{policies: []networkingv1.NetworkPolicy{restricting(t, "shop"), restricting(t, "pay")}, nodes: []fakeNode{
		{name: "a", phase: corev1.PodRunning, status: healthy(), doctor: report(good)},
		{name: "b", phase: corev1.PodRunning, status: healthy(), doctor: report(good, dead, odd)},
		{name: "c", phase: corev1.PodRunning, status: healthy(), doctor: report(good, dead)},
		{name: "d", phase: corev1.PodRunning}, {name: "e"}, {name: "f", excluded: true},
	}}
	code, out, errs := f.command(t, "doctor")
	golden.Check(t, "doctor.txt", out)
	if code != cli.Degraded || errs != "" {
		t.Errorf("exit code %d, %s", code, errs)
	}
	if !slices.Contains(f.commands, "a: /bin/neardns-agent doctor -o json") {
		t.Errorf("commands: %q", f.commands)
	}
	f.forbidden, f.nodes = "/apis", f.nodes[:1]
	f.wants(t, "doctor", cli.Good, "1 of 1 nodes are good\n", "network policies are not examined") // no right to list them
	f.forbidden, f.nodes[0].status.Steering = "", nil                                              // as with arrangement: transparent
	if code, out, errs := f.command(t, "doctor"); code != cli.Good || out != "1 of 1 nodes are good\n" || errs != "" {
		t.Errorf("without steering addresses: %d %s\n%s", code, errs, out)
	}
}

func TestQuery(t *testing.T) {
	const answer = "db.shop. A\nin the cache before: hit, 12 s left\x1b\n"
	f := &fakeAPI{nodes: []fakeNode{{name: "a", phase: corev1.PodRunning, query: answer}, {name: "b", phase: corev1.PodRunning}}}
	code, out, errs := f.command(t, "query db.shop --pod shop/web -o yaml")
	if want := strings.ReplaceAll(answer, "\x1b", "?"); out != want || errs != "on node a:\n" || code != cli.Good {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
	testutil.Equal(t, "commands", []string{"a: /bin/neardns-agent query -o yaml --type A --pod shop/web -- db.shop"}, f.commands)
	f.wants(t, "query db.shop --node b", cli.Failed, "", "node b: no agent runs on this node")
}

func TestBundle(t *testing.T) {
	f := &fakeAPI{nodes: []fakeNode{{name: "a", phase: corev1.PodRunning, doctor: "an archive"}, {name: "b"}, {name: "c", excluded: true}}}
	file := filepath.Join(t.TempDir(), "out.tar")
	code, out, errs := f.command(t, "bundle -f "+file)
	if code != cli.Degraded || !strings.Contains(out, "1 of 2 nodes") || !strings.Contains(errs, "MISSING.txt") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	packed, err := os.Open(file)
	testutil.Must(t, err)
	defer packed.Close()
	want := map[string]string{"neardns-cluster/a.tar.gz": "an archive", "neardns-cluster/a.log": "level=INFO msg=ready\ntoken (left out)\n",
		"neardns-cluster/MISSING.txt": "b: no agent runs on it\n"}
	testutil.Equal(t, "archive", want, testutil.Untar(t, packed, ""))
	f.wants(t, "bundle -f "+file, cli.Config, "", "it exists")
}
