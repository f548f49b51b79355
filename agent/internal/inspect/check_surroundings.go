package inspect

import (
	"net"
	"slices"
	"strings"
	"time"
)

func checkKubeProxy(snap Snapshot, f *findings) {
	switch x := snap.Proxy; {
	case x.Err != "":
		f.unseen(x.Err)
	case x.Mode == "none" && x.Configured == "none":
		f.ok("none, as configured: no pod is steered")
	case x.Mode == "none":
		f.add(Warn, "if another program translates Service addresses in this host's netfilter, the fallback check shows it; if eBPF does, "+
			"no pod "+
			"can be steered: apply install/overlays/transparent, or set kubeProxyMode: none", "no rules of kube-proxy found")
	case x.Configured != "" && x.Configured != "auto" && x.Configured != x.Mode:
		f.add(Warn, "set kubeProxyMode to "+x.Mode+", or remove the key", "its rules are %s, the configuration has %s", x.Mode, x.Configured)
	default:
		f.ok("its rules are %s", x.Mode)
	}
}

func checkConfig(snap Snapshot, f *findings) {
	for _, c := range snap.Config {
		f.add(Fail, "correct the configuration", "%s", c)
	}
	for _, u := range snap.Unknown {
		f.add(Warn, "correct or remove the key; it has no effect", "%s", u)
	}
	if f.silent() {
		f.ok("no fault found")
	}
	for _, s := range snap.Slow {
		f.ok("%s", s)
	}
}

func checkUpstreams(snap Snapshot, f *findings) {
	for _, a := range snap.Upstreams {
		switch {
		case a.Own:
			f.add(Fail, "name the server behind it instead", "%s (%s) is an address of this agent: its queries would come back to it",
				a.Server, a.Role)
		case a.Err != "":
			f.add(Fail, "check that server and the path to it; the cache serves its entries meanwhile, for as long as cache.serveStale allows",
				"%s (%s) does not answer: %s", a.Server, a.Role, a.Err)
		default:
			f.ok("%s (%s) answers in %s", a.Server, a.Role, a.Took.Round(time.Millisecond))
		}
	}
	if why := snap.Agent.CannotAsk; why != "" {
		f.add(Fail, remedyForUpstreams(snap, why), "%s", why)
	}
	if w := snap.Agent.Faults["upstreams"]; w != "" && len(snap.Agent.Upstreams) == 0 {
		f.add(Warn, "check what it names", "the agent reports: %s", w)
	}
	for _, u := range snap.Agent.Upstreams {
		f.add(Warn, "check that server: the others get the queries meanwhile", "the agent reports: %s", u)
	}
	if f.silent() && len(snap.Config) == 0 {
		f.add(Warn, "name some in the configuration", "there are none")
	}
	if snap.External != "" {
		f.ok("names outside of the cluster: %s", snap.External)
	}
}

// checkAnswers compares the answers that pods get with those of kube-dns.
func checkAnswers(snap Snapshot, f *findings) {
	const do = "if kube-dns is right, remove upstreams.external (auto) or write [], and remove stubDomains that it has otherwise; a " +
		"name that " +
		"has just changed differs until its TTL ends"
	if len(snap.Compared) == 0 {
		f.ok("nothing to compare: no query is steered to the agent")
		return
	}
	// If no agent runs, its addresses may lead out of the node, to any server.
	if snap.Agent.Err != "" || !slices.ContainsFunc(snap.Compared, func(c Comparison) bool { return c.Agent.Err == "" }) {
		f.ok("nothing to compare: no agent answers")
		return
	}
	if !slices.ContainsFunc(snap.Compared, func(c Comparison) bool { return c.KubeDNS.Err == "" }) {
		f.ok("nothing to compare: kube-dns does not answer this host")
		return
	}
	for _, c := range snap.Compared {
		if c.differs() {
			f.add(Warn, do, "%s: the agent answers %s, kube-dns (%s) answers %s", c.Name, c.Agent, c.KubeDNSAt, c.KubeDNS)
		}
	}
	if f.silent() {
		f.ok("the agent and kube-dns give the same answers to %d queries", len(snap.Compared))
	}
}

