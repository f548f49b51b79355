package inspect

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/hostsfile"
	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/node/evidence"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/internal/dns/forward"
	"github.com/neardns/neardns/internal/offload"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

var (
	steering = netip.MustParseAddr("169.254.20.11")
	vip      = netip.MustParseAddr("10.96.0.10")
)

// healthy is a node on which all is well.
func healthy() *facts {
	f := &facts{now: time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC), holder: 7, verified: []netip.Addr{vip},
		fallbacks: []*queryResult{{server: "10.96.0.10:53", addr: vip, role: "fallback"}},
		upstreams: []*queryResult{{server: "10.96.0.10:53", addr: vip, role: "cluster", took: 2 * time.Millisecond},
			{server: "127.0.0.53:53", addr: netip.MustParseAddr("127.0.0.53"), role: "external", took: time.Millisecond}},
		compared:    []comparison{{"kubernetes.default.svc.cluster.local. A", answer("NOERROR", "10.96.0.1"), answer("NOERROR", "10.96.0.1")}},
		attachments: []pods.Verified{pod("default/web", "steered"), pod("default/job", "gone")}}
	f.basics = basics{want: plan.Plan{Arrangement: plan.Steered, Link: plan.Link{Name: "neardns0"},
		Redirects: []steer.Redirect{{ClusterDNS: vip, Steering: steering}}, Folders: plan.Folders{State: "/run/neardns", Persist: "/var/lib/neardns"}},
		agent:   &node.Status{Instance: "abc", Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Serving: true, Faults: map[string]string{}},
		present: true, leases: []steer.LeaseState{{Address: steering, Protocol: steer.UDP}, {Address: steering, Protocol: steer.TCP}}}
	f.surroundings = surroundings{kubeProxy: "iptables", kubeProxyWanted: "auto",
		resolv:  []resolvConf{{path: "/etc/resolv.conf", servers: []netip.Addr{netip.MustParseAddr("127.0.0.53")}}},
		network: network{folder: "/etc/cni/net.d", effective: "/etc/cni/net.d/10-pods.conflist", entry: true, plugin: "/opt/cni/bin/neardns"}}
	return f
}

func answer(code string, records ...string) Reply { return Reply{Code: code, Records: records} }

// pod returns a pod's file, with the state that the doctor found. name is namespace/name.
func pod(name, state string) pods.Verified {
	namespace, name, _ := strings.Cut(name, "/")
	return pods.Verified{File: podfile.File{PodNamespace: namespace, PodName: name, ContainerID: "c-" + name, IfName: "eth0"}, State: state}
}

// podWithDNS is like pod, with the state of the pod's DNS settings, and with the settings that were ignored.
func podWithDNS(name, podState string, state podfile.DNSState, reason string, ignored ...podfile.Ignored) pods.Verified {
	v := pod(name, podState)
	v.File.DNS, v.File.Ignored = &podfile.DNS{State: state, Reason: reason}, ignored
	return v
}

// withoutAgent makes the facts those of a node on which no agent answers.
func (f *facts) withoutAgent(err error) {
	f.agent, f.agentErr, f.leases, f.holder = new(node.Status), err, nil, 0
}

// cannotAsk adds to the agent's status why its queries to kube-dns are not answered.
func (f *facts) cannotAsk(tcp, udp string) {
	f.agent.CannotAsk = "the agent cannot query for cluster.local from this node: 10.96.0.10:53 over tcp: " + tcp + "; 10.96.0.10:53 over udp: " + udp
}

// lostLeases adds to the agent's status that it does not hold the leases of these protocols, for a reason.
func (f *facts) lostLeases(reason string, protocols ...steer.Protocol) {
	for _, p := range protocols {
		f.agent.Leases = append(f.agent.Leases, node.LeaseStatus{Address: steering, Protocol: p.String(), Reason: reason})
	}
}

var (
	errDenied = errors.New("operation not permitted")
	errSilent = errors.New("no answer within 2s")
)

