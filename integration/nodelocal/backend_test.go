package nodelocal_test

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// cell is a kind of node: what kube-proxy's rules are in, and what the agent's are to be in.
type cell struct {
	families testutil.Families
	proxy    testutil.ProxyMode
	backend  string
}

func (c cell) String() string {
	if c.backend == "" {
		return fmt.Sprintf("%s/%s", c.families, c.proxy)
	}
	return fmt.Sprintf("%s/%s/%s", c.families, c.proxy, c.backend)
}

func (c cell) node(t *testing.T) *node {
	t.Helper()
	n := newNode(t, testutil.Options{Families: c.families, Proxy: c.proxy, Legacy: c.backend == string(iptables.Legacy)})
	n.backend = c.backend
	return n
}

// onIPTables are the nodes of the iptables back end. kube-proxy's rules are in the same tables, as anywhere.
func onIPTables(families testutil.Families) []cell {
	var out []cell
	for _, f := range iptables.Variants() {
		out = append(out, cell{families, testutil.IPTables, string(f)})
	}
	return out
}

// oursIn matches lines about rules, routing, links and chains of ours.
var oursIn = regexp.MustCompile("(?i)neardns|NODE-LOCAL-DNS|lookup 5353")

// wantNothing wants no rule of ours in the host's netns, nor what belongs to them.
func (n *node) wantNothing(when string) {
	n.t.Helper()
	for _, args := range [][]string{{"nft", "list", "tables"}, {"iptables-nft-save"}, {"iptables-legacy-save"}, {"ip", "rule"}, {"ip", "-br", "link"}} {
		out, _ := n.Host.TryRun("", args...)
		for line := range strings.Lines(out) {
			if oursIn.MatchString(line) {
				n.t.Errorf("%s: %s: %s", when, args[0], line)
			}
		}
	}
}

// envBare has this program take nf_tables from whatever it is instructed to run.
const envBare = "NEARDNS_WITHOUT_NF_TABLES"

// init runs in the container, in the agent's place: a kernel without nf_tables has no such netlink family.
func init() { //nolint:gochecknoinits // before the tests of a program that runs none
	if os.Getenv(envBare) == "" {
		return
	}
	runtime.LockOSThread()
	err := withoutNetfilterNetlink()
	if err == nil {
		err = syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// withoutNetfilterNetlink keeps this thread and its children from opening a socket of NETLINK_NETFILTER.
func withoutNetfilterNetlink() error {
	const nr, arg0, arg2 = 0, 16, 32 // offsets in struct seccomp_data; the low halves of the arguments
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	unless := func(k uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: skip}
	}
	end := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	filter := []unix.SockFilter{
		load(nr), unless(unix.SYS_SOCKET, 5), load(arg0), unless(unix.AF_NETLINK, 3), load(arg2), unless(unix.NETLINK_NETFILTER, 1),
		end(unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)), end(unix.SECCOMP_RET_ALLOW),
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0) //nolint:gosec // the kernel's own form
}

// openMost is what a change of the back end, or a kill, may cost the four clients: what each has in flight, and some more resets.
const openMost = 16

// Without a word about it, the agent takes the back end that the node has: iptables-legacy where the kernel has no nf_tables, now and
// when it is started again, and nftables once it has. Neither leaves anything of the other's.
func TestBackendByItself(t *testing.T) { backendByItself(t, uncounted) }

func backendByItself(t *testing.T, count counter) {
	n := newNode(t, testutil.Options{Families: testutil.IPv4, Proxy: testutil.IPTables, Legacy: true})
	pod := n.pod()
	n.Host.Sysctl("net.ipv4.conf.all.rp_filter", "1") // which the container cannot change: its /proc/sys is read-only
	for range 2 {
		n.bare = true
		p := n.serve()
		n.awaitLog(p, 0, "backend=iptables-legacy")
		n.each(pod.NetNS, "without nf_tables", cached, n.served()...)
		testutil.Check(t, p.Terminate(testutil.Patience()), "SIGTERM")
		n.each(pod.NetNS, "without nf_tables, ended", direct, n.served()...)
	}
	n.cleanup("without nf_tables")
	p := n.serve()
	p.Kill()
	n.bare = false
	phase := count(n, pod.NetNS)
	p = n.serve()
	n.awaitLog(p, 0, "backend=nftables")
	// Connections that are open at that moment end: only their own back end knows their way.
	phase("nftables in iptables' place", openMost)
	n.each(pod.NetNS, "with nftables", cached, n.served()...)
	if rules := n.Host.Run("iptables-legacy-save"); strings.Contains(rules, "NEARDNS") || strings.Contains(n.Host.Run("ip", "rule"), "5353") {
		t.Errorf("left by the other back end:\n%s", rules)
	}
	p.Kill()
	n.each(pod.NetNS, "with nftables, killed", direct, n.served()...)
	n.cleanup("with nftables")
}
