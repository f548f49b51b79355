//go:build timing

package steering

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/neardns/neardns/pkg/testutil"
)

// wheres are the places where a datapath drops what a policy forbids.
var wheres = map[string]func(n *node, p *pod, policy string) (allow func()){
	"nftables at the link":        (*node).denyAtLink,
	"nftables, INPUT and FORWARD": (*node).deny,
	"tc program at the link":      func(n *node, p *pod, policy string) func() { return n.denyByProgram(p, policy, ebpf.SchedCLS) },
	"XDP program at the link":     func(n *node, p *pod, policy string) func() { return n.denyByProgram(p, policy, ebpf.XDP) },
}

// denyAtLink drops a pod's DNS in the netdev hook of its link.
func (n *node) denyAtLink(p *pod, policy string) (allow func()) {
	n.t.Helper()
	drop := map[string]string{"all DNS": "meta l4proto { tcp, udp } th dport 53 drop", "all but to kube-dns": fmt.Sprintf("ip daddr { %s, %s } drop", steering4, local4)}
	return chain(n.Host, "netdev guard_"+p.name, fmt.Sprintf("hook ingress device %q priority 0", p.hostLink(n)), drop[policy])
}

// denyByProgram drops a pod's DNS in a program at its link.
func (n *node) denyByProgram(p *pod, policy string, kind ebpf.ProgramType) (allow func()) {
	n.t.Helper()
	// Offsets of data and data_end in struct __sk_buff and struct xdp_md, TC_ACT_SHOT and TCX_NEXT, XDP_DROP and XDP_PASS (linux/bpf.h).
	data, end, drop, pass := int16(76), int16(80), int32(2), int32(-1)
	if kind == ebpf.XDP {
		data, end, drop, pass = 0, 4, 1, 2
	}
	const ethernet, ports = 14, 14 + 20 // an IPv4 header without options
	code := asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, data, asm.Word), asm.LoadMem(asm.R3, asm.R1, end, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2), asm.Add.Imm(asm.R4, ports+4), asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		asm.LoadMem(asm.R5, asm.R2, ethernet-2, asm.Half), asm.JNE.Imm(asm.R5, int32(binary.NativeEndian.Uint16([]byte{8, 0})), "pass"),
	}
	if policy == "all DNS" {
		code = append(code, asm.LoadMem(asm.R5, asm.R2, ports+2, asm.Half), asm.JEq.Imm(asm.R5, dnsPort53, "drop"))
	} else {
		code = append(code, asm.LoadMem(asm.R5, asm.R2, ethernet+16, asm.Word))
		for _, a := range []netip.Addr{steering4, local4} {
			code = append(code, asm.JEq.Imm32(asm.R5, int32(binary.NativeEndian.Uint32(a.AsSlice())), "drop"))
		}
	}
	code = append(code, asm.Mov.Imm(asm.R0, pass).WithSymbol("pass"), asm.Return(), asm.Mov.Imm(asm.R0, drop).WithSymbol("drop"), asm.Return())
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "policy", Type: kind, License: "Apache-2.0", Instructions: code})
	if err != nil {
		n.t.Fatalf("%+v", err)
	}
	defer program.Close()
	index := n.Host.Link(p.hostLink(n)).Attrs().Index
	var there link.Link
	n.Host.Do(func() {
		if kind == ebpf.XDP {
			there, err = link.AttachXDP(link.XDPOptions{Interface: index, Program: program, Flags: link.XDPGenericMode})
		} else {
			there, err = link.AttachTCX(link.TCXOptions{Interface: index, Program: program, Attach: ebpf.AttachTCXIngress})
		}
	})
	testutil.Must(n.t, err)
	return func() { there.Close() }
}

// party is who answers a pod's query for a name that the cache has.
type party string

const (
	byCache   party = "the cache"
	byKubeDNS party = "kube-dns"
	byNone    party = "no one"
)

func (p *pod) answeredBy(at target, name string) party {
	a, err := p.client().ask(at, name, retry)
	switch {
	case err != nil:
		return byNone
	case p.client().direct(a):
		return byKubeDNS
	}
	return byCache
}

