package pods

import (
	"net/netip"
	"path/filepath"
	"sync"
	"testing"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// kept is the value that the tests store for a pod: its namespace, and how often it was read.
type kept struct {
	namespace string
	times     int
}

func keepCount(f podfile.File, old *kept) *kept {
	k := &kept{namespace: f.PodNamespace, times: 1}
	if old != nil {
		k.times += old.times
	}
	return k
}

// namespaceOf is the namespace of an address's pod, empty if there is none.
func namespaceOf(x *Index[kept], addr netip.Addr) string {
	if k := x.Find(addr); k != nil {
		return k.namespace
	}
	return ""
}

var podAddr = netip.MustParseAddr("10.244.1.5")

func TestIndex(t *testing.T) {
	testutil.RequireRoot(t)
	dir := t.TempDir()
	p := registry(dir)
	x := NewIndex(p, keepCount)
	if x.Find(podAddr) != nil || len(x.All()) != 0 {
		t.Error("something is known of no pods")
	}
	ticks := p.Watch(t.Context())
	put := func(id, namespace string, addrs ...netip.Addr) {
		t.Helper()
		write(t, dir, podfile.File{ContainerID: id, IfName: "eth0", PodNamespace: namespace, Addresses: addrs})
	}
	is := func(addr netip.Addr, want string) {
		t.Helper()
		testutil.Eventually(t, func() error {
			got := namespaceOf(x, addr)
			return testutil.ErrorIf(got != want, "%s is of %q, want %q", addr, got, want)
		})
	}
	other := netip.MustParseAddr("fd00::5")
	put("a", "shop", podAddr, other)
	is(podAddr, "shop")
	is(other, "shop")
	first := x.Find(podAddr)
	if x.Find(other) != first || x.All()[[2]string{"a", "eth0"}] != first {
		t.Error("one pod is kept twice")
	}
	put("b", "data")
	testutil.Eventually(t, func() error {
		n := len(x.All())
		return testutil.ErrorIf(n != 2, "%d attachments", n)
	})
	if k := x.Find(podAddr); k == nil || k.times < 2 {
		t.Errorf("what was kept is not handed on: %+v", k)
	}
	before := x.Find(podAddr).times
	p.Outdate()
	testutil.Equal(t, "times that it was made", before+1, x.Find(podAddr).times)
	// The pod goes, and another gets its address.
	testutil.Must(t, podfile.Remove(dir, "a", "eth0"))
	is(podAddr, "")
	put("c", "data", podAddr)
	is(podAddr, "data")
	if k := x.Find(podAddr); x.All()[[2]string{"a", "eth0"}] != nil || k.times > 3 {
		t.Errorf("the new pod has the old one's: %+v", k)
	}
	for range len(ticks) {
		<-ticks
	}
}

// A DEL that never came leaves a file behind, whose netns is gone. The address is its new owner's.
func TestIndexAddressOfADeadPod(t *testing.T) {
	testutil.RequireRoot(t)
	dir := t.TempDir()
	ns := testutil.NewNS(t, "owner")
	inode := ns.Inode()
	dead := podfile.File{ContainerID: "a", IfName: "eth0", PodNamespace: "shop", Addresses: []netip.Addr{podAddr}, NetNS: filepath.Join(dir, "gone"), NetNSInode: 1}
	write(t, dir, dead)
	p := registry(dir)
	x := NewIndex(p, keepCount)
	testutil.Equal(t, "alone", "shop", namespaceOf(x, podAddr))
	write(t, dir, podfile.File{ContainerID: "b", IfName: "eth0", PodNamespace: "data", Addresses: []netip.Addr{podAddr}, NetNS: ns.Path(), NetNSInode: inode})
	p.Outdate()
	testutil.Equal(t, "next to a living one", "data", namespaceOf(x, podAddr))
	dead.ContainerID = "c"
	dead.NetNS, dead.NetNSInode = ns.Path(), inode
	write(t, dir, dead)
	p.Outdate()
	testutil.Equal(t, "of two living ones", nil, x.Find(podAddr))
}

func TestIndexAtOnce(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, podfile.File{ContainerID: "a", IfName: "eth0", PodNamespace: "shop", Addresses: []netip.Addr{podAddr}})
	p := registry(dir)
	x := NewIndex(p, keepCount)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				testutil.Equal(t, "namespace", "shop", namespaceOf(x, podAddr))
				p.Outdate()
			}
		})
	}
	wg.Wait()
}
