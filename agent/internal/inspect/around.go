package inspect

import (
	"net"
	"slices"
	"strings"
	"time"
)

func checkKubeProxy(p Picture, f *findings) {
	switch x := p.Proxy; {
	case x.Err != "":
		f.unseen(x.Err)
	case x.Mode == "none" && x.Configured == "none":
		f.ok("none, as configured: nothing is steered")
	case x.Mode == "none":
		f.add(Warn, "if something else translates Service addresses in this host's netfilter, the proof of the fallback shows it; if eBPF does, no pod "+
			"can be steered: apply install/overlays/transparent, or set kubeProxyMode: none", "no rules of kube-proxy are seen")
	case x.Configured != "" && x.Configured != "auto" && x.Configured != x.Mode:
		f.add(Warn, "set kubeProxyMode to "+x.Mode+", or leave it out", "its rules are %s, the configuration says %s", x.Mode, x.Configured)
	default:
		f.ok("its rules are %s", x.Mode)
	}
}

func checkConfig(p Picture, f *findings) {
	for _, c := range p.Config {
		f.add(Fail, "mend the configuration", "%s", c)
	}
	for _, u := range p.Unknown {
		f.add(Warn, "correct the key, or take it out; it has no effect", "%s", u)
	}
	if f.silent() {
		f.ok("nothing is wrong with it")
	}
	for _, s := range p.Slow {
		f.ok("%s", s)
	}
}

func checkUpstreams(p Picture, f *findings) {
	for _, a := range p.Upstreams {
		switch {
		case a.Own:
			f.add(Fail, "name the server behind it instead", "%s (%s) is an address of this agent: it would ask itself for ever", a.Server, a.Role)
		case a.Err != "":
			f.add(Fail, "look at that server and the way to it; answers that were given before are served meanwhile, as long as cache.serveStale says",
				"%s (%s) does not answer: %s", a.Server, a.Role, a.Err)
		default:
			f.ok("%s (%s) answers in %s", a.Server, a.Role, a.Took.Round(time.Millisecond))
		}
	}
	if why := p.Agent.CannotAsk; why != "" {
		f.add(Fail, remedyForAsking(p, why), "%s", why)
	}
	if w := p.Agent.Faults["upstreams"]; w != "" && len(p.Agent.Upstreams) == 0 {
		f.add(Warn, "look at what it names", "the agent says: %s", w)
	}
	for _, u := range p.Agent.Upstreams {
		f.add(Warn, "look at that server: the others are asked meanwhile", "the agent finds that %s", u)
	}
	if f.silent() && len(p.Config) == 0 {
		f.add(Warn, "name some in the configuration", "there are none to ask")
	}
	if p.External != "" {
		f.ok("names outside of the cluster: %s", p.External)
	}
}

// checkAnswers compares what pods are told with what they would be told without us.
func checkAnswers(p Picture, f *findings) {
	const do = "if kube-dns is right, leave upstreams.external out (auto) or write [], and take stubDomains out that it has otherwise; a name that " +
		"has just changed differs for its TTL"
	if len(p.Both) == 0 {
		f.ok("nothing to compare: no question is steered to the agent")
		return
	}
	// Where none runs, its addresses may lead out of the node, to anybody.
	if p.Agent.Err != "" || !slices.ContainsFunc(p.Both, func(b Both) bool { return b.Agent.Err == "" }) {
		f.ok("nothing to compare: no agent answers")
		return
	}
	if !slices.ContainsFunc(p.Both, func(b Both) bool { return b.KubeDNS.Err == "" }) {
		f.ok("nothing to compare: kube-dns does not answer this host")
		return
	}
	for _, b := range p.Both {
		if b.differs() {
			f.add(Warn, do, "%s: the agent says %s, kube-dns (%s) says %s", b.Name, b.Agent, b.KubeDNSAt, b.KubeDNS)
		}
	}
	if f.silent() {
		f.ok("%s asked of the agent and of kube-dns: the same answers", plural(len(p.Both), "question"))
	}
}