// faultyNodes returns changes of the healthy node, by name: mostly faults. The doctor's texts for them are golden files.
func faultyNodes() map[string]func(*facts) {
	return map[string]func(*facts){
		"healthy": func(*facts) {},
		"no-agent": func(f *facts) {
			f.withoutAgent(errors.New("no agent runs on this node (connect: no such file or directory)"))
		},
		"not-root": func(f *facts) {
			f.withoutAgent(fmt.Errorf("this user has no access to the agent's socket (connect: %w)", fs.ErrPermission))
			f.present, f.tableErr, f.chainsErr = false, errDenied, errDenied
		},
		"hung-agent": func(f *facts) {
			f.withoutAgent(errors.New("the agent does not answer: context deadline exceeded"))
			f.holder = 7
		},
		"nothing-installed": func(f *facts) {
			f.withoutAgent(errors.New("no agent runs on this node"))
			f.verified, f.present = nil, false
			f.linkDrift, f.network = []string{"there is no such link"}, network{folder: "/etc/cni/net.d"}
			f.fallbacks[0].err, f.upstreams[0].err = errSilent, errSilent
			f.kubeProxy = "none"
		},
		"link-and-rules": func(f *facts) {
			f.linkDrift = []string{"it is down", "address 169.254.20.11 is missing",
				"it has the address 192.0.2.7/32, which the configuration does not have"}
			f.tableDrift = []string{"chain switch4 lacks rule 2: goto fallback4", "set ours4 lacks 169.254.20.11", "counter probe is missing"}
			f.agent.Faults = map[string]string{"rules": "another program undid the repair 5 times within 10s"}
		},
		"pod-dns": func(f *facts) {
			bad := podfile.Ignored{What: "annotation neardns.io/dns-params", Why: "options[0]: unknown key"}
			f.attachments = []pods.Verified{
				podWithDNS("shop/a", "steered", podfile.Overlaid, "", bad),
				podWithDNS("shop/b", "steered", podfile.AsGiven, "none of the settings wanted can be given", bad),
				podWithDNS("shop/c", "steered", podfile.Overlaid, "", bad),
				podWithDNS("x/d", "gone", podfile.Failed, "gone"),
				podWithDNS("x/e", "left-alone", podfile.NoMethod, "no NRI"),
				podWithDNS("x/f", "left-alone", podfile.Waiting, "later"),
				podWithDNS("x/g", "left-alone", podfile.Failed, "disk full"),
				podWithDNS("x/h", "steered", podfile.AsGiven, "resolvConf is off in the configuration"),
			}
		},
		"kernel-hits": func(f *facts) { f.agent.KernelHits = &offload.State{Pods: 3, Lent: 40} },
		"kernel-hits-not": func(f *facts) {
			f.agent.KernelHits = &offload.State{Fault: "load the program: operation not permitted", Refused: []offload.Refused{
				{Pod: "shop/web", Why: "it is bypassed, kube-dns answers it"}}}
		},
		"kernel-hits-auto": func(f *facts) {
			refused := []offload.Refused{{Pod: "shop/web", Why: "it is not steered yet"}}
			f.agent.KernelHits = &offload.State{Auto: true, Pods: 3, Lent: 40, Refused: refused}
		},
		"kernel-hits-auto-not": func(f *facts) {
			f.agent.KernelHits = &offload.State{Auto: true, Fault: "load the program: operation not permitted"}
		},
		"on-link": func(f *facts) {
			f.want.Arrangement, f.want.Redirects = plan.OnLink, nil
			f.want.Locals = []steer.Local{{Address: vip, ClusterDNS: vip, Service: true}}
			f.leases = []steer.LeaseState{{Address: vip, Protocol: steer.UDP}, {Address: vip, Protocol: steer.TCP}}
			f.fallbacks, f.upstreams, f.compared = nil, f.upstreams[1:], nil
		},
		"transparent": func(f *facts) {
			f.want.Arrangement, f.want.Redirects, f.leases, f.present = plan.Transparent, nil, nil, false
			f.agent.KernelHits = &offload.State{Pods: 3, Lent: 40,
				Served: []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:53"), netip.MustParseAddrPort("10.244.2.2:53")}}
		},
		"transparent-off": func(f *facts) { f.want.Arrangement, f.kernelHitsOff, f.present = plan.Transparent, true, false },
		"transparent-fails": func(f *facts) {
			f.want.Arrangement, f.present = plan.Transparent, false
			f.agent.KernelHits = &offload.State{Fault: "load the program: operation not permitted"}
		},
		"pod-dns-laid": func(f *facts) { f.attachments[0] = podWithDNS("default/web", "steered", podfile.HandedOn, "") },
		"table-gone":   func(f *facts) { f.present, f.leases = false, nil },
		"port-taken": func(f *facts) {
			f.leases, f.agent.Serving = nil, false
			f.agent.Faults = map[string]string{"server": "listen on udp 169.254.20.11:53: address already in use: on the node, ss -lnp 'sport = :53' shows the process that has it"}
			f.lostLeases("no answer yet", steer.UDP, steer.TCP)
		},
		"firewall": func(f *facts) {
			f.leases = f.leases[1:]
			f.lostLeases("no answer: the agent hangs, or a firewall on this node (INPUT chain) drops pods' packets to it", steer.UDP)
			f.dropping = []iptables.DropPolicy{{Is4: true, Chain: "INPUT"}}
			f.chains = []nft.Chain{{Family: "inet", Table: "foreign", Name: "input", Input: true, Drops: true}, {Table: "kube-proxy", Input: true, Drops: true}}
		},
		"firewall-let-through": func(f *facts) {
			f.accepted = []iptables.DropPolicy{{Is4: true, Chain: "INPUT"}}
		},
		"slim": func(f *facts) {
			f.agent.Without = []string{"iptables-nft, iptables-legacy: the agent cannot add rules where the policy of their filter table is DROP"}
		},
		"fallback-fails": func(f *facts) {
			f.agent.Faults = map[string]string{"fallback 10.96.0.10": "check the fallback to 10.96.0.10 over udp: no answer"}
			f.fallbacks[0].err = errSilent
		},
		"fallback-unproven": func(f *facts) { f.verified = nil },
		"upstreams": func(f *facts) {
			f.upstreams[0].err, f.upstreams[1].err = errors.New("server misbehaving"), errors.New("connection refused")
			f.agent.Upstreams = []forward.Status{{Server: "192.0.2.53:53", Loops: []string{"."}}}
			f.resolv = append(f.resolv, resolvConf{path: "/etc/other", err: errors.New("/etc/other names no server")})
			f.faults = []error{errors.New("upstreams.external: 169.254.20.10 is an address of the agent itself")}
		},
		"answers": func(f *facts) {
			f.compared = []comparison{
				{"same.example. A", answer("NOERROR", "192.0.2.1"), answer("NOERROR", "192.0.2.1")},
				{"turns.example. A", answer("NOERROR", "192.0.2.1", "192.0.2.2"), answer("NOERROR", "192.0.2.2", "192.0.2.3")},
				{"dead.example. A", answer("SERVFAIL"), Reply{Error: errSilent.Error()}},
				{"corp.local. A", answer("NXDOMAIN"), answer("NOERROR", "10.9.9.9")},
				{"other.example. A", answer("NOERROR", "192.0.2.1"), answer("NOERROR", "10.0.0.1", "10.0.0.2", "10.0.0.3")},
				{"empty.example. A", answer("NOERROR"), answer("NXDOMAIN")},
				{"fails.example. A", answer("SERVFAIL"), answer("NOERROR", "192.0.2.1")},
			}
			f.want.External = "the servers of the configuration"
		},
		"answers-without-agent": func(f *facts) {
			f.compared[0].agent = Reply{Error: "connection refused"}
		},
		"config": func(f *facts) {
			f.faults = []error{errors.New("the file has a fault, and the agent serves by the one before: node.yaml:4:1: redirects: has no value: give it one or " +
				"take the key out")}
			f.unknown = []string{`node.yaml:5:1: upstream: unknown key: write "upstreams"`}
			f.want.External = "kube-dns, because its Corefile has the zone corp.example"
		},
		"cannot-ask-output": func(f *facts) {
			f.leases = nil
			f.cannotAsk("silent", "operation not permitted")
			f.agent.Faults = map[string]string{"asking": f.agent.CannotAsk}
			f.lostLeases("the agent cannot query the upstreams", steer.UDP, steer.TCP)
		},
		"cannot-ask-route":  func(f *facts) { f.cannotAsk("network is unreachable", "network is unreachable") },
		"cannot-ask-policy": func(f *facts) { f.cannotAsk("silent", "silent") },
		"cannot-ask-acl": func(f *facts) {
			f.agent.CannotAsk = "the agent cannot query for cluster.local from this node: 10.96.0.10:53 over tcp: REFUSED"
		},
		"cannot-ask-outage": func(f *facts) {
			f.cannotAsk("silent", "silent")
			f.agent.Faults = map[string]string{"asking": f.agent.CannotAsk, "fallback 10.96.0.10": "check the fallback to 10.96.0.10 over udp: no answer"}
			f.fallbacks[0].err, f.upstreams[0].err = errSilent, errSilent
		},
		"conflist": func(f *facts) {
			f.network.entry, f.network.elsewhere = false, []string{"/etc/cni/net.d/20-old.conflist"}
		},
		"watch-fault": func(f *facts) {
			f.watch = &nodestate.Watch{Looked: f.now, Fault: "no network is configured in /etc/cni/net.d yet"}
			f.network.err = errDenied
		},
		"watch-fights": func(f *facts) { f.watch = &nodestate.Watch{Looked: f.now, Fighting: true, Repairs: 5} },
		"conflist-not-seen": func(f *facts) { // from the agent's container
			f.network = network{err: errors.New("open /etc/cni/net.d: no such file or directory")}
			f.watch = &nodestate.Watch{Looked: f.now, Network: "cbr0"}
		},
		"watch-silent": func(f *facts) { f.watch = &nodestate.Watch{Looked: f.now.Add(-90 * time.Minute)} },
		"hosts": func(f *facts) {
			line := func(standing hostsfile.Standing, name, failed string, addresses ...string) HostsLine {
				return HostsLine{nodestate.HostsService{Name: name, Addresses: addresses, Failed: failed}, standing}
			}
			f.hosts = Hosts{Present: true, Hosts: nodestate.Hosts{Looked: f.now, Fighting: true, Repairs: 12, Fault: "/host/etc/hosts is empty, and stays as it is"},
				Services: []HostsLine{
					line(hostsfile.Current, "shop/registry", "", "10.96.0.5", "fd00:10:96::5"), line(hostsfile.Missing, "shop/none", ""),
					line(hostsfile.Missing, "shop/late", "10.96.0.10:53: no answer over udp"), line(hostsfile.Stale, "shop/old", "10.96.0.10:53: it answers SERVFAIL", "10.96.0.6"),
					line(hostsfile.Foreign, "shop/theirs", "", "10.96.0.7")}}
			f.hosts.Services[4].Left = []string{"theirs.shop.svc"}
		},
		"hosts-ended": func(f *facts) {
			f.hosts = Hosts{Present: true, Hosts: nodestate.Hosts{Looked: f.now.Add(-90 * time.Second), Ended: true}}
		},
		"hosts-silent": func(f *facts) { f.hosts = Hosts{Present: true, Hosts: nodestate.Hosts{Looked: f.now.Add(-time.Hour)}} },
		"plugin-missing": func(f *facts) {
			f.network.missing, f.network.pluginErr = []string{"10.96.0.10"}, "it is not executable"
		},
		"pods": func(f *facts) {
			flushed, meshed, odd, lost := pod("default/flushed", "steered"), pod("default/meshed", "steered"), pod("default/odd", "steered"),
				pod("default/lost", "bypassed")
			flushed.Drift, meshed.Mesh, odd.Err = []string{"table inet neardns is missing or empty"}, true, errDenied
			lost.File.Decisions = []podfile.Decision{{Unanswered: []string{"udp"}, Reason: "its queries to 169.254.20.11 over udp are not answered"}}
			f.attachments = append(f.attachments, flushed, meshed, odd, lost)
			f.agent.Bypassed = []evidence.Bypassed{{Pod: "default/walled", Source: netip.MustParseAddr("10.244.1.7"), Address: steering, Protocol: "udp"}}
			f.podErrs = []error{errors.New("read /run/neardns/pods/x.json: unexpected end of JSON input")}
		},
		"kube-proxy": func(f *facts) { f.kubeProxy, f.kubeProxyWanted = "nftables", "ipvs" },
		"unseen": func(f *facts) {
			f.linkErr, f.tableErr, f.chainsErr, f.network.err = errDenied, errDenied, errDenied, errDenied
		},
	}
}

// A pipe in the folder of the CNI configuration is an error, and does not block the doctor.
func TestPipeInsteadOfNetwork(t *testing.T) {
	dir := t.TempDir()
	testutil.Must(t, unix.Mkfifo(filepath.Join(dir, "10-a.conflist"), 0o600))
	if n := (&Inspector{CNIConf: dir}).network(nil); n.err == nil || !strings.Contains(n.err.Error(), "no regular file") {
		t.Errorf("a pipe instead of a network: %v", n.err)
	}
}

func TestTexts(t *testing.T) {
	for name, change := range faultyNodes() {
		t.Run(name, func(t *testing.T) {
			f := healthy()
			change(f)
			golden.Check(t, name+".txt", diagnose(f).Text())
		})
	}
}

// TestEveryFaultIsReported checks which nodes are good, that each warning and failure has a remedy, and that each check reports something.
func TestEveryFaultIsReported(t *testing.T) {
	warnOnly := map[string]bool{"healthy": true, "slim": true, "firewall-let-through": true, "fallback-unproven": true, "pods": true, "unseen": true,
		"watch-fights": true, "watch-silent": true, "conflist-not-seen": true, "pod-dns": true, "pod-dns-laid": true, "answers": true,
		"answers-without-agent": true, "hosts-ended": true, "hosts-silent": true, "kernel-hits": true, "kernel-hits-not": true,
		"kernel-hits-auto": true, "kernel-hits-auto-not": true, "kube-proxy": true,
		"on-link": true, "transparent": true, "transparent-off": true, "transparent-fails": true}
	for name, change := range faultyNodes() {
		f := healthy()
		change(f)
		r := diagnose(f)
		if r.Good != warnOnly[name] {
			t.Errorf("%s: good %t: %s", name, r.Good, r.Verdict)
		}
		seen := map[string]bool{}
		for _, one := range r.Findings {
			seen[one.Check] = true
			if (one.State == OK) != (one.Do == "") {
				t.Errorf("%s: %s is %s with the remedy %q", name, one.Check, one.State, one.Do)
			}
			if strings.Contains(one.What, "%!") || one.What == "" {
				t.Errorf("%s: %s has the text %q", name, one.Check, one.What)
			}
		}
		for _, c := range checks() {
			wanted := !c.steered && c.name != "arrangement" || c.steered != f.want.KernelOnly()
			testutil.Equal(t, fmt.Sprintf("%s: a finding of %s", name, c.name), wanted, seen[c.name])
		}
		if lines := strings.Count(r.Text(), "\n"); lines != len(r.Findings)+2 {
			t.Errorf("%s: %d lines for %d findings", name, lines, len(r.Findings))
		}
	}
}
