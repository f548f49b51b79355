package pods

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/attached"
	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// An adopted pod has the file that ADD would have written, except that its paths are untried.
func TestAdopted(t *testing.T) {
	pod := func(change func(*attached.Pod)) attached.Pod {
		p := attached.Pod{File: "pods-c1-eth0", Network: "pods", ContainerID: "c1", IfName: "eth0", NetNS: "/run/netns/a", Namespace: "shop", Name: "cart",
			UID: "7c1f", Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.7")}, Annotations: map[string]string{}}
		if change != nil {
			change(&p)
		}
		return p
	}
	own := resolvconf.Settings{Nameservers: []string{"10.96.0.10"}, Searches: []string{"a.b"}, Options: []string{"ndots:5"}}
	whole := podfile.File{ContainerID: "c1", IfName: "eth0", Network: "pods", NetNS: "/run/netns/a", NetNSInode: 7, PodName: "cart", PodNamespace: "shop", PodUID: "7c1f",
		Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.7")}, Backend: "b", Adopted: podfile.ByCache, DNS: &podfile.DNS{State: podfile.AsGiven, Settings: own}}
	for name, c := range map[string]struct {
		pod   attached.Pod
		own   resolvconf.Settings
		rules overlay.Rules
		want  func(*podfile.File)
		why   string // in each decision's reason
	}{
		"plain":            {pod(nil), own, overlay.Rules{}, nil, "not been tried yet"},
		"nothing is known": {pod(nil), resolvconf.Settings{}, overlay.Rules{}, func(f *podfile.File) { f.DNS.Settings = resolvconf.Settings{} }, "not been tried yet"},
		"asks somebody else": {pod(nil), resolvconf.Settings{Nameservers: []string{"9.9.9.9"}}, overlay.Rules{}, func(f *podfile.File) {
			f.DNS.Settings = resolvconf.Settings{Nameservers: []string{"9.9.9.9"}}
		}, "none of the pod's nameservers (9.9.9.9)"},
		"opted out": {pod(func(p *attached.Pod) { p.Annotations[overlay.AnnotationSteer] = "false" }), own, overlay.Rules{}, func(f *podfile.File) { f.OptOut = true },
			overlay.AnnotationSteer},
		"annotations ignored": {pod(func(p *attached.Pod) { p.Annotations[overlay.AnnotationSteer] = "false" }), own, overlay.Rules{Level: overlay.Level{Annotations: overlay.Ignore}},
			func(f *podfile.File) {
				f.Ignored = []podfile.Ignored{{What: "annotation " + overlay.AnnotationSteer, Why: "annotations is ignore in the node's settings for this pod"}}
			}, "not been tried yet"},
		"annotations not known": {pod(func(p *attached.Pod) { p.Annotations = nil }), own, overlay.Rules{}, func(f *podfile.File) {
			f.Ignored = []podfile.Ignored{{What: "the pod's annotations", Why: "the runtime reports annotations only at ADD; restart the pod"}}
		}, "not been tried yet"},
		"the runtime's dns": {pod(func(p *attached.Pod) { p.DNS = &own }), own, overlay.Rules{}, func(f *podfile.File) {
			f.Nameservers, f.Searches, f.Options = own.Nameservers, own.Searches, own.Options
		}, "not been tried yet"},
		"an overlay": {pod(func(p *attached.Pod) {
			p.Annotations[overlay.AnnotationParams] = "options: [ndots:1]"
		}), own, overlay.Rules{}, func(f *podfile.File) {
			f.DNS.Reason = "the pod is older than neardns on this node; restart it to apply its DNS settings"
		}, "not been tried yet"},
	} {
		t.Run(name, func(t *testing.T) {
			want := whole
			settings := *whole.DNS
			want.DNS = &settings
			if c.want != nil {
				c.want(&want)
			}
			got := adoptedFile(c.pod, Wanted{Redirects: []steer.Redirect{r4, r6}, Rules: c.rules}, 7, "b", c.own)
			if len(got.Decisions) != 2 {
				t.Fatalf("decisions %+v", got.Decisions)
			}
			for _, d := range got.Decisions {
				if waits := c.why == "not been tried yet"; !strings.Contains(d.Reason, c.why) || d.Untried != waits || (d.State == podfile.Pending) != waits || d.State == podfile.Steered {
					t.Errorf("decision %+v, want %q", d, c.why)
				}
			}
			got.Decisions = nil
			testutil.Equal(t, "file", want, got)
		})
	}
}

// cache writes an attachment as libcni does.
func cache(t *testing.T, root string, pod *testutil.Pod, id, ifName string, annotations any) string {
	t.Helper()
	var ips []any
	for _, a := range pod.Addrs {
		ips = append(ips, map[string]any{"address": netip.PrefixFrom(a, a.BitLen()).String(), "interface": 0})
	}
	caps := map[string]any{}
	if annotations != nil {
		caps["io.kubernetes.cri.pod-annotations"] = annotations
	}
	text, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": id, "ifName": ifName, "networkName": "pods", "netns": pod.Path(), "capabilityArgs": caps,
		"cniArgs": [][2]string{{"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", id}},
		"result":  map[string]any{"cniVersion": "1.0.0", "interfaces": []any{map[string]any{"name": ifName, "sandbox": pod.Path()}}, "ips": ips},
	})
	testutil.Must(t, err)
	path := filepath.Join(root, "results", attached.FileName("pods", id, ifName))
	testutil.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, text, 0o600)))
	return path
}

