package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// stand is one server and the clusters that share its zone.
type stand struct {
	t      testutil.TB
	server *zoneserver.Server
	folder string // of the clusters' files
	binary string // neardns-controller
	all    []*cluster
}

// newStand starts a server with a key for each of the clusters.
func newStand(t testutil.TB, kind zoneserver.Kind, binary string, ids []string, hosts ...string) *stand {
	t.Helper()
	folder, err := os.MkdirTemp("", "shared-zones-")
	if err != nil {
		t.Fatalf("make a folder: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return &stand{t: t, server: zoneserver.Start(t, kind, zoneserver.Config{Clusters: ids, Hosts: hosts}), folder: folder, binary: binary}
}

// name gives the id of cluster i, as ClusterID makes them: eight of a-z0-9.
func name(i int) string { return fmt.Sprintf("c%07d", i) }

func clusterIDs(n int) (out []string) {
	for i := range n {
		out = append(out, name(i))
	}
	return out
}

// host makes a name of the zone absolute.
func (s *stand) host(label string) string { return label + "." + s.server.Zone() }

// record is one DNSRecord of a cluster's file.
type record struct {
	Label      string // relative to the zone
	Addresses  []netip.Addr
	Balanced   bool
	Geo        string
	DefaultGeo bool
	Weight     int
	TTL        int
}

// clusterOptions are what a cluster is set up with. The zero value has its own key and a heartbeat that is not due during a test.
type clusterOptions struct {
	Key       zoneserver.Key // not set: the cluster's own
	Heartbeat int            // seconds; 0: 3600
	Removal   bool
	Instance  string // "": of the cluster's id
	Poll      string // how often it looks at the zone; "": 5s
}

// cluster is one process of `neardns-controller zones publish`, with a network of its own to the server.
type cluster struct {
	stand   *stand
	id      string
	options clusterOptions
	file    string
	relay   *relay
	process *testutil.Process
	records []record
	status  statusLog
	printed int // lines before the process was started
}

// cluster makes a cluster that does not run yet.
func (s *stand) cluster(id string, o clusterOptions) *cluster {
	s.t.Helper()
	if o.Key.Name == "" {
		o.Key = s.server.Key(id)
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = 3600
	}
	if o.Instance == "" {
		o.Instance = "of" + id
	}
	r, err := newRelay(s.server.Addr(), s.server.Zone())
	if err != nil {
		s.t.Fatalf("make the network of %s: %v", id, err)
	}
	s.t.Cleanup(r.close)
	c := &cluster{stand: s, id: id, options: o, file: filepath.Join(s.folder, fmt.Sprintf("%s-%d.yaml", id, len(s.all))), relay: r}
	s.all = append(s.all, c)
	return c
}

// write puts what the cluster publishes into its file, in one step.
func (c *cluster) write(records ...record) {
	c.stand.t.Helper()
	c.records = records
	if err := os.WriteFile(c.file+".new", []byte(c.text()), 0o600); err != nil {
		c.stand.t.Fatalf("write %s: %v", c.file, err)
	}
	if err := os.Rename(c.file+".new", c.file); err != nil {
		c.stand.t.Fatalf("write %s: %v", c.file, err)
	}
}

// read has the running cluster read its file again. A process that has only been started would end by the signal: its first line tells
// that it is ready.
func (c *cluster) read() {
	c.stand.t.Helper()
	testutil.Eventually(c.stand.t, patience, func() error {
		if c.status.count() == c.printed {
			return fmt.Errorf("%s has printed nothing since its start\n%s", c.id, c.process.Output())
		}
		return nil
	})
	c.process.Signal(syscall.SIGHUP)
}

// publish changes what a running cluster publishes.
func (c *cluster) publish(records ...record) {
	c.stand.t.Helper()
	c.write(records...)
	c.read()
}

// start starts the cluster's process. Where it ran before, it is a restart.
func (c *cluster) start() {
	c.stand.t.Helper()
	cmd := exec.CommandContext(context.Background(), c.stand.binary, "zones", "publish", "--file", c.file, "--cluster-id", c.id,
		"--instance", c.options.Instance, "--prune", "--json", "--poll", cmp.Or(c.options.Poll, "5s"))
	cmd.Stdout = &c.status
	c.printed = c.status.count()
	c.process = testutil.StartHere(c.stand.t, cmd)
}

// said is what the cluster publishes, for the judge.
func (c *cluster) said() (out []said) {
	for _, r := range c.records {
		out = append(out, said{c.id, c.stand.host(r.Label), r.Balanced, strings.ToLower(r.Geo), r.Addresses})
	}
	return out
}

// text is the cluster's file: the same objects as in a cluster.
func (c *cluster) text() string {
	zone := strings.TrimSuffix(c.stand.server.Zone(), ".")
	removal := "Report"
	if c.options.Removal {
		removal = "Remove"
	}
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: v1
kind: Secret
metadata: {name: key, namespace: neardns-zones}
stringData: {name: %q, algorithm: hmac-sha256, secret: %q}
---
apiVersion: neardns.io/v1alpha1
kind: DNSZone
metadata: {name: shared}
spec:
  zone: %s
  primary: %s
  tsig: {secretName: key}
  heartbeatSeconds: %d
  removal: %s
  messagesPerMinute: 60000
  publishers:
  - {namespaces: ["*"], hosts: [%[3]q, "*.%[3]s"], targets: [0.0.0.0/0, "::/0"]}
`, c.options.Key.Name, c.options.Key.Secret, zone, c.relay.addr(), c.options.Heartbeat, removal)
	for _, r := range c.records {
		ttl := r.TTL
		if ttl == 0 {
			ttl = 60
		}
		fmt.Fprintf(&b, "---\napiVersion: neardns.io/v1alpha1\nkind: DNSRecord\nmetadata: {name: %q, namespace: default}\nspec:\n  host: %q\n  ttl: %d\n  addresses: [",
			strings.ReplaceAll(r.Label, "*", "any"), r.Label+"."+zone, ttl)
		for i, a := range r.Addresses {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%q", a)
		}
		b.WriteString("]\n")
		if r.Balanced {
			fmt.Fprintf(&b, "  strategy: LoadBalanced\n  weight: %d\n", r.Weight)
		}
		if r.Geo != "" {
			fmt.Fprintf(&b, "  geo: %q\n  defaultGeo: %v\n", r.Geo, r.DefaultGeo)
		}
	}
	return b.String()
}

// hostStatus is a line that `zones publish --json` prints when the state of a host, or of the zone, changes.
type hostStatus struct {
	Host       string   `json:"host"`
	Zone       string   `json:"zone"`
	Programmed bool     `json:"programmed"`
	Left       bool     `json:"left"`
	Reason     string   `json:"reason"`
	Message    string   `json:"message"`
	Conflict   string   `json:"conflict"`
	Owners     []string `json:"owners"`
	Writes     uint64   `json:"writes"`
}

// statusLog keeps the last line about each host.
type statusLog struct {
	mu   sync.Mutex // guards the fields below
	rest []byte
	last map[string]hostStatus
	n    int // lines
}

// count is how many lines were printed.
func (l *statusLog) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

func (l *statusLog) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, data...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(data), nil
		}
		l.rest = rest
		var s hostStatus
		if json.Unmarshal(line, &s) != nil || s.Host+s.Zone == "" {
			continue
		}
		s.Host += s.Zone
		if l.last == nil {
			l.last = map[string]hostStatus{}
		}
		l.last[s.Host] = s
		l.n++
	}
}

// of is the last line about a host.
func (l *statusLog) of(host string) hostStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last[host]
}

// zoneIs waits until the zone holds exactly what these clusters say, and returns what it differs by when it does not within the time.
func (s *stand) zoneIs(timeout time.Duration, clusters ...*cluster) (took time.Duration, lost, left []string) {
	s.t.Helper()
	var all []said
	for _, c := range clusters {
		all = append(all, c.said()...)
	}
	want := expected(s.server.Zone(), all)
	start := time.Now()
	deadline := start.Add(timeout * testutil.Slowness())
	for {
		zone, err := s.server.Transfer()
		if err == nil {
			if lost, left = differences(want, held(s.server.Zone(), zone)); len(lost)+len(left) == 0 {
				return time.Since(start), nil, nil
			}
		}
		if time.Now().After(deadline) {
			if err != nil {
				lost = append(lost, err.Error())
			}
			return time.Since(start), lost, left
		}
		pause(20 * time.Millisecond)
	}
}

// unsettled tells which clusters are not where their files want them.
func (s *stand) unsettled() string {
	var out []string
	for _, c := range s.all {
		c.status.mu.Lock()
		for _, st := range c.status.last {
			if !st.Programmed && !st.Left {
				out = append(out, fmt.Sprintf("%s: %+v", c.id, st))
			}
		}
		c.status.mu.Unlock()
	}
	return strings.Join(out, "; ")
}

// counted sums the traffic of all clusters.
func (s *stand) counted() (sum traffic) {
	for _, c := range s.all {
		sum = sum.plus(c.relay.counted())
	}
	return sum
}