// settled returns when the last query that another party answered than these ended, after a policy's change. It watches long enough to see
// that a pod stays where it is.
func (p *pod) settled(at target, name string, right ...party) time.Duration {
	from, last := time.Now(), time.Duration(0)
	for time.Since(from) < 2*policyLimit {
		if got := p.answeredBy(at, name); !slices.Contains(right, got) {
			last = time.Since(from)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return last
}

// policed is a pod that a policy is laid for, and what was measured of it.
type policed struct {
	*pod
	where, policy string
	allow         func()
	took          []float64 // seconds
}

// newPolicedNode is a node with the default installation, or one in the transparent arrangement, and what makes its pods.
func newPolicedNode(t *testing.T, transparent bool) (*node, func() *pod) {
	t.Helper()
	if transparent {
		n := newTransparentNode(t, setup{families: testutil.IPv4})
		translateAtSockets(t, n.pairs(), n.Host)
		return n, func() *pod {
			p := n.addOldPod()
			translateAtSockets(t, n.pairs(), p.NetNS)
			return p
		}
	}
	needBPF(t)
	n := newNode(t, setup{families: testutil.IPv4, proxy: testutil.IPTables, install: true, proven: true})
	return n, func() *pod { return n.makePod(true, nil) }
}

// TestTimingPolicies measures how soon the right party answers a pod after a policy came and after it went, for each place where a datapath
// may drop packets: from the pod's first query, and while it runs. Another pod without a policy is served by the cache all the time.
//
// State: TestKernelHitsEndWithThePath, TestKernelHitsNeedThePath, TestTransparentPolicy. Bound: TestSampleModel (internal/offload/bpf),
// TestNewPodUnderPolicy (agent/internal/pods/podstate).
func TestTimingPolicies(t *testing.T) {
	for arrangement, transparent := range map[string]bool{"steered": false, "transparent": true} {
		t.Run(arrangement, func(t *testing.T) {
			n, add := newPolicedNode(t, transparent)
			other, at, hot := add(), target{n.ClusterDNS()[0], "udp"}, "ttl-600."+freshName()
			n.launchAgent()
			n.wantInKernel(1, 0)
			n.heat(other, at, hot)
			stop, done := make(chan struct{}), sync.WaitGroup{}
			done.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(20 * time.Millisecond):
						if got := other.answeredBy(at, hot); got != byCache && !(transparent && got == byKubeDNS) { // a name that expires soon
							t.Errorf("a pod without a policy is answered by %s", got)
						}
					}
				}
			})
			var all []*policed
			for where := range wheres {
				for policy := range policies {
					if policy == "all DNS" || !transparent { // where kube-dns is allowed, such pods keep all that they query
						all = append(all, &policed{pod: nil, where: where, policy: policy})
					}
				}
			}
			for _, phase := range []string{"laid with the pod", "gone", "laid while it runs", "gone again"} {
				var wg sync.WaitGroup
				for _, c := range all {
					limit := policyLimit
					if c.pod == nil {
						c.pod = add()
					}
					right := c.change(n, phase, transparent)
					if right[0] == byCache {
						limit = returnLimit
					}
					wg.Go(func() {
						took := c.settled(at, hot, right...)
						c.took = append(c.took, took.Seconds())
						if took > limit+slack {
							t.Errorf("%s, %s, policy %s: %v do not answer within %s, but after %s", c.where, c.policy, phase, right, limit, took)
						}
					})
				}
				wg.Wait()
			}
			close(stop)
			done.Wait()
			for _, c := range all {
				t.Logf("| %s | %s | %s | %.1f |", c.where, arrangement, c.policy, c.took)
			}
		})
	}
}

// change lays a pod's policy, or takes it away, and returns who is to answer the pod from then on.
func (c *policed) change(n *node, phase string, transparent bool) (right []party) {
	n.t.Helper()
	switch {
	case strings.HasPrefix(phase, "laid"):
		c.allow = wheres[c.where](n, c.pod, c.policy)
		if c.policy == "all DNS" {
			return []party{byNone}
		}
		return []party{byKubeDNS}
	case transparent: // what the kernel does not answer is kube-dns's
		c.allow()
		return []party{byCache, byKubeDNS}
	}
	c.allow()
	return []party{byCache}
}
