package inspect

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/agent/internal/hostsfile"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil/golden"

	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/internal/offload/podlinks"
)

var (
	steering = netip.MustParseAddr("169.254.20.11")
	vip      = netip.MustParseAddr("10.96.0.10")
)

// healthy is a node on which all is well.
func healthy() Snapshot {
	targets := []Target{{steering, "udp"}, {steering, "tcp"}}
	return Snapshot{
		StateDir: "/run/neardns", Link: "neardns0", Targets: targets, Leases: targets, ClusterDNS: []netip.Addr{vip}, Verified: []netip.Addr{vip},
		Agent:     Agent{Instance: "abc", Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Serving: true, Holder: 7},
		Table:     Table{Present: true},
		Fallbacks: []QueryResult{{Server: "10.96.0.10", Role: "fallback"}},
		Proxy:     Proxy{Mode: "iptables", Configured: "auto"},
		Compared: []Comparison{{"kubernetes.default.svc.cluster.local. A", Reply{Code: "NOERROR", Records: []string{"10.96.0.1"}},
			Reply{Code: "NOERROR", Records: []string{"10.96.0.1"}}, netip.MustParseAddr("10.96.0.10")}},
		Upstreams: []QueryResult{{Server: "10.96.0.10:53", Role: "cluster", Took: 2 * time.Millisecond},
			{Server: "127.0.0.53:53", Role: "external", Took: time.Millisecond}},
		Resolv:  []ResolvConf{{Path: "/etc/resolv.conf", Servers: []netip.Addr{netip.MustParseAddr("127.0.0.53")}}},
		Network: Network{Folder: "/etc/cni/net.d", Effective: "/etc/cni/net.d/10-pods.conflist", Entry: true, Plugin: "/opt/cni/bin/neardns"},
		Pods:    []Pod{{Name: "pod default/web", State: "steered"}, {Name: "pod default/job", State: "gone"}},
		Kernel:  Kernel{Conntracked: 10, ConntrackOf: 1000},
		Folders: []Folder{{Path: "/run/neardns"}, {Path: "/var/lib/neardns"}},
	}
}

