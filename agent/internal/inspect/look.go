package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/node/link"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/portowners"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// picture takes the picture of a node that the doctor judges. What cannot be looked at is noted, and the rest is looked at.
func (l *Looker) picture(ctx context.Context) Picture {
	f := l.gather(ctx)
	defer f.close()
	want, up := f.want, f.up
	p := Picture{StateDir: want.Folders.State, Link: want.Link.Name, Unknown: l.Conf.Unknown(), External: up.Outside()}
	if l.Fault != nil {
		p.Config = append(p.Config, l.Fault.Error())
	}
	for _, err := range f.faults {
		p.Config = append(p.Config, err.Error())
	}
	if want.KernelAlone() {
		p.KernelAlone, p.KernelHitsOff = true, l.Conf.KernelHits.Mode == config.KernelHitsOff
	}
	if want.Server.FastPath {
		slow, err := corefile.SlowZones(want.Server.Config)
		if err != nil {
			p.Config = append(p.Config, err.Error())
		}
		for _, s := range slow {
			p.Slow = append(p.Slow, s.String())
		}
	}
	if p.KernelAlone {
		p.Upstreams, _ = l.ask(ctx, want, up)
		p.Agent, p.Resolv, p.Hosts, p.Folders = l.agent(f), l.resolvConf(up), l.hosts(time.Now()), folders(want)
		return p
	}
	for _, a := range want.Addresses() {
		p.Targets = append(p.Targets, Target{Address: a, Protocol: "udp"}, Target{Address: a, Protocol: "tcp"})
	}
	for _, r := range want.Redirects {
		p.ClusterDNS = append(p.ClusterDNS, r.ClusterDNS)
	}
	var asked sync.WaitGroup
	asked.Go(func() { p.Upstreams, p.Fallbacks = l.ask(ctx, want, up) })
	asked.Go(func() { p.Both = l.both(ctx, want) })
	p.Agent = l.agent(f)
	p.LinkDrift, p.LinkErr = linkOf(want)
	p.Sockets = sockets(p.Targets)
	lookAtRules(&p, f)
	l.firewall(&p, want)
	p.Resolv = l.resolvConf(up)
	p.Network = l.network(p.ClusterDNS)
	p.Watch = l.watch()
	p.Hosts = l.hosts(time.Now())
	lookAtPods(&p, f.pods)
	p.Kernel = kernelOf(p.Kernel.BridgePods, want)
	p.Folders = folders(want)
	asked.Wait()
	return p
}

// folders looks whether the agent's can be written.
func folders(want plan.Plan) (out []Folder) {
	for _, dir := range []string{want.Folders.State, want.Folders.Persist} {
		out = append(out, Folder{Path: dir, Err: unwritable(dir)})
	}
	return out
}

func (l *Looker) agent(f *facts) Agent {
	a := Agent{Holder: l.holder()}
	if f.agentErr != nil {
		a.Err, a.Unseen = f.agentErr.Error(), errors.Is(f.agentErr, fs.ErrPermission)
		return a
	}
	s := f.agent
	a.Instance, a.Since, a.Serving, a.Faults, a.Without, a.Reasons = s.Instance, s.Started, s.Serving, s.Faults, s.Without, map[Target]string{}
	a.CannotAsk, a.InKernel = s.CannotAsk, s.KernelHits
	for _, lease := range s.Leases {
		if !lease.Held {
			a.Reasons[Target{Address: lease.Address, Protocol: lease.Protocol}] = lease.Reason
		}
	}
	for _, b := range s.Bypassed {
		who := b.Pod
		if who == "" {
			who = b.Source.String()
		}
		if text := fmt.Sprintf("%s (to %s over %s)", who, b.Address, b.Protocol); !slices.Contains(a.Bypassed, text) {
			a.Bypassed = append(a.Bypassed, text)
		}
	}
	for _, u := range s.Upstreams {
		if u.Failing {
			a.Upstreams = append(a.Upstreams, fmt.Sprintf("%s fails (%s)", u.Server, u.Reason))
		}
		if len(u.Loops) > 0 {
			a.Upstreams = append(a.Upstreams, fmt.Sprintf("%s leads back to this node for %s", u.Server, strings.Join(u.Loops, ", ")))
		}
	}
	return a
}

