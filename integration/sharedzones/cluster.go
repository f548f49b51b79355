package main

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// stand is one server and the clusters that share its zone.
type stand struct {
	t      testutil.TB
	server *zoneserver.Server
	config zoneserver.Config
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
	config := zoneserver.Config{Clusters: ids, Hosts: hosts}
	return &stand{t: t, server: zoneserver.Start(t, kind, config), config: config, folder: folder, binary: binary}
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
	gateway bool // the records' hosts are those of a Gateway's listeners, and a DNSPolicy publishes them
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
	r, err := newRelay(s.server.Addr(), s.server.Zone(), pause)
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

// read has the running cluster read its file again. A signal ends a process that has only been started, until Go's own start is over, so
// read waits for the first line.
func (c *cluster) read() {
	c.stand.t.Helper()
	testutil.Eventually(c.stand.t, func() error {
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