// remedyForAsking tells by the kernel's word for it what keeps a node from asking kube-dns that its pods are not kept from.
func remedyForAsking(p Picture, why string) string {
	switch {
	case strings.Contains(why, "not permitted"):
		return "let the host itself ask: its firewall's OUTPUT drops udp and tcp port 53 to the cluster DNS address or to kube-dns's pods (`nft list " +
			"ruleset`, `iptables -S OUTPUT`)"
	case strings.Contains(why, "unreachable"), strings.Contains(why, "no route to host"):
		return "give the host a route to the cluster DNS address: a default route, or one for the Service range by the link that pods' packets leave " +
			"by (`ip route get` says which)"
	case p.fallbackProven() && strings.Contains(why, "REFUSED"):
		return "let kube-dns answer the node's own address: its Corefile's acl admits pods only"
	case p.fallbackProven():
		return "let the host itself ask, as its pods may: look for a policy on kube-dns that admits pods and not nodes, and for the host firewall's OUTPUT"
	}
	return "look at kube-dns: it answers neither this node nor the prober. If it answers pods, a policy on it admits pods and not nodes: admit the " +
		"nodes' addresses, too"
}

// fallbackProven reports whether kube-dns answers those who are given back to it.
func (p Picture) fallbackProven() bool {
	for _, a := range p.ClusterDNS {
		if p.Agent.Faults["fallback "+a.String()] == "" {
			return true
		}
	}
	return false
}

func checkResolvConf(p Picture, f *findings) {
	for _, r := range p.Resolv {
		var stub []string
		for _, s := range r.Servers {
			if s.IsLoopback() && !p.answers(s.String()) {
				stub = append(stub, s.String())
			}
		}
		switch {
		case r.Err != "":
			f.add(Fail, "mend the file, or name servers in upstreams.external", "%s", r.Err)
		case len(stub) > 0:
			f.add(Warn, "start it, and give the agent the host's network; or name /run/systemd/resolve/resolv.conf in upstreams.external",
				"%s names %s, a resolver on this node (systemd-resolved, dnsmasq), which does not answer", r.Path, strings.Join(stub, ", "))
		default:
			f.ok("%s names %s", r.Path, plural(len(r.Servers), "server"))
		}
	}
	if f.silent() {
		f.ok("no such file is asked for upstreams")
	}
}

// answers tells whether a server was asked as an upstream and answered.
func (p Picture) answers(addr string) bool {
	for _, a := range p.Upstreams {
		if host, _, err := net.SplitHostPort(a.Server); err == nil && host == addr {
			return a.Err == ""
		}
	}
	return false
}

func checkConflist(p Picture, f *findings) {
	const install = "run `neardns-install install`"
	n := p.Network
	watched(p.Watch, f)
	switch {
	case n.Err != "" && p.Watch.Present && p.Watch.Fault == "" && p.Watch.Age <= silence:
		// As in the agent's container, which does not see the network's folder: others keep their credentials in it.
		f.ok("the watch found plugin and entry in network %s", p.Watch.Network)
		return
	case n.Err != "":
		f.add(Warn, "run the doctor as root in the host's namespaces, or name the runtime's folder with --cni-conf", "could not be looked at: %s", n.Err)
		return
	case n.Effective == "":
		f.add(Fail, "wait for the primary CNI plugin to write its network, or name its folder with --cni-conf", "there is no network in %s", n.Folder)
		return
	case !n.Entry && len(n.Elsewhere) > 0:
		f.add(Fail, "take the other network away or put the entry into the first one: "+install, "runtimes take %s, and the entry is only in %s",
			n.Effective, strings.Join(n.Elsewhere, ", "))
	case !n.Entry:
		f.add(Fail, install+"; new pods are not steered until then", "%s has no entry of type neardns", n.Effective)
	case len(n.Missing) > 0:
		f.add(Warn, install+" with the agent's configuration", "the entry in %s does not redirect %s", n.Effective, strings.Join(n.Missing, ", "))
	default:
		f.ok("%s has the entry", n.Effective)
	}
	if n.Entry && n.PluginErr != "" {
		f.add(Fail, install+": pods cannot be made without it", "the plugin %s cannot be run: %s", n.Plugin, n.PluginErr)
	}
}

// silence is after how long a watch that looks every 30 s, and in a fight every five minutes, is not there any more.
const silence = 15 * time.Minute

func watched(w Watch, f *findings) {
	const log = "look at the log of `neardns-install watch`"
	switch {
	case !w.Present:
	case w.Fault != "":
		f.add(Fail, "mend that; the watch tries again by itself", "the watch cannot put plugin and entry in their places: %s", w.Fault)
	case w.Fighting:
		f.add(Warn, log+", which names the file and its first plugin, and mend what writes it",
			"another program keeps taking the entry out; the watch has put it back %s", plural(w.Repairs, "time"))
	case w.Age > silence:
		f.add(Warn, "start `neardns-install watch` again; when the main network writes its file anew, new pods are not steered until then",
			"the watch looked last %s ago", w.Age.Round(time.Minute))
	}
}