func (n *node) adopter(root string) *adopter {
	return &adopter{pods: n.Pods, hadFile: map[string]time.Time{}, Adoption: Adoption{Root: root,
		Wanted: func() Wanted { return Wanted{Redirects: []steer.Redirect{r4, r6}} }}}
}

func (n *node) wantAdopted(ids ...string) {
	n.t.Helper()
	var got []string
	for _, f := range n.List() {
		if f.Adopted == podfile.ByCache {
			got = append(got, f.ContainerID)
		}
	}
	testutil.Equal(n.t, "adopted", ids, got)
}

// An attachment whose file the plugin's DEL removed is not adopted again.
func TestAdoptOnce(t *testing.T) {
	n := newNode(t, testutil.PTP)
	root := t.TempDir()
	cache(t, root, n.AddPod("pod"), "c1", "eth0", map[string]string{})
	k := n.adopter(root)
	k.scan(t.Context())
	n.wantAdopted("c1")
	testutil.Must(t, podfile.Remove(n.dir, "c1", "eth0")) // as the plugin's DEL does, first of its chain
	k.scan(t.Context())
	n.wantAdopted()
}

// Connections that a pod has when it is steered end where they began, also where its table comes back from nothing.
func TestOpenConnectionsStay(t *testing.T) {
	n := newNode(t, testutil.PTP)
	n.serve()
	n.Host.Serving("svc0", r4.ClusterDNS, r6.ClusterDNS)
	at := []netip.AddrPort{netip.AddrPortFrom(r4.ClusterDNS, 53), netip.AddrPortFrom(r6.ClusterDNS, 53)}
	testutil.ServeDNS(t, n.Host, testutil.DNSConfig{Name: "KUBEDNS", Listen: at})
	pod := n.AddPod("pod")
	dial := func(to netip.AddrPort) *dns.Conn {
		t.Helper()
		var conn net.Conn
		var err error
		pod.Do(func() { conn, err = net.DialTimeout("tcp", to.String(), testutil.Patience()) })
		testutil.Must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return &dns.Conn{Conn: conn}
	}
	who := func(when string, c *dns.Conn, want string) {
		t.Helper()
		_ = c.SetDeadline(time.Now().Add(testutil.Patience()))
		err := c.WriteMsg(new(dns.Msg).SetQuestion("a.cluster.local.", dns.TypeTXT))
		var m *dns.Msg
		if err == nil {
			m, err = c.ReadMsg()
		}
		if err != nil || !strings.Contains(m.String(), want) {
			t.Errorf("%s: %v, want an answer of %s\n%v", when, err, want, m)
		}
	}
	for _, to := range at {
		var before *dns.Conn
		for i := range 1000 { // closed connections stay in TIME_WAIT for a minute; if they counted, the table would have no room
			if i == 500 {
				before = dial(to)
				continue
			}
			_ = dial(to).Close()
		}
		who("not steered", before, "KUBEDNS")
		write(t, n.dir, fileOf(pod, "a", "eth0", decisions(podfile.Pending, r4, r6)))
		n.reconcile(yes, false, map[string]int{Steered: 1})
		who("steered, a connection from before", before, "KUBEDNS")
		who("steered, a new one", dial(to), "AGENT")

		pod.Run("nft", "delete", "table", "inet", "neardns")
		between := dial(to)
		who("without a table", between, "KUBEDNS")
		n.reconcile(yes, true, map[string]int{Steered: 1})
		who("mended", before, "KUBEDNS")
		who("mended, a connection from between", between, "KUBEDNS")
		who("mended, a new one", dial(to), "AGENT")
		pod.Run("nft", "delete", "table", "inet", "neardns")

		// An agent that was killed between the two transactions leaves a table that only notes.
		table := n.table(pod.NetNS)
		noted := dial(to)
		if recording, err := table.RecordConnections(steer.Pod{Redirects: []steer.Redirect{r4, r6}}); err != nil || !recording {
			t.Fatalf("notes: %v, %v", recording, err)
		}
		who("noted", dial(to), "KUBEDNS")
		n.reconcile(yes, true, map[string]int{Steered: 1})
		who("taken further, a connection from before", noted, "KUBEDNS")
		who("taken further, a new one", dial(to), "AGENT")
		pod.Run("nft", "delete", "table", "inet", "neardns")
	}
}

