package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/dns"
	"github.com/neardns/neardns/agent/internal/doctor"
	"github.com/neardns/neardns/agent/internal/link"
	"github.com/neardns/neardns/agent/internal/plan"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/backend"
	"github.com/neardns/neardns/pkg/steer/iptables"
)

// looker takes the picture of a node that the doctor judges. What cannot be looked at is noted, and the rest is looked at.
type looker struct {
	env             env
	conf            *config.Node
	fault           error // of its file, where the agent serves by the one before
	cniConf, cniBin string
	want            plan.Plan // as far as the configuration gives it
	pods            *pods.Pods
	backend         backend.Kind
}

func (l *looker) picture(ctx context.Context) doctor.Picture {
	p := doctor.Picture{StateDir: l.conf.StateDir, Link: l.conf.Link.Name, Unknown: l.conf.Unknown()}
	if l.fault != nil {
		p.Config = append(p.Config, l.fault.Error())
	}
	k, backendErr := installed(l.conf.StateDir)
	l.backend, l.pods = k, pods.Open(l.conf.StateDir, k, discardLog())
	want, up, err := plan.Read(l.conf, l.env.readFile, "doctor")
	if err != nil {
		p.Config = append(p.Config, err.Error())
	}
	if want, err = want.On(k); err != nil {
		p.Config = append(p.Config, err.Error())
	}
	if backendErr != nil {
		p.Config = append(p.Config, backendErr.Error())
	}
	l.want = want
	p.External = up.Outside()
	for _, a := range want.Addresses() {
		p.Targets = append(p.Targets, doctor.Target{Address: a, Protocol: "udp"}, doctor.Target{Address: a, Protocol: "tcp"})
	}
	for _, r := range want.Redirects {
		p.ClusterDNS = append(p.ClusterDNS, r.ClusterDNS)
	}
	var asked sync.WaitGroup
	asked.Go(func() { p.Upstreams, p.Fallbacks = l.ask(ctx, want, up) })
	asked.Go(func() { p.Both = l.both(ctx, want) })
	p.Agent = l.agent(ctx)
	p.LinkDrift, p.LinkErr = l.link()
	p.Sockets = sockets(p.Targets)
	l.rules(&p)
	l.firewall(&p)
	p.Resolv = l.resolvConf(up)
	p.Network = l.network(p.ClusterDNS)
	p.Watch = l.watch()
	l.lookAtPods(&p)
	p.Kernel = l.kernel(p.Kernel.BridgePods)
	for _, dir := range []string{l.conf.StateDir, l.conf.PersistDir} {
		p.Folders = append(p.Folders, doctor.Folder{Path: dir, Err: unwritable(dir)})
	}
	asked.Wait()
	return p
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (l *looker) agent(ctx context.Context) doctor.Agent {
	a := doctor.Agent{Holder: l.holder()}
	s, err := askAgent(ctx, filepath.Join(l.conf.StateDir, socketName))
	if err != nil {
		a.Err = err.Error()
		return a
	}
	a.Instance, a.Since, a.Serving, a.Faults, a.Without, a.Reasons = s.Instance, s.Started, s.Serving, s.Faults, s.Without, map[doctor.Target]string{}
	a.CannotAsk = s.CannotAsk
	for _, lease := range s.Leases {
		if !lease.Held {
			a.Reasons[doctor.Target{Address: lease.Address, Protocol: lease.Protocol}] = lease.Reason
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
func (l *looker) holder() int {
	data, err := os.ReadFile(filepath.Join(l.conf.StateDir, lockName))
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

func (l *looker) link() (drift []string, failed string) {
	drift, err := link.Verify(link.Config{Name: l.conf.Link.Name, Addresses: l.want.Addresses()})
	return drift, text(err)
}

// sockets lists those of other programs on port 53 of our addresses. Two agents are told apart by their locks.
func sockets(targets []doctor.Target) []doctor.Socket {
	var out []doctor.Socket
	said := map[string]bool{}
	for _, t := range targets {
		exact, wildcard, err := dns.Listening(t.Protocol, netip.AddrPortFrom(t.Address, 53))
		if err != nil {
			continue // no /proc: everything else says so too
		}
		for _, who := range exact {
			if !strings.HasPrefix(who, "neardns-agent ") {
				out = append(out, doctor.Socket{Target: t, Holder: who})
			}
		}
		for _, who := range wildcard {
			if key := who + t.Protocol; !said[key] {
				said[key] = true
				out = append(out, doctor.Socket{Target: t, Holder: who, Wildcard: true})
			}
		}
	}
	return out
}

func (l *looker) rules(p *doctor.Picture) {
	proof, err := podfile.ReadProof(l.conf.PersistDir)
	p.Proven, p.ProvenErr = proof.ClusterDNS, text(err)
	rules, err := l.backend.OpenHost(-1)
	if err != nil {
		p.Table.Err = err.Error()
		return
	}
	defer rules.Close() //nolint:errcheck // only read
	if p.Table.Present, err = rules.Present(); err != nil || !p.Table.Present {
		p.Table.Err = text(err)
		return
	}
	leases, err := rules.Leases(l.conf.Lease.Renew, l.conf.Lease.Lifetime)
	for _, held := range leases {
		p.Leases = append(p.Leases, doctor.Target{Address: held.Address, Protocol: held.Protocol.String()})
	}
	want, uplinkErr := l.want.Host(l.pods, steer.Uplinks)
	if err = errors.Join(err, uplinkErr); err != nil {
		p.Table.Err = err.Error()
		return
	}
	err = rules.Verify(want)
	var drift *steer.DriftError
	if errors.As(err, &drift) {
		p.Table.Drift = drift.Items
	} else {
		p.Table.Err = text(err)
	}
}

// firewall looks at who else filters, and by the same list of chains at kube-proxy and other neighbours.
func (l *looker) firewall(p *doctor.Picture) {
	kept, lacking, err := iptables.VerifyAccepts(l.want.Addresses())
	for _, k := range kept {
		p.Firewall.Kept = append(p.Firewall.Kept, k.String())
	}
	for _, k := range lacking {
		p.Firewall.Policies = append(p.Firewall.Policies, k.String())
	}
	others, otherErr := steer.Others(-1)
	p.Firewall.Err = text(errors.Join(err, otherErr))
	p.Proxy = doctor.Proxy{Mode: config.KubeProxyNone, Configured: l.conf.KubeProxyMode, Err: text(otherErr)}
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
		names[doctor.Firewalld] = names[doctor.Firewalld] || c.Table == "firewalld"
		names[doctor.Cilium] = names[doctor.Cilium] || strings.HasPrefix(c.Name, "CILIUM_")
	}
	slices.Sort(p.Firewall.Chains)
	if p.Proxy.Mode == config.KubeProxyNone && iptables.HasLegacyChain("nat", "KUBE-SERVICES") {
		p.Proxy.Mode = "iptables"
	}
	if services, err := os.ReadFile("/proc/thread-self/net/ip_vs"); err == nil && strings.Contains(string(services), "TCP ") {
		p.Proxy.Mode = "ipvs"
	}
	for link, name := range map[string]string{"nodelocaldns": doctor.NodeLocalDNS, "cilium_host": doctor.Cilium} {
		names[name] = names[name] || exists("/sys/class/net/"+link)
	}
	names[doctor.Resolved] = exists("/run/systemd/resolve/stub-resolv.conf")
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

func (l *looker) lookAtPods(p *doctor.Picture) {
	found, errs := l.pods.Verify()
	for _, err := range errs {
		p.PodErrs = append(p.PodErrs, err.Error())
	}
	for _, v := range found {
		p.Pods = append(p.Pods, doctor.Pod{Name: pods.Name(v.File), State: v.State, Drift: v.Drift, Mesh: v.Mesh, Lost: lostIn(v.File), Err: text(v.Err), DNS: podDNS(v.File)})
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
func podDNS(f podfile.File) doctor.PodDNS {
	var out doctor.PodDNS
	if f.DNS != nil {
		out.State, out.Reason = string(f.DNS.State), f.DNS.Reason
	}
	for _, i := range f.Ignored {
		out.Ignored = append(out.Ignored, i.What+" is ignored: "+i.Why)
	}
	return out
}

func (l *looker) kernel(bridgePods bool) doctor.Kernel {
	read := func(key string) string {
		data, err := os.ReadFile(filepath.Join("/proc/sys", strings.ReplaceAll(key, ".", "/")))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(data))
	}
	k := doctor.Kernel{BridgePods: bridgePods, BridgeNF: read("net.bridge.bridge-nf-call-iptables")}
	for _, r := range l.want.Redirects {
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