// holder is the living process that the lock names. The lock itself is not tried: that would be in a starting agent's way.
func (l *Looker) holder() int {
	data, err := os.ReadFile(filepath.Join(l.Conf.StateDir, nodestate.AgentLockName))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(data), "process ")
	digits, _, _ := strings.Cut(after, " ")
	pid, err := strconv.Atoi(strings.Trim(digits, "\n,;:()"))
	if err != nil {
		return 0
	}
	name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	if err != nil || !strings.HasPrefix(string(name), "neardns") {
		return 0
	}
	return pid
}

func linkOf(want plan.Plan) (drift []string, failed string) {
	drift, err := link.Verify(link.Config{Name: want.Link.Name, Addresses: want.Addresses()})
	return drift, text(err)
}

// sockets lists those of other programs on port 53 of our addresses. Two agents are told apart by their locks.
func sockets(targets []Target) []Socket {
	var out []Socket
	said := map[string]bool{}
	for _, t := range targets {
		exact, wildcard, err := portowners.Find(t.Protocol, netip.AddrPortFrom(t.Address, 53))
		if err != nil {
			continue // no /proc: everything else says so too
		}
		for _, who := range exact {
			if !strings.HasPrefix(who, "neardns-agent ") {
				out = append(out, Socket{Target: t, Holder: who})
			}
		}
		for _, who := range wildcard {
			if key := who + t.Protocol; !said[key] {
				said[key] = true
				out = append(out, Socket{Target: t, Holder: who, Wildcard: true})
			}
		}
	}
	return out
}

func lookAtRules(p *Picture, f *facts) {
	proof, err := nodestate.ReadProof(f.want.Folders.Persist)
	p.Proven, p.ProvenErr = proof.ClusterDNS, text(err)
	p.Table.Present, p.Table.Err = f.present, text(f.tableErr)
	for _, held := range f.leases {
		p.Leases = append(p.Leases, Target{Address: held.Address, Protocol: held.Protocol.String()})
	}
	if !f.present || f.tableErr != nil {
		return
	}
	want, err := f.want.Host(f.pods, rules.Uplinks)
	if err != nil {
		p.Table.Err = err.Error()
		return
	}
	err = f.host.Verify(want)
	var drift *steer.DriftError
	if errors.As(err, &drift) {
		p.Table.Drift = drift.Items
	} else {
		p.Table.Err = text(err)
	}
}

