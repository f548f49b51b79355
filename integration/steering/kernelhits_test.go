package steering

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

// newKernelNode is a node whose agents answer hits in the kernel.
func newKernelNode(t *testing.T, s setup) *node {
	t.Helper()
	testutil.RequireRoot(t)
	s.config = kernelOn(t)
	return newNode(t, s)
}

// kernelOn is the line of NodeConfig for it, where the machine can.
func kernelOn(t *testing.T) string {
	t.Helper()
	needBPF(t)
	return "kernelHits: {mode: \"on\"}\n"
}

// newHot is a kernel node with a pod, and a name that the kernel answers it at an address.
func newHot(t *testing.T) (n *node, p *pod, at target, name string) {
	t.Helper()
	n = newKernelNode(t, setup{families: testutil.IPv4})
	p = n.addPod(nil)
	n.startAgent()
	n.wantInKernel(1, 0)
	at, name = n.all()[0], "ttl-600."+freshName()
	n.heat(p, at, name)
	return n, p, at, name
}

// needBPF skips the test on a machine without a BPF file system.
func needBPF(t *testing.T) {
	t.Helper()
	var there unix.Statfs_t
	if err := unix.Statfs("/sys/fs/bpf", &there); err != nil || there.Type != unix.BPF_FS_MAGIC {
		testutil.Skip(t, "there is no BPF file system")
	}
}

// wantInKernel waits until the kernel answers so many pods, and so many are refused.
func (n *node) wantInKernel(pods, refused int) {
	n.t.Helper()
	n.awaitStatus(func(a *agentStatus) error {
		k := a.KernelHits
		wrong := k == nil || k.Pods != pods || len(k.Refused) != refused || k.Fault != ""
		return testutil.ErrorIf(wrong, "want %d pods and %d refused: %+v", pods, refused, k)
	})
}

// awaitNoKernelHits waits until the agent gives this reason why there are no kernel hits.
func (n *node) awaitNoKernelHits(why string) {
	n.t.Helper()
	n.awaitStatus(func(a *agentStatus) error {
		wrong := a.KernelHits == nil || !strings.Contains(a.KernelHits.Fault, why)
		return testutil.ErrorIf(wrong, "kernel hits: %+v, want none by %q", a.KernelHits, why)
	})
}

// kernelHits is what the agent's status has of them.
func (n *node) kernelHits() *kernelHits {
	n.t.Helper()
	a, err := n.agentStatus()
	if err != nil || a.KernelHits == nil {
		n.t.Fatalf("status: %+v, %v", a, err)
	}
	return a.KernelHits
}

// kernelAnswers is how many queries the kernel has answered.
func (n *node) kernelAnswers() int64 { n.t.Helper(); return n.kernelHits().Answers }

// heat queries a name until the kernel answers it.
func (n *node) heat(p *pod, at target, name string) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		before := n.kernelAnswers()
		for range 3 { // between two looks, which may take longer than hits go on after a sample; the first may be the sample
			if _, err := p.client().ask(at, name, testutil.Attempt); err != nil {
				return err
			}
		}
		h := n.kernelHits()
		return testutil.ErrorIf(h.Answers == before, "the kernel does not answer %s of %s at %s: %+v", name, p.name, at, h)
	})
}

// countsInKernel are what the agent counts of a pod.
func (n *node) countsInKernel(p *pod) (queries, kernel int64) {
	n.t.Helper()
	views, err := n.podViews()
	testutil.Must(n.t, err)
	for _, v := range views {
		if v.Pod == "default/"+p.name {
			return v.Counts.Queries, v.Counts.Kernel
		}
	}
	n.t.Fatalf("%s is not among the pods: %+v", p.name, views)
	return 0, 0
}