// remedyForUpstreams finds by the kernel's error what keeps the node, and not its pods, from kube-dns.
func remedyForUpstreams(snap Snapshot, why string) string {
	switch {
	case strings.Contains(why, "not permitted"):
		return "let the host itself query kube-dns: its firewall's OUTPUT drops udp and tcp port 53 to the cluster DNS address or to kube-dns's pods (`nft list " +
			"ruleset`, `iptables -S OUTPUT`)"
	case strings.Contains(why, "unreachable"), strings.Contains(why, "no route to host"):
		return "give the host a route to the cluster DNS address: a default route, or one for the Service range by the link that pods' " +
			"packets leave " +
			"by (see `ip route get`)"
	case snap.fallbackVerified() && strings.Contains(why, "REFUSED"):
		return "let kube-dns answer the node's own address: its Corefile's acl admits pods only"
	case snap.fallbackVerified():
		return "let the host itself query kube-dns, as its pods may: find a policy on kube-dns that admits pods and not nodes, and check " +
			"the host firewall's OUTPUT"
	}
	return "check kube-dns: it answers neither this node nor the agent's probes. If it answers pods, a policy on it admits pods and " +
		"not nodes: admit the " +
		"nodes' addresses, too"
}

// fallbackVerified reports whether the fallback works for one cluster DNS address at least.
func (snap Snapshot) fallbackVerified() bool {
	for _, a := range snap.ClusterDNS {
		if snap.Agent.Faults["fallback "+a.String()] == "" {
			return true
		}
	}
	return false
}

func checkResolvConf(snap Snapshot, f *findings) {
	for _, r := range snap.Resolv {
		var stub []string
		for _, s := range r.Servers {
			if s.IsLoopback() && !snap.answers(s.String()) {
				stub = append(stub, s.String())
			}
		}
		switch {
		case r.Err != "":
			f.add(Fail, "correct the file, or name servers in upstreams.external", "%s", r.Err)
		case len(stub) > 0:
			f.add(Warn, "start it, and give the agent the host's network; or name /run/systemd/resolve/resolv.conf in upstreams.external",
				"%s names %s, a resolver on this node (systemd-resolved, dnsmasq), which does not answer", r.Path, strings.Join(stub, ", "))
		default:
			f.ok("%s names %s", r.Path, plural(len(r.Servers), "server"))
		}
	}
	if f.silent() {
		f.ok("no such file names upstreams")
	}
}

// answers reports whether a server is an upstream and answered.
func (snap Snapshot) answers(addr string) bool {
	for _, a := range snap.Upstreams {
		if host, _, err := net.SplitHostPort(a.Server); err == nil && host == addr {
			return a.Err == ""
		}
	}
	return false
}

func checkConflist(snap Snapshot, f *findings) {
	const install = "run `neardns-install install`"
	n := snap.Network
	watched(snap.Watch, f)
	switch {
	case n.Err != "" && snap.Watch.Present && snap.Watch.Fault == "" && snap.Watch.Age <= silence:
		// In the agent's container the network's folder is not mounted: other plugins keep credentials in it.
		f.ok("`neardns-install watch` found plugin and entry in network %s", snap.Watch.Network)
		return
	case n.Err != "":
		f.add(Warn, "run the doctor as root in the host's namespaces, or name the runtime's folder with --cni-conf",
			"could not be read: %s", n.Err)
		return
	case n.Effective == "":
		f.add(Fail, "wait for the primary CNI plugin to write its network, or name its folder with --cni-conf",
			"there is no network in %s", n.Folder)
		return
	case !n.Entry && len(n.Elsewhere) > 0:
		f.add(Fail, "remove the other network or put the entry into the first one: "+install, "runtimes take %s, and the entry is only in %s",
			n.Effective, strings.Join(n.Elsewhere, ", "))
	case !n.Entry:
		f.add(Fail, install+"; new pods are not steered until then", "%s has no entry of type neardns", n.Effective)
	case len(n.Missing) > 0:
		f.add(Warn, install+" with the agent's configuration", "the entry in %s does not redirect %s", n.Effective, strings.Join(n.Missing, ", "))
	default:
		f.ok("%s has the entry", n.Effective)
	}
	if n.Entry && n.PluginErr != "" {
		f.add(Fail, install+": pods cannot start without it", "the plugin %s cannot be run: %s", n.Plugin, n.PluginErr)
	}
}

// silence is the age of a state from which on the watch counts as gone. It checks every 30 s, and every five minutes during a conflict.
const silence = 15 * time.Minute

func watched(w Watch, f *findings) {
	const log = "see the log of `neardns-install watch`"
	switch {
	case !w.Present:
	case w.Fault != "":
		f.add(Fail, "fix that; the watch tries again by itself", "the watch cannot install plugin and entry: %s", w.Fault)
	case w.Fighting:
		f.add(Warn, log+", which names the file and its first plugin, and stop what writes it",
			"another program keeps removing the entry; the watch has restored it %s", plural(w.Repairs, "time"))
	case w.Age > silence:
		f.add(Warn, "start `neardns-install watch` again; when the main network writes its file anew, new pods are not steered until then",
			"the watch last checked %s ago", w.Age.Round(time.Minute))
	}
}