// firewall looks at who else filters, and by the same list of chains at kube-proxy and other neighbours.
func (l *Looker) firewall(p *Picture, want plan.Plan) {
	kept, lacking, err := iptables.VerifyAccepts(want.Addresses())
	for _, k := range kept {
		p.Firewall.Kept = append(p.Firewall.Kept, k.String())
	}
	for _, k := range lacking {
		p.Firewall.Policies = append(p.Firewall.Policies, k.String())
	}
	others, otherErr := nft.Others(-1)
	p.Firewall.Err = text(errors.Join(err, otherErr))
	p.Proxy = Proxy{Mode: config.KubeProxyNone, Configured: l.Conf.KubeProxyMode, Err: text(otherErr)}
	names := map[string]bool{}
	for _, c := range others {
		base := c.Table == "filter" && c.Name == "INPUT" // its policy is known by now
		switch {
		case c.Input && c.Drops && !base && c.Table != "kube-proxy":
			p.Firewall.Chains = append(p.Firewall.Chains, c.String())
		case c.Table == "kube-proxy":
			p.Proxy.Mode = "nftables"
		case c.Table == "nat" && c.Name == "KUBE-SERVICES":
			p.Proxy.Mode = "iptables"
		}
		names[Firewalld] = names[Firewalld] || c.Table == "firewalld"
		names[Cilium] = names[Cilium] || strings.HasPrefix(c.Name, "CILIUM_")
	}
	slices.Sort(p.Firewall.Chains)
	if p.Proxy.Mode == config.KubeProxyNone && iptables.HasLegacyChain("nat", "KUBE-SERVICES") {
		p.Proxy.Mode = "iptables"
	}
	if services, err := os.ReadFile("/proc/thread-self/net/ip_vs"); err == nil && strings.Contains(string(services), "TCP ") {
		p.Proxy.Mode = "ipvs"
	}
	for link, name := range map[string]string{"nodelocaldns": NodeLocalDNS, "cilium_host": Cilium} {
		names[name] = names[name] || exists("/sys/class/net/"+link)
	}
	names[Resolved] = exists("/run/systemd/resolve/stub-resolv.conf")
	for name, seen := range names {
		if seen {
			p.Others = append(p.Others, name)
		}
	}
	slices.Sort(p.Others)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func lookAtPods(p *Picture, registry *pods.Pods) {
	found, errs := registry.Verify()
	for _, err := range errs {
		p.PodErrs = append(p.PodErrs, err.Error())
	}
	for _, v := range found {
		p.Pods = append(p.Pods, Pod{Name: pods.Name(v.File), State: v.State, Drift: v.Drift, Mesh: v.Mesh, Lost: lostIn(v.File), Err: text(v.Err), DNS: podDNSOf(v.File)})
		if i := v.File.HostInterface; i != "" && exists(filepath.Join("/sys/class/net", i, "bridge")) {
			p.Kernel.BridgePods = true
		}
	}
}

// lostIn is why a pod was given back, "" where it was not.
func lostIn(f podfile.File) string {
	for _, d := range f.Decisions {
		if len(d.Unanswered) > 0 {
			return d.Reason
		}
	}
	return ""
}

// podDNS is what a pod's file says about its DNS settings.
func podDNSOf(f podfile.File) PodDNS {
	var out PodDNS
	if f.DNS != nil {
		out.State, out.Reason = string(f.DNS.State), f.DNS.Reason
	}
	for _, i := range f.Ignored {
		out.Ignored = append(out.Ignored, i.What+" is ignored: "+i.Why)
	}
	return out
}

func kernelOf(bridgePods bool, want plan.Plan) Kernel {
	read := func(key string) string {
		data, err := os.ReadFile(filepath.Join("/proc/sys", strings.ReplaceAll(key, ".", "/")))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(data))
	}
	k := Kernel{BridgePods: bridgePods, BridgeNF: read("net.bridge.bridge-nf-call-iptables")}
	for _, r := range want.Redirects {
		key := "net.ipv6.conf.all.forwarding"
		if r.Is4() {
			key = "net.ipv4.ip_forward"
		}
		if read(key) == "0" && !slices.Contains(k.NoForward, key) {
			k.NoForward = append(k.NoForward, key)
		}
	}
	k.Conntracked, _ = strconv.Atoi(read("net.netfilter.nf_conntrack_count")) // without the module both are 0
	k.ConntrackOf, _ = strconv.Atoi(read("net.netfilter.nf_conntrack_max"))
	return k
}

// unwritable says why nothing can be written in a folder, without writing. One that is not there yet is judged by the
// folder that it will be made in.
func unwritable(dir string) string {
	for !exists(dir) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return err.Error()
	}
	switch err := unix.Access(dir, unix.W_OK); {
	case errors.Is(err, unix.EROFS):
		return "the file system is mounted read-only"
	case err != nil:
		return err.Error()
	case fs.Blocks > 0 && fs.Bavail == 0:
		return "the file system is full"
	case fs.Files > 0 && fs.Ffree == 0:
		return "the file system has no free inodes"
	}
	return ""
}