// TestKernelHits: a pod's hits are answered at its link, as the agent would answer them; each is counted once; a reload that turns kernel
// hits off takes the program away.
func TestKernelHits(t *testing.T) {
	for attach, reload := range map[testutil.Attach]string{testutil.PTP: "", testutil.BridgeCNI: "kernelHits: {mode: auto}\n"} {
		t.Run(string(attach), func(t *testing.T) {
			t.Parallel()
			n := newKernelNode(t, setup{families: testutil.Dual, attach: attach})
			p, out := n.addPod(nil), n.addPod(map[string]string{"neardns.io/kernel-hits": "false"})
			if reload == "" {
				n.startAgent()
			} else {
				n.configure("")
				n.startAgent()
				n.wantSteered(p.client(), "not configured", targets(n.ClusterDNS()...)...)
				if a, err := n.agentStatus(); err != nil || a.KernelHits != nil || n.hasProgram(p) {
					t.Fatalf("kernel hits without the key: %+v, %v", a.KernelHits, err)
				}
				n.configure(reload)
				n.hup()
			}
			n.wantInKernel(1, 0)
			for _, a := range n.ClusterDNS() {
				at := target{a, "udp"}
				name := freshName()
				n.heat(p, at, name)
				first, err := p.client().ask(at, name, testutil.Attempt)
				testutil.Must(t, err)
				fetched := n.DNS.Asked(name)
				answers := n.kernelAnswers()
				queries, inKernel := n.countsInKernel(p)
				const asked = 200
				mixed := strings.ToUpper(name[:5]) + name[5:]
				for i := range asked {
					ask := []string{name, mixed}[i%2]
					got, err := testutil.Ask(p.NetNS, at.server(), ask, dns.TypeA, "udp", testutil.AskOptions{EDNS: []uint16{0, 1232}[i/2%2]})
					switch {
					case err != nil:
						t.Fatal(err)
					case got.Msg.Question[0].Name != ask || got.Msg.Answer[0].Header().Name != ask,
						got.Serial != first.Serial && n.DNS.Asked(name) == fetched:
						t.Fatalf("another answer: %s", got.Msg)
					case got.Msg.Answer[0].Header().Ttl > 30 || got.Msg.Answer[0].Header().Ttl == 0:
						t.Fatalf("a TTL of %d", got.Msg.Answer[0].Header().Ttl)
					}
				}
				if got := n.kernelAnswers() - answers; got < asked/2 || got > asked { // the others are samples, by the clock
					t.Errorf("%s: the kernel answered %d of %d", at, got, asked)
				}
				testutil.Eventually(t, func() error { // the agent counts a query when its answer is out
					q, k := n.countsInKernel(p)
					q, k = q-queries, k-inKernel
					wrong := q != asked || k != n.kernelAnswers()-answers
					return testutil.ErrorIf(wrong, "%s: %d queries are counted, %d of them in the kernel; %d were sent", at, q, k, asked)
				})
			}
			before := n.kernelAnswers()
			at := target{n.ClusterDNS()[0], "udp"}
			name := freshName()
			for range 20 {
				if _, err := out.client().ask(at, name, testutil.Attempt); err != nil {
					t.Error(err)
				}
			}
			if got := n.kernelAnswers(); got != before {
				t.Errorf("the kernel answered %d questions of a pod that wants none of it", got-before)
			}
			if sum := n.metric(`neardns_kernel_hits_total{rcode="NOERROR",type="A"}`); sum != float64(before) || before == 0 {
				t.Errorf("the metric says %v, the status %d", sum, before)
			}

			from := len(n.agent.Output())
			n.configure("kernelHits: {mode: \"off\"}\n")
			n.hup()
			n.awaitLog(from, "kernel hits disabled")
			testutil.Eventually(t, func() error {
				left := n.pinned()
				return testutil.ErrorIf(len(left) > 0, "it is off, and left %s", left)
			})
			n.wantSteered(p.client(), "off", targets(n.ClusterDNS()...)...)
		})
	}
}

// pinned lists what stands in the agents' BPF file system.
func (n *node) pinned() []string {
	n.t.Helper()
	var out []string
	err := filepath.WalkDir(nodestate.BPFFolder(n.stateDir()), func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			out = append(out, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.t.Fatal(err)
	}
	return out
}

// TestKernelHitsOutliveTheAgent: with the agent killed, the kernel answers what it has, and what it has not goes to kube-dns; none is lost.
// The next agent has the level again.
func TestKernelHitsOutliveTheAgent(t *testing.T) {
	n, p, at, hot := newHot(t)
	f := n.startUDP(p, at.server(), 500, hot)
	f.more(500)
	n.agent.Kill()
	sent, before := f.asked.Load(), n.DNS.Asked(hot)
	f.more(100) // without the agent; the entry lives for 30 s
	times, of := n.DNS.Asked(hot)-before, int(f.asked.Load()-sent)
	f.more(900)
	n.startAgent()
	n.wantInKernel(1, 0)
	f.allAnswered()
	if times > of/10 { // samples
		t.Errorf("kube-dns was asked %d times of %d while the agent was dead: the kernel did not answer", times, of)
	}
	n.heat(p, at, hot)
}

// TestKernelHitsAreNotOlder: a new answer of a name comes to a pod that the kernel answers no later than to one that the agent does.
func TestKernelHitsAreNotOlder(t *testing.T) {
	t.Parallel()
	n := newKernelNode(t, setup{families: testutil.IPv4})
	p, plain := n.addPod(nil), n.addPod(map[string]string{"neardns.io/kernel-hits": "false"})
	n.startAgent()
	n.wantInKernel(1, 0)
	at := target{n.ClusterDNS()[0], "udp"}
	name := "ttl-5." + freshName()
	n.heat(p, at, name)
	serial, changes := int64(0), 0
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for ctx := testutil.Context(t); changes < 3 || n.kernelAnswers() < 100; <-tick.C {
		if ctx.Err() != nil {
			t.Fatalf("the name's answer has changed %d times, and the kernel has answered %d queries", changes, n.kernelAnswers())
		}
		a, err := plain.client().ask(at, name, testutil.Attempt)
		testutil.Must(t, err)
		b, err := p.client().ask(at, name, testutil.Attempt)
		testutil.Must(t, err)
		if plain.client().direct(a) { // its agent was busy
			continue
		}
		if int64(b.Serial) < int64(a.Serial) {
			t.Fatalf("the agent said %d, and after that the kernel %d", a.Serial, b.Serial)
		}
		if int64(a.Serial) != serial {
			serial, changes = int64(a.Serial), changes+1
		}
	}
}

// TestKernelHitsAreHandedOver: agents take over from one another while queries come; all are answered, and the kernel answers for the last
// agent, too.
func TestKernelHitsAreHandedOver(t *testing.T) {
	n, p, at, hot := newHot(t)
	f := n.startTraffic(p, hot, 130)
	for i := range 2 {
		f.more(40)
		n.succeed(fmt.Sprintf("pod%d", i+1))
		n.wantInKernel(1, 0)
		n.heat(p, at, hot)
	}
	f.more(40)
	f.allAnswered()
}

// otherProgram puts the program of another project at a pod's link.
func (n *node) otherProgram(p *pod) {
	n.t.Helper()
	next := asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()} // TCX_NEXT
	attachTCX(n.t, n.Host, p.hostLink(n), link.TCXOptions{Attach: ebpf.AttachTCXIngress}, next)
}