func checkPods(p Picture, f *findings) {
	for _, e := range p.PodErrs {
		f.add(Warn, "delete the file if its pod is gone", "a pod's file cannot be read: %s", e)
	}
	counts := map[string]int{}
	mesh := 0
	for _, pod := range p.Pods {
		counts[pod.State]++
		if pod.Mesh {
			mesh++
		}
		switch {
		case pod.Lost != "":
			f.add(Warn, "let it reach the steering address (install/allow-steering-networkpolicy.yaml); kube-dns answers it meanwhile, and it is tried "+
				"again and again", "%s is given back: %s", pod.Name, pod.Lost)
		case pod.Err != "":
			f.add(Warn, "make its netns visible to the agent, or delete its file if it is gone", "%s cannot be looked at: %s", pod.Name, pod.Err)
		case len(pod.Drift) > 0:
			f.add(Warn, "the agent mends it when it starts and every 30 s while the fallback is proven; the pod asks kube-dns meanwhile", "%s: %s", pod.Name,
				some(pod.Drift))
		}
	}
	for _, name := range p.Agent.Bypassed {
		f.add(Warn, "let it reach the steering address (install/allow-steering-networkpolicy.yaml); kube-dns answers it meanwhile",
			"%s asked and was not heard", name)
	}
	if f.silent() {
		f.ok("%d steered, %d waiting, %d left alone, %d gone: every table as it should be", counts["steered"], counts["pending"], counts["left-alone"],
			counts["gone"])
	}
	if mesh > 0 {
		f.ok("%s with a service mesh that captures DNS in the pod: the mesh wins", plural(mesh, "pod"))
	}
}

func checkKernel(p Picture, f *findings) {
	k := p.Kernel
	for _, s := range k.NoForward {
		f.add(Fail, "sysctl -w "+s+"=1", "%s is 0: pods do not reach kube-dns on other nodes", s)
	}
	if k.BridgePods && k.BridgeNF == "0" {
		f.add(Warn, "sysctl -w net.bridge.bridge-nf-call-iptables=1 (and -ip6tables), as kubeadm asks",
			"pods hang on a bridge and net.bridge.bridge-nf-call-iptables is 0: where kube-dns runs on this node its answers bypass kube-proxy's way "+
				"back, so the fallback fails")
	}
	if f.silent() {
		f.ok("forwarding is on")
	}
}

// crowded is the share of the conntrack table from which on new connections soon fail.
const crowded = 0.95

func checkConntrack(p Picture, f *findings) {
	k := p.Kernel
	switch {
	case k.ConntrackOf == 0:
		f.ok("no limit is known")
	case float64(k.Conntracked) >= crowded*float64(k.ConntrackOf):
		f.add(Fail, "raise net.netfilter.nf_conntrack_max, and find who fills it (conntrack -L); hits need no entry, misses and kube-dns do",
			"%d of %d entries are taken", k.Conntracked, k.ConntrackOf)
	default:
		f.ok("%d of %d entries are taken", k.Conntracked, k.ConntrackOf)
	}
}

func checkFolders(p Picture, f *findings) {
	for _, d := range p.Folders {
		if d.Err != "" {
			f.add(Fail, "make room or mount it writable: pods' files, the proof and the cache's snapshot cannot be kept", "%s: %s", d.Path, d.Err)
		} else {
			f.ok("%s can be written", d.Path)
		}
	}
}

// Programs that are known to interfere, by the names that a picture's Others has.
const (
	NodeLocalDNS = "node-local-dns"
	Firewalld    = "firewalld"
	Cilium       = "cilium"
	Resolved     = "systemd-resolved"
)

func checkNeighbours(p Picture, f *findings) {
	missing := p.heldLeases() < len(p.Targets)
	for _, name := range p.Others {
		switch {
		case name == NodeLocalDNS:
			f.add(Warn, "take one of the two off the node, or give them different addresses",
				"NodeLocal DNSCache is on this node too (link nodelocaldns or its rules)")
		case name == Cilium:
			f.add(Warn, "expect `left alone` or an unproven fallback where it replaces kube-proxy; socketLB.hostNamespaceOnly=true leaves pods' packets "+
				"to netfilter", "Cilium is on this node: its socket load balancer rewrites before any packet exists")
		case name == Firewalld && missing:
			f.add(Warn, "put the pods' links into a zone that lets udp and tcp port 53 in", "firewalld is on this node, and leases are missing")
		default:
			f.ok("%s is on this node and does no harm", name)
		}
	}
	if f.silent() {
		f.ok("no program that is known to interfere is seen")
	}
}
