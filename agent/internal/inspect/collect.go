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

// snapshot collects what the doctor judges. What cannot be read is noted, and the rest is collected.
func (in *Inspector) snapshot(ctx context.Context) Snapshot {
	f := in.collect(ctx)
	defer f.close()
	want, up := f.want, f.up
	snap := Snapshot{StateDir: want.Folders.State, Link: want.Link.Name, Unknown: in.Conf.Unknown(), External: up.Outside()}
	if in.Fault != nil {
		snap.Config = append(snap.Config, in.Fault.Error())
	}
	for _, err := range f.faults {
		snap.Config = append(snap.Config, err.Error())
	}
	if want.KernelAlone() {
		snap.KernelAlone, snap.KernelHitsOff = true, in.Conf.KernelHits.Mode == config.KernelHitsOff
	}
	if want.Server.FastPath {
		slow, err := corefile.SlowZones(want.Server.Config)
		if err != nil {
			snap.Config = append(snap.Config, err.Error())
		}
		for _, s := range slow {
			snap.Slow = append(snap.Slow, s.String())
		}
	}
	if snap.KernelAlone {
		snap.Upstreams, _ = in.queryServers(ctx, want, up)
		snap.Agent, snap.Resolv, snap.Hosts, snap.Folders = in.agent(f), in.resolvConf(up), in.hosts(time.Now()), folders(want)
		return snap
	}
	for _, a := range want.Addresses() {
		snap.Targets = append(snap.Targets, Target{Address: a, Protocol: "udp"}, Target{Address: a, Protocol: "tcp"})
	}
	for _, r := range want.Redirects {
		snap.ClusterDNS = append(snap.ClusterDNS, r.ClusterDNS)
	}
	var queries sync.WaitGroup
	queries.Go(func() { snap.Upstreams, snap.Fallbacks = in.queryServers(ctx, want, up) })
	queries.Go(func() { snap.Compared = in.compare(ctx, want) })
	snap.Agent = in.agent(f)
	snap.LinkDrift, snap.LinkErr = linkOf(want)
	snap.Sockets = sockets(snap.Targets)
	collectRules(&snap, f)
	others, err := nft.Others(-1)
	snap.Firewall, snap.Proxy, snap.Others = firewall(want, others, err), kubeProxy(in.Conf.KubeProxyMode, others, err), neighbours(others)
	snap.Resolv = in.resolvConf(up)
	snap.Network = in.network(snap.ClusterDNS)
	snap.Watch = in.watch()
	snap.Hosts = in.hosts(time.Now())
	collectPods(&snap, f.pods)
	snap.Kernel = kernelOf(snap.Kernel.BridgePods, want)
	snap.Folders = folders(want)
	queries.Wait()
	return snap
}

// folders reports whether the agent's folders can be written.
func folders(want plan.Plan) (out []Folder) {
	for _, dir := range []string{want.Folders.State, want.Folders.Persist} {
		out = append(out, Folder{Path: dir, Err: unwritable(dir)})
	}
	return out
}