// A pod that opens connections all the time keeps each when its table is made: one that is split between two servers never ends.
func TestSteeredAmidConnections(t *testing.T) {
	n, pod, at := podBetween(t)
	// twoQueries sends two queries over one new connection.
	twoQueries := func() error {
		conn, err := net.DialTimeout("tcp", at.String(), testutil.Patience())
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // read to the end
		_ = conn.SetDeadline(time.Now().Add(testutil.Patience()))
		c := &dns.Conn{Conn: conn}
		for range 2 {
			if err := c.WriteMsg(new(dns.Msg).SetQuestion("a.cluster.local.", dns.TypeTXT)); err != nil {
				return err
			}
			if _, err := c.ReadMsg(); err != nil {
				return err
			}
		}
		return nil
	}
	for range 15 {
		stop, allowed := make(chan struct{}), make(chan struct{}, 500)
		allow := func(n int) {
			for range n {
				allowed <- struct{}{}
			}
		}
		errs := make(chan error, 1<<16)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				pod.Do(func() {
					for {
						select {
						case <-stop:
							return
						case <-allowed:
							errs <- twoQueries()
						}
					}
				})
			})
		}
		allow(20)
		testutil.Eventually(t, func() error { return testutil.ErrorIf(len(errs) < 8, "the load has not begun") })
		allow(400) // the record has room for 512
		write(t, n.dir, fileOf(pod, "a", "eth0", decisions(podfile.Pending, r4)))
		n.Outdate()
		n.reconcile(yes, false, map[string]int{Steered: 1})
		begun := len(errs)
		allow(50)
		testutil.Eventually(t, func() error { return testutil.ErrorIf(len(errs) < begun+8, "the load does not go on") })
		close(stop)
		wg.Wait()
		close(errs)
		for err := range errs {
			testutil.Check(t, err, "a connection broke")
		}
		pod.Run("nft", "delete", "table", "inet", "neardns")
	}
}

// A pod that opens more connections than its table can record is steered all the same, and none is split between two servers.
func TestFullRecord(t *testing.T) {
	n, pod, at := podBetween(t)
	pod.Do(func() {
		conn, err := net.DialTimeout("tcp", at.String(), testutil.Patience())
		testutil.Must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
	})
	table := n.table(pod.NetNS)
	if recording, err := table.RecordConnections(steer.Pod{Redirects: []steer.Redirect{r4}}); err != nil || !recording {
		t.Fatalf("recording: %v, %v", recording, err)
	}
	fillDirect(pod)
	_, err := testutil.Ask(pod.NetNS, at, "a.cluster.local.", dns.TypeTXT, "tcp", testutil.AskOptions{})
	testutil.Check(t, err, "a connection that the table has no room to record")
	write(t, n.dir, fileOf(pod, "a", "eth0", decisions(podfile.Pending, r4)))
	n.reconcile(yes, false, map[string]int{Steered: 1})
}

// A reason is logged when it appears, not in each scan, and forgotten once nothing fails for it.
func TestScanLogsAReasonOnce(t *testing.T) {
	var logs strings.Builder
	root := t.TempDir()
	file := filepath.Join(root, "results", "pods-gone-eth0")
	testutil.Must(t, os.Mkdir(filepath.Dir(file), 0o700))
	k := &adopter{pods: open(t.TempDir(), "", slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))),
		Adoption: Adoption{Root: root}}
	for i, netns := range []string{"/a", "/a", "/b", "/a", "/a"} {
		text := `{"kind":"cniCacheV1","containerId":"gone","ifName":"eth0","networkName":"pods","netns":"` + netns +
			`","cniArgs":[["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","gone"]],"result":{"cniVersion":"1.0.0","ips":[{"address":"10.244.1.7/32"}]}}`
		testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
		k.scan(t.Context())
		if got, want := strings.Count(logs.String(), "running pod not adopted"), []int{1, 1, 2, 3, 3}[i]; got != want {
			t.Errorf("scan %d: a pod that cannot be adopted is logged %d times, want %d:\n%s", i, got, want, &logs)
		}
	}
	testutil.Must(t, os.Remove(file))
	k.scan(t.Context())
	testutil.Equal(t, fmt.Sprintf("a pod whose file is gone is remembered: %v", k.failed), 0, len(k.failed))
}