// snapshots are what can be wrong, each a change of the healthy node. Their texts are golden.
func snapshots() map[string]func(*Snapshot) {
	return map[string]func(*Snapshot){
		"healthy": func(*Snapshot) {},
		"no-agent": func(snap *Snapshot) {
			snap.Agent, snap.Leases = Agent{Err: "no agent runs on this node (connect: no such file or directory)"}, nil
		},
		"not-root": func(snap *Snapshot) {
			const denied = "operation not permitted"
			snap.Agent, snap.Leases = Agent{Err: "this user may not ask the agent (connect: permission denied)", Unseen: true}, nil
			snap.Table, snap.Firewall.Err, snap.Proxy.Err = Table{Err: denied}, denied, denied
		},
		"hung-agent": func(snap *Snapshot) {
			snap.Agent, snap.Leases = Agent{Err: "the agent does not answer: context deadline exceeded", Holder: 7}, nil
		},
		"nothing-installed": func(snap *Snapshot) {
			snap.Agent, snap.Leases, snap.Verified, snap.Table = Agent{Err: "no agent runs on this node"}, nil, nil, Table{}
			snap.LinkDrift, snap.Network = []string{"there is no such link"}, Network{Folder: "/etc/cni/net.d"}
			snap.Fallbacks[0].Err, snap.Upstreams[0].Err = "no answer within 2s", "no answer within 2s"
			snap.Proxy.Mode = "none"
		},
		"link-and-rules": func(snap *Snapshot) {
			snap.LinkDrift = []string{"it is down", "address 169.254.20.11 is missing", "192.0.2.7/32 on it is not ours"}
			snap.Table.Drift = []string{"chain switch4 lacks rule 2: goto fallback4", "set ours4 lacks 169.254.20.11", "counter probe is missing"}
			snap.Agent.Faults = map[string]string{"rules": "another program undid the repair 5 times within 10s"}
		},
		"pod-dns": func(snap *Snapshot) {
			bad := `annotation neardns.io/dns-params is ignored: line 1: "yes" is a word to some`
			snap.Pods = []Pod{
				{Name: "pod shop/a", State: "steered", DNS: PodDNS{State: "overlaid", Ignored: []string{bad}}},
				{Name: "pod shop/b", State: "steered", DNS: PodDNS{State: "as-given", Reason: "nothing of what is wanted can be had", Ignored: []string{bad}}},
				{Name: "pod shop/c", State: "steered", DNS: PodDNS{State: "overlaid", Ignored: []string{bad}}},
				{Name: "pod x/d", State: "gone", DNS: PodDNS{State: "failed", Reason: "gone"}},
				{Name: "pod x/e", State: "left-alone", DNS: PodDNS{State: "no-lever", Reason: "nobody there"}},
				{Name: "pod x/f", State: "left-alone", DNS: PodDNS{State: "waiting", Reason: "later"}},
				{Name: "pod x/g", State: "left-alone", DNS: PodDNS{State: "failed", Reason: "disk full"}},
				{Name: "pod x/h", State: "steered", DNS: PodDNS{State: "as-given", Reason: "resolvConf is off in the configuration"}},
			}
		},
		"kernel-hits": func(snap *Snapshot) { snap.Agent.InKernel = &node.KernelHits{Pods: 3, Lent: 40} },
		"kernel-hits-not": func(snap *Snapshot) {
			snap.Agent.InKernel = &node.KernelHits{Fault: "load the program: operation not permitted", Refused: []podlinks.Refused{
				{Pod: "shop/web", Why: "it is bypassed, kube-dns answers it"}}}
		},
		"transparent": func(snap *Snapshot) {
			snap.KernelAlone, snap.Leases, snap.Targets, snap.Table = true, nil, nil, Table{}
			snap.Agent.InKernel = &node.KernelHits{Pods: 3, Lent: 40, Served: []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:53"), netip.MustParseAddrPort("10.244.2.2:53")}}
		},
		"transparent-off": func(snap *Snapshot) { snap.KernelAlone, snap.KernelHitsOff, snap.Table = true, true, Table{} },
		"transparent-fails": func(snap *Snapshot) {
			snap.KernelAlone, snap.Table = true, Table{}
			snap.Agent.InKernel = &node.KernelHits{Fault: "load the program: operation not permitted"}
		},
		"pod-dns-laid": func(snap *Snapshot) { snap.Pods[0].DNS.State = "handed-on" },
		"table-gone":   func(snap *Snapshot) { snap.Table = Table{}; snap.Leases = nil },
		"port-taken": func(snap *Snapshot) {
			snap.Leases, snap.Agent.Serving = nil, false
			snap.Agent.Faults = map[string]string{"server": "listen on udp 169.254.20.11:53: address already in use: held by dnsmasq (pid 9)"}
			snap.Agent.Reasons = map[Target]string{snap.Targets[0]: "not proven yet", snap.Targets[1]: "not proven yet"}
			snap.Sockets = []Socket{{Target: snap.Targets[0], Holder: "dnsmasq (pid 9)"}, {Target: snap.Targets[1], Wildcard: true}}
		},
		"firewall": func(snap *Snapshot) {
			snap.Leases = snap.Leases[1:]
			snap.Agent.Reasons = map[Target]string{snap.Targets[0]: "no answer: the agent hangs, or a firewall on this node (its INPUT) drops what pods send to it"}
			snap.Firewall = Firewall{Policies: []string{"iptables filter INPUT policy DROP"}, Chains: []string{"inet foreign input"}}
			snap.Others = []string{Firewalld}
		},
		"firewall-let-through": func(snap *Snapshot) {
			snap.Firewall = Firewall{Kept: []string{"iptables filter INPUT policy DROP"}}
			snap.Others = []string{Firewalld, Resolved}
		},
		"slim": func(snap *Snapshot) {
			snap.Agent.Without = []string{"iptables-nft, iptables-legacy: no rules can be kept where the policy of its filter table is DROP"}
		},
		"fallback-fails": func(snap *Snapshot) {
			snap.Agent.Faults = map[string]string{"fallback 10.96.0.10": "prove the fallback to 10.96.0.10 over udp: no answer"}
			snap.Fallbacks[0].Err = "no answer within 2s"
		},
		"fallback-unproven": func(snap *Snapshot) { snap.Verified = nil },
		"upstreams": func(snap *Snapshot) {
			snap.Upstreams = []QueryResult{
				{Server: "10.96.0.10:53", Role: "cluster", Err: "server misbehaving"},
				{Server: "169.254.20.11:53", Role: "external", Own: true}, {Server: "127.0.0.53:53", Role: "external", Err: "connection refused"},
			}
			snap.Agent.Upstreams = []string{"192.0.2.53:53 leads back to this node for ."}
			snap.Resolv = append(snap.Resolv, ResolvConf{Path: "/etc/other", Err: "/etc/other names no server"})
			snap.Config = []string{"upstreams.external: 169.254.20.10 is an address of the agent itself"}
		},
		"answers": func(snap *Snapshot) {
			at := netip.MustParseAddr("10.96.0.10")
			said := func(code string, records ...string) Reply { return Reply{Code: code, Records: records} }
			snap.Compared = []Comparison{
				{"same.example. A", said("NOERROR", "192.0.2.1"), said("NOERROR", "192.0.2.1"), at},
				{"turns.example. A", said("NOERROR", "192.0.2.1", "192.0.2.2"), said("NOERROR", "192.0.2.2", "192.0.2.3"), at},
				{"dead.example. A", said("SERVFAIL"), Reply{Err: "no answer"}, at},
				{"corp.local. A", said("NXDOMAIN"), said("NOERROR", "10.9.9.9"), at},
				{"other.example. A", said("NOERROR", "192.0.2.1"), said("NOERROR", "10.0.0.1", "10.0.0.2", "10.0.0.3"), at},
				{"empty.example. A", said("NOERROR"), said("NXDOMAIN"), at},
				{"fails.example. A", said("SERVFAIL"), said("NOERROR", "192.0.2.1"), at},
			}
			snap.External = "the servers of the configuration"
		},
		"answers-without-agent": func(snap *Snapshot) {
			snap.Compared = []Comparison{{"kubernetes.default.svc.cluster.local. A", Reply{Err: "connection refused"},
				Reply{Code: "NOERROR", Records: []string{"10.96.0.1"}}, netip.MustParseAddr("10.96.0.10")}}
		},
		"config": func(snap *Snapshot) {
			snap.Config = []string{"the file has a fault, and the agent serves by the one before: node.yaml:4:1: redirects: has no value: give it one or " +
				"take the key out"}
			snap.Unknown = []string{`node.yaml:5:1: unknown field "upstream": did you mean "upstreams"?`}
			snap.External = "kube-dns, because its Corefile has the zone corp.example, line 12"
			snap.Slow = []string{"hits of example.org go through CoreDNS: log sees each question"}
		},
		"cannot-ask-output": func(snap *Snapshot) {
			snap.Leases = nil
			snap.Agent.CannotAsk = "the agent cannot ask for cluster.local from this node: 10.96.0.10:53 over tcp: silent; 10.96.0.10:53 over udp: " +
				"operation not permitted"
			snap.Agent.Faults = map[string]string{"asking": snap.Agent.CannotAsk}
			snap.Agent.Reasons = map[Target]string{snap.Targets[0]: "the agent cannot ask what pods need asked",
				snap.Targets[1]: "the agent cannot ask what pods need asked"}
		},
		"cannot-ask-route": func(snap *Snapshot) {
			snap.Agent.CannotAsk = "the agent cannot ask for cluster.local from this node: 10.96.0.10:53 over tcp: network is unreachable; 10.96.0.10:53 " +
				"over udp: network is unreachable"
		},
		"cannot-ask-policy": func(snap *Snapshot) {
			snap.Agent.CannotAsk = "the agent cannot ask for cluster.local from this node: 10.96.0.10:53 over tcp: silent; 10.96.0.10:53 over udp: silent"
		},
		"cannot-ask-acl": func(snap *Snapshot) {
			snap.Agent.CannotAsk = "the agent cannot ask for cluster.local from this node: 10.96.0.10:53 over tcp: REFUSED"
		},
		"cannot-ask-outage": func(snap *Snapshot) {
			snap.Agent.CannotAsk = "the agent cannot ask for cluster.local from this node: 10.96.0.10:53 over tcp: silent; 10.96.0.10:53 over udp: silent"
			snap.Agent.Faults = map[string]string{"asking": snap.Agent.CannotAsk, "fallback 10.96.0.10": "prove the fallback to 10.96.0.10 over udp: no answer"}
			snap.Fallbacks[0].Err, snap.Upstreams[0].Err = "no answer within 2s", "no answer within 2s"
		},
		"conflist": func(snap *Snapshot) {
			snap.Network.Entry, snap.Network.Elsewhere = false, []string{"/etc/cni/net.d/20-old.conflist"}
		},
		"watch-fault": func(snap *Snapshot) {
			snap.Watch = Watch{Present: true, Fault: "no network is configured in /etc/cni/net.d yet"}
			snap.Network.Err = "eperm"
		},
		"watch-fights": func(snap *Snapshot) { snap.Watch = Watch{Present: true, Fighting: true, Repairs: 5} },
		"conflist-not-seen": func(snap *Snapshot) { // from the agent's container
			snap.Network, snap.Watch = Network{Err: "open /etc/cni/net.d: no such file or directory"}, Watch{Present: true, Network: "cbr0"}
		},
		"watch-silent": func(snap *Snapshot) { snap.Watch = Watch{Present: true, Age: 90 * time.Minute} },
		"hosts": func(snap *Snapshot) {
			line := func(standing hostsfile.Standing, name, failed string, addresses ...string) HostsLine {
				return HostsLine{nodestate.HostsService{Name: name, Addresses: addresses, Failed: failed}, standing}
			}
			snap.Hosts = Hosts{Present: true, Fighting: true, Repairs: 12,
				Fault: "/host/etc/hosts is empty, and is left alone", Services: []HostsLine{
					line(hostsfile.Current, "shop/registry", "", "10.96.0.5", "fd00:10:96::5"), line(hostsfile.Missing, "shop/none", ""),
					line(hostsfile.Missing, "shop/late", "10.96.0.10:53: no answer over udp"), line(hostsfile.Stale, "shop/old", "10.96.0.10:53: it answers SERVFAIL", "10.96.0.6"),
					line(hostsfile.Foreign, "shop/theirs", "", "10.96.0.7")}}
			snap.Hosts.Services[4].Left = []string{"theirs.shop.svc"}
		},
		"hosts-ended":  func(snap *Snapshot) { snap.Hosts = Hosts{Present: true, Ended: true, Age: 90 * time.Second} },
		"hosts-silent": func(snap *Snapshot) { snap.Hosts = Hosts{Present: true, Age: time.Hour} },
		"plugin-missing": func(snap *Snapshot) {
			snap.Network.Missing, snap.Network.PluginErr = []string{"10.96.0.10"}, "it is not executable"
		},
		"pods": func(snap *Snapshot) {
			snap.Pods = append(snap.Pods, Pod{Name: "pod default/flushed", State: "steered", Drift: []string{"table inet neardns is missing or empty"}},
				Pod{Name: "pod default/meshed", State: "steered", Mesh: true}, Pod{Name: "pod default/odd", State: "steered", Err: "permission denied"})
			snap.Pods = append(snap.Pods, Pod{Name: "pod default/lost", State: "given-back", Lost: "its questions to 169.254.20.11 over udp are not answered"})
			snap.Agent.Bypassed = []string{"pod default/walled (10.244.1.7)"}
			snap.PodErrs = []string{"read /run/neardns/pods/x.json: unexpected end of JSON input"}
		},
		"kernel": func(snap *Snapshot) {
			snap.Kernel = Kernel{NoForward: []string{"net.ipv4.ip_forward"}, BridgePods: true, BridgeNF: "0", Conntracked: 960, ConntrackOf: 1000}
			snap.Folders[0].Err = "the file system is full"
			snap.Folders[1].Err = "the file system is mounted read-only"
			snap.Others = []string{Cilium, NodeLocalDNS}
			snap.Proxy = Proxy{Mode: "nftables", Configured: "ipvs"}
		},
		"unseen": func(snap *Snapshot) {
			snap.LinkErr, snap.Table.Err, snap.Firewall.Err, snap.Proxy.Err, snap.Network.Err = "eperm", "eperm", "eperm", "eperm", "eperm"
		},
	}
}

func TestTexts(t *testing.T) {
	for name, change := range snapshots() {
		t.Run(name, func(t *testing.T) {
			snap := healthy()
			change(&snap)
			golden.Check(t, name+".txt", Diagnose(snap).Text())
		})
	}
}

// TestEveryFaultIsReported holds that a snapshot with a fault is never good, that each fault has a remedy, and that no check is silent.
func TestEveryFaultIsReported(t *testing.T) {
	warnOnly := map[string]bool{"healthy": true, "slim": true, "firewall-let-through": true, "fallback-unproven": true, "pods": true, "unseen": true,
		"watch-fights": true, "watch-silent": true, "conflist-not-seen": true, "pod-dns": true, "pod-dns-laid": true, "answers": true,
		"answers-without-agent": true, "hosts-ended": true, "hosts-silent": true, "kernel-hits": true, "kernel-hits-not": true,
		"transparent": true, "transparent-off": true, "transparent-fails": true}
	var checks []string
	for name, change := range snapshots() {
		snap := healthy()
		change(&snap)
		r := Diagnose(snap)
		if r.Good != warnOnly[name] {
			t.Errorf("%s: good %t: %s", name, r.Good, r.Verdict)
		}
		seen := map[string]bool{}
		for _, f := range r.Findings {
			seen[f.Check] = true
			if (f.State == OK) != (f.Do == "") {
				t.Errorf("%s: %s is %s and says to do %q", name, f.Check, f.State, f.Do)
			}
			if strings.Contains(f.What, "%!") || f.What == "" {
				t.Errorf("%s: %s says %q", name, f.Check, f.What)
			}
		}
		if len(checks) == 0 && !snap.KernelAlone {
			for c := range seen {
				checks = append(checks, c)
			}
		}
		want := checks
		if snap.KernelAlone { // the rest has nothing to look at
			want = checksOfKernelAlone()
		}
		for _, c := range want {
			if !seen[c] {
				t.Errorf("%s: no finding of %s", name, c)
			}
		}
		if lines := strings.Count(r.Text(), "\n"); lines != len(r.Findings)+2 {
			t.Errorf("%s: %d lines for %d findings", name, lines, len(r.Findings))
		}
	}
}