func (in *Inspector) agent(f *basics) Agent {
	a := Agent{Holder: in.holder()}
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

// holder is the running process that the lock file names. The lock itself is not tried: a starting agent may want it.
func (in *Inspector) holder() int {
	data, err := os.ReadFile(filepath.Join(in.Conf.StateDir, nodestate.AgentLockName))
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

// sockets lists other programs' sockets on port 53 of our addresses. The lock tells two agents apart.
func sockets(targets []Target) []Socket {
	var out []Socket
	listed := map[string]bool{}
	for _, t := range targets {
		exact, wildcard, err := portowners.Find(t.Protocol, netip.AddrPortFrom(t.Address, 53))
		if err != nil {
			continue // no /proc: all other checks report it
		}
		for _, who := range exact {
			if !strings.HasPrefix(who, "neardns-agent ") {
				out = append(out, Socket{Target: t, Holder: who})
			}
		}
		for _, who := range wildcard {
			if key := who + t.Protocol; !listed[key] {
				listed[key] = true
				out = append(out, Socket{Target: t, Holder: who, Wildcard: true})
			}
		}
	}
	return out
}

func collectRules(snap *Snapshot, f *basics) {
	proof, err := nodestate.ReadProof(f.want.Folders.Persist)
	snap.Verified, snap.VerifiedErr = proof.ClusterDNS, text(err)
	snap.Table.Present, snap.Table.Err = f.present, text(f.tableErr)
	for _, held := range f.leases {
		snap.Leases = append(snap.Leases, Target{Address: held.Address, Protocol: held.Protocol.String()})
	}
	if !f.present || f.tableErr != nil {
		return
	}
	want, err := f.want.Host(f.pods, rules.Uplinks)
	if err != nil {
		snap.Table.Err = err.Error()
		return
	}
	err = f.host.Verify(want)
	var drift *steer.DriftError
	if errors.As(err, &drift) {
		snap.Table.Drift = drift.Items
	} else {
		snap.Table.Err = text(err)
	}
}

// firewall finds the rules of others that may drop packets to our addresses.
func firewall(want plan.Plan, others []nft.Chain, err error) Firewall {
	kept, lacking, acceptErr := iptables.VerifyAccepts(want.Addresses())
	f := Firewall{Kept: texts(kept), Policies: texts(lacking), Err: text(errors.Join(acceptErr, err))}
	for _, c := range others {
		policy := c.Table == "filter" && c.Name == "INPUT" // VerifyAccepts has it
		if c.Input && c.Drops && !policy && c.Table != "kube-proxy" {
			f.Chains = append(f.Chains, c.String())
		}
	}
	slices.Sort(f.Chains)
	return f
}

// kubeProxy recognizes kube-proxy's mode by its chains, and IPVS by its Services.
func kubeProxy(configured string, others []nft.Chain, err error) Proxy {
	mode := config.KubeProxyNone
	for _, c := range others {
		switch {
		case c.Table == "kube-proxy":
			mode = config.KubeProxyNftables
		case c.Table == "nat" && c.Name == "KUBE-SERVICES":
			mode = config.KubeProxyIptables
		}
	}
	if mode == config.KubeProxyNone && iptables.HasLegacyChain("nat", "KUBE-SERVICES") {
		mode = config.KubeProxyIptables
	}
	if services, err := os.ReadFile("/proc/thread-self/net/ip_vs"); err == nil && strings.Contains(string(services), "TCP ") {
		mode = config.KubeProxyIPVS
	}
	return Proxy{Mode: mode, Configured: configured, Err: text(err)}
}

// neighbours lists programs on the node that may interfere.
func neighbours(others []nft.Chain) (names []string) {
	hasChain := func(match func(nft.Chain) bool) bool { return slices.ContainsFunc(others, match) }
	for _, program := range []struct {
		name string
		seen bool
	}{
		{Cilium, exists("/sys/class/net/cilium_host") || hasChain(func(c nft.Chain) bool { return strings.HasPrefix(c.Name, "CILIUM_") })},
		{Firewalld, hasChain(func(c nft.Chain) bool { return c.Table == "firewalld" })},
		{NodeLocalDNS, exists("/sys/class/net/nodelocaldns")},
		{Resolved, exists("/run/systemd/resolve/stub-resolv.conf")},
	} {
		if program.seen {
			names = append(names, program.name)
		}
	}
	return names
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func collectPods(snap *Snapshot, registry *pods.Pods) {
	found, errs := registry.Verify()
	for _, err := range errs {
		snap.PodErrs = append(snap.PodErrs, err.Error())
	}
	for _, v := range found {
		snap.Pods = append(snap.Pods, Pod{Name: pods.Name(v.File), State: v.State, Drift: v.Drift, Mesh: v.Mesh, Lost: lostIn(v.File),
			Err: text(v.Err), DNS: podDNSOf(v.File)})
		if i := v.File.HostInterface; i != "" && exists(filepath.Join("/sys/class/net", i, "bridge")) {
			snap.Kernel.BridgePods = true
		}
	}
}

// lostIn is why a pod is bypassed, "" if it is not.
func lostIn(f podfile.File) string {
	for _, d := range f.Decisions {
		if len(d.Unanswered) > 0 {
			return d.Reason
		}
	}
	return ""
}

// podDNSOf is what a pod's file has about its DNS settings.
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

// unwritable is why a folder cannot be written; it does not write. A folder that does not exist yet is judged by its parent.
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
