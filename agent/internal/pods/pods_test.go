package pods

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

func redirect(clusterDNS, steering string) steer.Redirect {
	return steer.Redirect{ClusterDNS: netip.MustParseAddr(clusterDNS), Steering: netip.MustParseAddr(steering)}
}

var (
	r4 = redirect("10.96.0.10", "169.254.20.11")
	r6 = redirect("fd00:96::a", "fd00:90de:d95::b")
)

func decisions(state podfile.State, redirects ...steer.Redirect) []podfile.Decision {
	var out []podfile.Decision
	for _, r := range redirects {
		out = append(out, podfile.Decision{Redirect: r, State: state})
	}
	return out
}

// untried are the decisions of a pod before its first trial.
func untried(redirects ...steer.Redirect) []podfile.Decision {
	out := decisions(podfile.Pending, redirects...)
	for i := range out {
		out[i].Untried = true
	}
	return out
}

func write(t *testing.T, dir string, f podfile.File) {
	t.Helper()
	testutil.Must(t, podfile.Write(dir, f))
}

// open is Open for tests with a host's netns of their own.
func open(dir, hostNS string, log *slog.Logger) *Pods {
	p := Open(dir, rules.Kind{}, log)
	p.hostNS = hostNS
	return p
}

func registry(dir string) *Pods { return Open(dir, rules.Kind{}, slog.New(slog.DiscardHandler)) }

