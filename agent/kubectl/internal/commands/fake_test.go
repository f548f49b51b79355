package commands

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/neardns/neardns/agent/internal/overview"
	"github.com/neardns/neardns/agent/kubectl/internal/cluster"
	"github.com/neardns/neardns/pkg/testutil"
)

var (
	started = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	now     = started.Add(1000 * time.Second)
)

// fakeNode is a node of a fake cluster, with its agent's answers.
type fakeNode struct {
	name     string
	phase    corev1.PodPhase // "": it has no agent
	excluded bool
	hangs    bool
	code     int // of the endpoint; 0: 200
	status   overview.Node
	// doctor, pods and query are what the commands print; "": the command fails.
	doctor, pods, query string
}

// fakeAPI is an API server with such nodes.
type fakeAPI struct {
	nodes     []fakeNode
	policies  []networkingv1.NetworkPolicy
	forbidden string // a path below which nothing may be read

	mu            sync.Mutex
	running, most int // requests to agents at the same time
	reads         map[string]int
	commands      []string
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	switch parts := strings.Split(strings.Trim(path, "/"), "/"); {
	case f.forbidden != "" && strings.HasPrefix(path, f.forbidden):
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(metav1.Status{Message: "may not read " + f.forbidden})
	case path == "/api/v1/nodes":
		var list metav1.PartialObjectMetadataList
		for _, n := range f.nodes {
			m := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: n.name}}
			if n.excluded {
				m.Labels = map[string]string{cluster.ExcludedLabel: "excluded"}
			}
			if r.FormValue("fieldSelector") == "" || r.FormValue("fieldSelector") == "metadata.name="+n.name {
				list.Items = append(list.Items, m)
			}
		}
		_ = json.NewEncoder(w).Encode(list)
	case path == "/api/v1/namespaces/kube-system/pods":
		_ = json.NewEncoder(w).Encode(f.agents(r.FormValue("fieldSelector")))
	case path == "/api/v1/namespaces/shop/pods/web":
		_ = json.NewEncoder(w).Encode(corev1.Pod{Spec: corev1.PodSpec{NodeName: f.nodes[0].name}})
	case path == "/apis/networking.k8s.io/v1/networkpolicies":
		_ = json.NewEncoder(w).Encode(networkingv1.NetworkPolicyList{Items: f.policies})
	case len(parts) > 6 && parts[4] == "pods":
		name, _, _ := strings.Cut(parts[5], ":")
		for _, n := range f.nodes {
			if "agent-"+n.name == name {
				f.serveAgent(w, r, n, parts[6])
			}
		}
	default:
		http.NotFound(w, r)
	}
}

func (f *fakeAPI) agents(fields string) (list corev1.PodList) {
	for _, n := range f.nodes {
		if n.phase != "" && (fields == "" || fields == "spec.nodeName="+n.name) {
			list.Items = append(list.Items, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent-" + n.name}, Spec: corev1.PodSpec{NodeName: n.name},
				Status: corev1.PodStatus{Phase: n.phase}})
		}
	}
	return list
}

func (f *fakeAPI) serveAgent(w http.ResponseWriter, r *http.Request, n fakeNode, what string) {
	f.mu.Lock()
	f.running++
	f.most = max(f.most, f.running)
	if f.reads == nil {
		f.reads = map[string]int{}
	}
	f.reads[n.name]++
	nth := f.reads[n.name]
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.running--
		f.mu.Unlock()
	}()
	switch {
	case n.hangs:
		<-r.Context().Done()
	case what == "log":
		_, _ = w.Write([]byte("level=INFO msg=ready\nlevel=INFO msg=query name=secret.shop.example.\ntoken: hunter2hunter2\n"))
	case what == "exec":
		f.exec(w, r, n)
	case n.code != 0:
		http.Error(w, "error trying to reach service: dial tcp: connection refused", n.code)
	default:
		s := n.status
		s.Time = s.Time.Add(time.Duration(nth-1) * 10 * time.Second)
		s.Counts.Queries += uint64(nth-1) * 1000
		_ = json.NewEncoder(w).Encode(s)
	}
}

// exec speaks the protocol v5.channel.k8s.io: the first byte of each message is its channel.
func (f *fakeAPI) exec(w http.ResponseWriter, r *http.Request, n fakeNode) {
	command := r.URL.Query()["command"]
	f.mu.Lock()
	f.commands = append(f.commands, n.name+": "+strings.Join(command, " "))
	f.mu.Unlock()
	upgrader := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}, CheckOrigin: func(*http.Request) bool { return true }}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer conn.Close()
	text := map[string]string{"doctor": n.doctor, "pods": n.pods, "query": n.query}[command[1]]
	status := metav1.Status{Status: metav1.StatusSuccess}
	if text == "" {
		_ = conn.WriteMessage(websocket.BinaryMessage, []byte("\x02no agent runs on this node\n"))
		status = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Message: "command terminated with exit code 1",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: "1"}}}}
	}
	_ = conn.WriteMessage(websocket.BinaryMessage, []byte("\x01"+text))
	end, _ := json.Marshal(status)
	_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{3}, end...))
	_ = conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
}

// start serves the API, and returns the kubeconfig that leads there.
func (f *fakeAPI) start(t *testing.T) (kubeconfig string) {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: %q}}]
users: [{name: test, user: {token: abc}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
`, server.URL)
	testutil.Must(t, os.WriteFile(kubeconfig, []byte(text), 0o600))
	return kubeconfig
}

// command runs one command line against the fake.
func (f *fakeAPI) command(t *testing.T, line string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(t.Context(), "v1", append(strings.Fields(line), "--kubeconfig", f.start(t)), &out, &errs)
	return code, out.String(), errs.String()
}

// wants runs one command line, and wants its exit code and parts of what it prints.
func (f *fakeAPI) wants(t *testing.T, line string, code int, stdout, stderr string) {
	t.Helper()
	got, out, errs := f.command(t, line)
	if got != code || !strings.Contains(out, stdout) || !strings.Contains(errs, stderr) {
		t.Errorf("%s: exit code %d, want %d; standard output %q, want %q; standard error %q, want %q", line, got, code, out, stdout, errs, stderr)
	}
}

// healthy returns the report of a healthy node's agent.
func healthy() overview.Node {
	steering := netip.MustParseAddr("169.254.20.11")
	return overview.Node{Version: "v1.0.0", Instance: "abc", Started: started, Time: now, Serving: true,
		Leases:   []overview.Lease{{Address: steering, Protocol: "udp", Held: true}, {Address: steering, Protocol: "tcp", Held: true}},
		Steering: []netip.Addr{steering},
		Counts:   overview.Counts{Queries: 10000, Hits: 9000, Kernel: 4000}, States: map[string]int{"steered": 30, "given-back": 1, "pending": 2},
		Pods: []overview.Pod{{Pod: "shop/web", State: "steered",
			Counts: overview.Counts{Queries: 6000, Hits: 5000, Kernel: 3000, NXDomain: 100, Failures: 7}},
			{Pod: "pay/api", State: "steered", Counts: overview.Counts{Queries: 4000, Hits: 4000, Kernel: 1000, NXDomain: 3000}}}}
}