// attachTCX attaches a program at a link until the test ends.
func attachTCX(t *testing.T, host *testutil.NetNS, name string, o link.TCXOptions, code asm.Instructions) {
	t.Helper()
	var err error
	o.Interface = host.Link(name).Attrs().Index
	o.Program, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "other", Type: ebpf.SchedCLS, License: "GPL", Instructions: code})
	if err != nil {
		t.Fatalf("%v: %+v", o.Attach, err)
	}
	defer o.Program.Close()
	var there link.Link
	host.Do(func() { there, err = link.AttachTCX(o) })
	if errors.Is(err, ebpf.ErrNotSupported) {
		testutil.Skip(t, "this kernel has no tcx")
	}
	testutil.Must(t, err)
	t.Cleanup(func() { there.Close() })
}

// hasProgram reports whether a pod's link has a program for what comes from it.
func (n *node) hasProgram(p *pod) bool {
	n.t.Helper()
	found, err := n.programsAt(p.hostLink(n))
	testutil.Must(n.t, err)
	return found > 0
}

// programsAt counts the programs at a link of the host's.
func (n *node) programsAt(name string) (int, error) {
	at, err := n.Host.Netlink().LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	var there *link.QueryResult
	n.Host.Do(func() {
		there, err = link.QueryPrograms(link.QueryOptions{Target: at.Attrs().Index, Attach: ebpf.AttachTCXIngress})
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return len(there.Programs), nil
}

// TestKernelHitsRefused: a pod that cannot have the program is reported, and so is a node without a BPF file system; both are answered.
func TestKernelHitsRefused(t *testing.T) {
	t.Parallel()
	n := newKernelNode(t, setup{families: testutil.IPv4})
	shared, answered := n.addPod(nil), n.addPod(nil)
	n.otherProgram(shared)
	n.startAgent()
	n.wantInKernel(1, 1)
	if !n.hasProgram(answered) {
		t.Error("the program is not at the link of the pod that is answered")
	}
	ats := targets(n.ClusterDNS()...)
	n.wantSteered(shared.client(), "refused", ats...)
	n.prints(anyCode, "status", "not of default/"+shared.name, "has programs of others")
	testutil.Must(t, n.agent.Terminate(testutil.Patience()))
	n.within = []string{"unshare", "--mount", "--propagation", "slave", "sh", "-c", "mount -t tmpfs none /sys/fs/bpf && exec \"$0\" \"$@\""}
	n.startAgent()
	n.awaitNoKernelHits("no BPF file system")
	n.wantSteered(shared.client(), "no BPF file system", ats...)
	if n.hasProgram(answered) {
		t.Error("what the agent before left is at a pod's link still")
	}
	if n.metric("neardns_kernel_ok") != 0 {
		t.Error("the metric says that all is well")
	}
}

// TestKernelHitsFilesRemoved: if another program removes the level's files from the BPF file system, the agent makes them again, and the
// kernel answers a pod's hits as before. While it cannot make them, neardns_kernel_ok is 0 and the agent answers.
func TestKernelHitsFilesRemoved(t *testing.T) {
	t.Parallel()
	n, p, at, name := newHot(t)
	n.removeLevel()
	n.heat(p, at, name)
	n.awaitMetric("neardns_kernel_ok", 1)

	folder := nodestate.BPFFolder(n.stateDir())
	testutil.Eventually(t, func() error { // the agent may make it again in between
		n.removeLevel()
		return os.Symlink(filepath.Join(t.TempDir(), "nowhere"), folder)
	})
	defer os.Remove(folder) //nolint:errcheck // it is removed below unless the test fails before
	n.awaitMetric("neardns_kernel_ok", 0)
	n.wantSteered(p.client(), "no level", at)
	testutil.Must(t, os.Remove(folder))
	n.wantInKernel(1, 0)
	n.heat(p, at, name)
	n.awaitMetric("neardns_kernel_ok", 1)
}

// removeLevel removes the level's files from the BPF file system.
func (n *node) removeLevel() {
	n.t.Helper()
	testutil.Must(n.t, os.RemoveAll(nodestate.BPFFolder(n.stateDir())))
}