func TestAccessors(t *testing.T) {
	dir := t.TempDir()
	old, moved := redirect("10.96.0.99", "169.254.20.12"), redirect("10.96.0.98", "169.254.20.11")
	optOut := podfile.Annotations{OptOut: true}
	for i, f := range []podfile.File{
		{HostInterface: "cali2", Decisions: append(decisions(podfile.Steered, r4), decisions(podfile.LeftAlone, r6)...)},
		{HostInterface: "cali4", Decisions: decisions(podfile.Pending, old, r6)},
		{HostInterface: "cali1", Decisions: decisions(podfile.Steered, old, moved)},
		{HostInterface: "cali3", Decisions: decisions(podfile.LeftAlone, redirect("10.96.0.97", "169.254.20.13"))},
		{Annotations: optOut, Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.9"), netip.MustParseAddr("fd00::9")}},
		{Annotations: optOut, Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.8")}},
	} {
		f.ContainerID, f.IfName = string(rune('a'+i)), "eth0"
		write(t, dir, f)
	}
	p := registry(dir)
	testutil.Equal(t, "files listed", 6, len(p.List()))
	for _, c := range []struct {
		name             string
		configured, want []steer.Redirect
	}{
		{"all configured", []steer.Redirect{r4, r6, old}, nil},
		{"one taken out", []steer.Redirect{r4, r6}, []steer.Redirect{old}},
		{"steering address now means another", []steer.Redirect{redirect("10.96.0.10", "169.254.20.12"), r6}, []steer.Redirect{r4}},
		{"none configured", nil, []steer.Redirect{r4, old, r6}},
	} {
		testutil.Equal(t, fmt.Sprintf("FallbackOnly, %s", c.name), c.want, p.FallbackOnly(c.configured))
	}
	testutil.Equal(t, "HostInterfaces", []string{"cali1", "cali2"}, p.HostInterfaces())
	want := []netip.Addr{netip.MustParseAddr("10.244.1.8"), netip.MustParseAddr("10.244.1.9"), netip.MustParseAddr("fd00::9")}
	testutil.Equal(t, "OptedOut", want, p.OptedOut())
}

func TestWatch(t *testing.T) {
	testutil.RequireRoot(t)
	dir := filepath.Join(t.TempDir(), "run")
	testutil.Must(t, os.WriteFile(dir, nil, 0o600)) // so that it cannot be watched yet
	p := registry(dir)
	ctx, cancel := context.WithCancel(t.Context())
	ticks := p.Watch(ctx)
	testutil.Receive(t, ticks)
	testutil.Must(t, os.Remove(dir))
	// One operation may be several events, so the news is awaited, and a tick must have come with it or before.
	expect := func(files int) {
		t.Helper()
		testutil.Receive(t, ticks)
		testutil.Eventually(t, func() error {
			got := len(p.List())
			return testutil.ErrorIf(got != files, "wrong number of files")
		})
	}
	f := podfile.File{ContainerID: "a", IfName: "eth0", Decisions: decisions(podfile.Pending, r4)}
	write(t, dir, f)
	expect(1)
	f.Decisions[0].State = podfile.Steered
	testutil.Must(t, podfile.Update(dir, f))
	expect(1)
	testutil.Eventually(t, func() error { return testutil.ErrorIf(len(p.List()[0].In(podfile.Steered)) != 1, "old contents") })
	testutil.Must(t, podfile.Remove(dir, "a", "eth0"))
	expect(0)
	testutil.Eventually(t, func() error { return os.RemoveAll(dir) }) // it may be made again meanwhile
	expect(0)
	testutil.Eventually(t, func() error { _, err := os.Stat(p.dir()); return err })
	write(t, dir, f)
	expect(1)
	cancel()
	for range ticks {
	}
	// Without a watch every reading is fresh.
	testutil.Must(t, podfile.Remove(dir, "a", "eth0"))
	testutil.Equal(t, "files after the watch ended", 0, len(p.List()))
}

// node is a host with the switch, and a registry on it.
type node struct {
	*testutil.Node
	*Pods
	t   *testing.T
	dir string
}

func newNode(t *testing.T, attach testutil.Attach) *node {
	t.Helper()
	testutil.RequireRoot(t)
	n := &node{Node: testutil.NewNode(t, testutil.Options{Families: testutil.Dual, Attach: attach, NoDNS: true}), t: t, dir: t.TempDir()}
	n.Pods = open(n.dir, n.Host.Path(), slog.New(slog.DiscardHandler))
	return n
}

// onePod makes a node with one pod, whose paths are in a state.
func onePod(t *testing.T, state podfile.State, redirects ...steer.Redirect) (*node, *testutil.Pod) {
	t.Helper()
	n := newNode(t, testutil.PTP)
	pod := n.AddPod("pod")
	write(t, n.dir, fileOf(pod, "a", "eth0", decisions(state, redirects...)))
	return n, pod
}

// steeredPod makes a node with one pod, whose paths are steered.
func steeredPod(t *testing.T, redirects ...steer.Redirect) (*node, *testutil.Pod) {
	t.Helper()
	n, pod := onePod(t, podfile.Pending, redirects...)
	n.reconcile(yes, true, map[string]int{Steered: 1})
	return n, pod
}

// podBetween makes a pod on a node on which the agent and kube-dns serve. at is kube-dns's address.
func podBetween(t *testing.T) (n *node, pod *testutil.Pod, at netip.AddrPort) {
	t.Helper()
	n, at = newNode(t, testutil.PTP), netip.AddrPortFrom(r4.ClusterDNS, 53)
	n.serve()
	n.Host.Serving("svc0", r4.ClusterDNS)
	testutil.ServeDNS(t, n.Host, testutil.DNSConfig{Name: "KUBEDNS", Listen: []netip.AddrPort{at}})
	return n, n.AddPod("pod"), at
}

func fileOf(pod *testutil.Pod, id, ifName string, d []podfile.Decision) podfile.File {
	return podfile.File{ContainerID: id, IfName: ifName, NetNS: pod.Path(), NetNSInode: pod.Inode(), PodNamespace: "default", PodName: id,
		Addresses: pod.Addrs, HostInterface: pod.HostInterface, Decisions: d}
}

func yes(netip.Addr) Fallback { return Fallback{Verified: true} }
func no(netip.Addr) Fallback  { return Fallback{} }

// reconcile passes the switch's addresses to the registry, as the agent's loop does first, and reconciles.
func (n *node) reconcile(proven func(netip.Addr) Fallback, deep bool, want map[string]int) {
	n.t.Helper()
	n.FallbackOnly([]steer.Redirect{r4, r6})
	counts, err := n.Reconcile(n.t.Context(), proven, deep)
	testutil.Check(n.t, err)
	for _, state := range []string{Steered, Pending, LeftAlone, Bypassed, Gone} {
		if counts[state] != want[state] {
			n.t.Errorf("counts %v, want %v", counts, want)
			break
		}
	}
}

// table opens the packet rules of a netns.
func (n *node) table(ns *testutil.NetNS) *nft.Nftables {
	n.t.Helper()
	table, err := nft.Open(ns.FD())
	testutil.Must(n.t, err)
	n.t.Cleanup(func() { _ = table.Close() })
	return table
}

func (n *node) wantTable(pod *testutil.Pod, redirects ...steer.Redirect) {
	n.t.Helper()
	table := n.table(pod.NetNS)
	present, err := table.Present()
	testutil.Must(n.t, err)
	if present != (len(redirects) > 0) {
		n.t.Errorf("pod table there: %v, want redirects %v", present, redirects)
	}
	if !present {
		return
	}
	testutil.Check(n.t, table.Verify(steer.Pod{Redirects: redirects}))
}

func (n *node) states(id, ifName string) []podfile.Decision {
	n.t.Helper()
	f, err := podfile.Read(podfile.Path(n.dir, id, ifName))
	testutil.Must(n.t, err)
	return f.Decisions
}

func verify(pod *testutil.Pod, redirects ...steer.Redirect) error {
	table, err := nft.Open(pod.FD())
	if err != nil {
		return err
	}
	defer table.Close()
	return table.Verify(steer.Pod{Redirects: redirects})
}

func TestPodOf(t *testing.T) {
	dir := t.TempDir()
	four, six := netip.MustParseAddr("10.244.1.9"), netip.MustParseAddr("fd00::9")
	write(t, dir, podfile.File{ContainerID: "a", IfName: "eth0", PodNamespace: "shop", PodName: "cart", Addresses: []netip.Addr{four, six}})
	write(t, dir, podfile.File{ContainerID: "b", IfName: "eth0", Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.8")}})
	p := registry(dir)
	for addr, want := range map[netip.Addr]string{four: "shop/cart", six: "shop/cart", netip.MustParseAddr("10.244.1.8"): "", netip.MustParseAddr("10.244.1.7"): ""} {
		testutil.Equal(t, addr.String(), want, p.PodOf(addr))
	}
}

func TestScanIsDue(t *testing.T) {
	k := &adopter{Adoption: Adoption{Root: t.TempDir()}, pods: registry(t.TempDir())}
	start := time.Unix(2_000_000_000, 0)
	for _, c := range []struct {
		after time.Duration
		retry bool
		want  bool
	}{
		{0, false, true}, {coarse, false, true}, {2 * coarse, false, false}, {2 * coarse, true, true},
		{maxUnread - 1, false, false}, {maxUnread, false, true},
	} {
		k.scanned, k.retry = start, c.retry
		testutil.Equal(t, fmt.Sprintf("after %s, retry %t", c.after, c.retry), c.want, k.due(start.Add(c.after)))
	}
}

func TestSurelyGone(t *testing.T) {
	const own = "/proc/self/ns/net"
	ns, inode, err := podfile.OpenNetNS(own)
	testutil.Must(t, err)
	ns.Close()
	before := openFDs(t, inode)
	for _, c := range []struct {
		path  string
		inode uint64
		want  bool
	}{
		{own, inode, false},
		{own, inode + 1, true},
		{"/proc/self/ns/missing", inode, false}, // another pid namespace may have it
		{t.TempDir() + "/missing", inode, true},
		{t.TempDir() + "/not-mounted/ns", inode, false},
	} {
		if got := surelyGone(podfile.File{NetNS: c.path, NetNSInode: c.inode}); got != c.want {
			t.Errorf("%s, inode %d: %v, want %v", c.path, c.inode-inode, got, c.want)
		}
	}
	testutil.Equal(t, "descriptors of the netns", before, openFDs(t, inode))
}

// openFDs returns how many descriptors of a netns this process has open.
func openFDs(t *testing.T, inode uint64) (count int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	testutil.Must(t, err)
	for _, fd := range fds {
		if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); to == fmt.Sprintf("net:[%d]", inode) {
			count++
		}
	}
	return count
}