func checkPods(snap Snapshot, f *findings) {
	for _, e := range snap.PodErrs {
		f.add(Warn, "delete the file if its pod is gone", "a pod's file cannot be read: %s", e)
	}
	counts := map[string]int{}
	mesh := 0
	for _, pod := range snap.Pods {
		counts[pod.State]++
		if pod.Mesh {
			mesh++
		}
		switch {
		case pod.Lost != "":
			f.add(Warn, "let it reach the steering address (install/allow-steering-networkpolicy.yaml); kube-dns answers it meanwhile, and trials "+
				"go on", "%s is bypassed: %s", pod.Name, pod.Lost)
		case pod.Err != "":
			f.add(Warn, "make its netns visible to the agent, or delete its file if it is gone", "%s cannot be inspected: %s", pod.Name, pod.Err)
		case len(pod.Drift) > 0:
			f.add(Warn, "the agent repairs it when it starts and every 30 s while the fallback is verified; kube-dns answers the pod "+
				"meanwhile", "%s: %s", pod.Name,
				some(pod.Drift))
		}
	}
	for _, name := range snap.Agent.Bypassed {
		f.add(Warn, "let it reach the steering address (install/allow-steering-networkpolicy.yaml); kube-dns answers it meanwhile",
			"queries of %s do not reach the agent", name)
	}
	if f.silent() {
		f.ok("%d steered, %d pending, %d bypassed, %d gone: every table is right", counts["steered"], counts["pending"], counts["left-alone"],
			counts["gone"])
	}
	if mesh > 0 {
		f.ok("%s with a service mesh that captures DNS in the pod: the mesh wins", plural(mesh, "pod"))
	}
}

func checkKernel(snap Snapshot, f *findings) {
	k := snap.Kernel
	for _, s := range k.NoForward {
		f.add(Fail, "sysctl -w "+s+"=1", "%s is 0: pods do not reach kube-dns on other nodes", s)
	}
	if k.BridgePods && k.BridgeNF == "0" {
		f.add(Warn, "sysctl -w net.bridge.bridge-nf-call-iptables=1 (and -ip6tables), as kubeadm asks",
			"pods are connected to a bridge and net.bridge.bridge-nf-call-iptables is 0: where kube-dns runs on this node its answers bypass "+
				"kube-proxy's way "+
				"back, so the fallback fails")
	}
	if f.silent() {
		f.ok("forwarding is on")
	}
}

// crowded is the share of the conntrack table from which on new connections soon fail.
const crowded = 0.95

func checkConntrack(snap Snapshot, f *findings) {
	k := snap.Kernel
	switch {
	case k.ConntrackOf == 0:
		f.ok("no limit is known")
	case float64(k.Conntracked) >= crowded*float64(k.ConntrackOf):
		f.add(Fail, "raise net.netfilter.nf_conntrack_max, and find what fills it (conntrack -L); hits need no entry, misses and kube-dns do",
			"%d of %d entries are taken", k.Conntracked, k.ConntrackOf)
	default:
		f.ok("%d of %d entries are taken", k.Conntracked, k.ConntrackOf)
	}
}

func checkFolders(snap Snapshot, f *findings) {
	for _, d := range snap.Folders {
		if d.Err != "" {
			f.add(Fail, "make room or mount it writable: pods' files, the fallback check and the cache's snapshot cannot be stored",
				"%s: %s", d.Path, d.Err)
		} else {
			f.ok("%s can be written", d.Path)
		}
	}
}

// Programs that may interfere, in Snapshot.Others.
const (
	NodeLocalDNS = "node-local-dns"
	Firewalld    = "firewalld"
	Cilium       = "cilium"
	Resolved     = "systemd-resolved"
)

func checkNeighbours(snap Snapshot, f *findings) {
	missing := snap.heldLeases() < len(snap.Targets)
	for _, name := range snap.Others {
		switch {
		case name == NodeLocalDNS:
			f.add(Warn, "take one of the two off the node, or give them different addresses",
				"NodeLocal DNSCache is on this node too (link nodelocaldns or its rules)")
		case name == Cilium:
			f.add(Warn, "expect bypassed pods or an unverified fallback where it replaces kube-proxy; socketLB.hostNamespaceOnly=true leaves "+
				"pods' packets "+
				"to netfilter", "Cilium is on this node: its socket load balancer rewrites before any packet exists")
		case name == Firewalld && missing:
			f.add(Warn, "put the pods' links into a zone that lets udp and tcp port 53 in", "firewalld is on this node, and leases are missing")
		default:
			f.ok("%s is on this node and does not interfere", name)
		}
	}
	if f.silent() {
		f.ok("no conflicting program found")
	}
}
