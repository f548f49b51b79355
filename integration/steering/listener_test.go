package steering

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// deafen ends one listening socket of the agent from outside, by a copy of its descriptor. A UDP socket gets a filter that
// lets nothing pass, as one that no program reads any more: it stays bound, so the switch's own look at the socket finds it. A
// TCP socket, which may be one of MPTCP and then takes no filter, is bound to a link over which nothing comes. (One that stops listening is
// none that is deaf: the agent has it listen again.)
func (n *node) deafen(protocol string, family int) (undo func()) {
	n.t.Helper()
	pid := n.agent.PID()
	at := map[int]string{4: hexAddress(steering4.AsSlice()), 6: hexAddress(steering6.AsSlice())}[family] + ":0035"
	file := protocol + map[int]string{4: "", 6: "6"}[family]
	table := n.Host.Run("cat", "/proc/self/net/"+file) // the agent's own shows its first thread, which may be at a prober
	inode := ""
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); len(f) > 9 && f[1] == at && strings.Trim(f[2], "0:") == "" {
			inode = f[9]
		}
	}
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		if to, _ := os.Readlink(link); inode == "" || to != "socket:["+inode+"]" {
			continue
		}
		var theirs int
		if _, err := fmt.Sscan(filepath.Base(link), &theirs); err != nil {
			n.t.Fatal(err)
		}
		pidfd, err := unix.PidfdOpen(pid, 0)
		testutil.Must(n.t, err)
		defer unix.Close(pidfd)
		fd, err := unix.PidfdGetfd(pidfd, theirs, 0)
		testutil.Must(n.t, err)
		if protocol == "tcp" {
			bind := func(link string) error { return unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, link) }
			testutil.Must(n.t, bind("neardns0")) // what comes to its addresses comes over other links
			return func() {
				testutil.Check(n.t, bind(""))
				unix.Close(fd)
			}
		}
		drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
		program := unix.SockFprog{Len: 1, Filter: (*unix.SockFilter)(unsafe.Pointer(&drop[0]))}
		testutil.Must(n.t, unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program))
		return func() {
			testutil.Check(n.t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0))
			unix.Close(fd)
		}
	}
	n.t.Fatalf("the agent has no %s socket at %s:\n%s", file, at, table)
	return nil
}

// hexAddress is how /proc/net writes an address on a little-endian machine: words of four bytes, each reversed.
func hexAddress(b []byte) string {
	out := ""
	for word := range slices.Chunk(b, 4) {
		word = slices.Clone(word)
		slices.Reverse(word)
		out += strings.ToUpper(hex.EncodeToString(word))
	}
	return out
}

// holds reports whether the kernel holds a lease.
func (n *node) holds(want target) bool {
	return slices.ContainsFunc(n.leases(), func(l steer.LeaseState) bool {
		return l.Address == want.addr && l.Protocol.String() == want.network
	})
}

// TestDeafListener: a socket that no program reads any more costs its own address and protocol the lease, and no other.
func TestDeafListener(t *testing.T) {
	t.Parallel()
	n := newNode(t, setup{families: testutil.Dual})
	p := n.addPod(nil)
	n.startAgent()
	var all []target
	for _, network := range []string{"udp", "tcp"} {
		all = append(all, target{steering4, network}, target{steering6, network})
	}
	for _, deaf := range all {
		family := map[bool]int{true: 4, false: 6}[deaf.addr.Is4()]
		cluster := n.ClusterDNS()[map[int]int{4: 0, 6: 1}[family]]
		undo := n.deafen(deaf.network, family)
		testutil.Eventually(t, func() error { return testutil.ErrorIf(n.holds(deaf), "%s still holds its lease", deaf) })
		n.wantFallback(p.client(), deaf.String()+" is deaf", target{cluster, deaf.network})
		for _, other := range all {
			testutil.Eventually(t, func() error { // where the machine lets the agent wait, one comes and goes
				return testutil.ErrorIf(other != deaf && !n.holds(other), "%s is deaf, and %s lost its lease too", deaf, other)
			})
		}
		undo()
		testutil.Eventually(t, func() error { return testutil.ErrorIf(!n.holds(deaf), "%s has no lease again", deaf) })
		n.wantSteered(p.client(), deaf.String()+" hears again", target{cluster, deaf.network})
	}
	if lost := n.metric(`neardns_lease_lost_total{reason="timeout"}`); lost < 2 {
		t.Errorf("%v leases lost to silence were counted, want 2", lost)
	}
}
