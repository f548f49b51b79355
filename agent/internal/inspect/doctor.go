// Package inspect inspects the node that it runs on, for the commands `status`, `pods` and `doctor`. It reads and sends queries, also if
// the agent is dead.
//
// It never changes anything, and never guesses: the doctor has a warning of its own for what could not be read. The checks (Diagnose) are
// pure: they get a snapshot of a node.
//
// Failure policy: the doctor notes what it cannot read and goes on; each check reports, also if all is well, so that silence never passes
// for health. `status` is an error if the kernel's rules cannot be read.
package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// State is the severity of a finding.
type State string

// The states. A warning is about something that works and may stop working, or that could not be read; a failure is about something that
// does not work now.
const (
	OK   State = "OK"
	Warn State = "WARN"
	Fail State = "FAIL"
)

// Finding is one line of a check.
type Finding struct {
	Check string `json:"check"`
	State State  `json:"state"`
	What  string `json:"what"`
	Do    string `json:"do,omitempty"` // empty where all is well
}

// Report is all of it.
type Report struct {
	Findings []Finding `json:"findings"`
	Verdict  string    `json:"verdict"`
	Good     bool      `json:"good"` // nothing fails
}

// Doctor reports what is wrong on the node and what to do.
func (in *Inspector) Doctor(ctx context.Context) Report { return Diagnose(in.snapshot(ctx)) }

// Diagnose judges a snapshot. Findings are in the order of a query's path through the node.
func Diagnose(snap Snapshot) Report {
	var r Report
	for _, check := range []struct {
		name string
		look func(Snapshot, *findings)
	}{
		{"arrangement", checkArrangement},
		{"config", checkConfig}, {"agent", checkAgent}, {"link", checkLink}, {"port 53", checkListeners}, {"rules", checkRules},
		{"firewall", checkFirewall}, {"leases", checkLeases},
		{"fallback", checkFallback}, {"kube-proxy", checkKubeProxy}, {"upstreams", checkUpstreams}, {"answers", checkAnswers},
		{"resolv.conf", checkResolvConf},
		{"conflist", checkConflist}, {"pods", checkPods}, {"pod dns", checkPodDNS}, {"kernel hits", checkKernelHits}, {"kernel",
			checkKernel}, {"conntrack", checkConntrack},
		{"hosts", checkHosts}, {"folders", checkFolders}, {"neighbours", checkNeighbours},
	} {
		if snap.KernelAlone && !slices.Contains(checksOfKernelAlone(), check.name) || !snap.KernelAlone && check.name == "arrangement" {
			continue
		}
		f := findings{check: check.name}
		check.look(snap, &f)
		r.Findings = append(r.Findings, f.list...)
	}
	r.Verdict, r.Good = verdict(r.Findings, snap)
	return r
}

// checksOfKernelAlone are the checks for a node without link, rules and leases.
func checksOfKernelAlone() []string {
	return []string{"arrangement", "config", "agent", "upstreams", "resolv.conf", "kernel hits", "hosts", "folders"}
}

// checkArrangement reports a node on which only the kernel serves hits.
func checkArrangement(snap Snapshot, f *findings) {
	if snap.KernelHitsOff {
		f.add(Warn, "write kernelHits.mode: \"on\" or namespaces", "transparent, and kernel hits are off: kube-dns answers everything")
		return
	}
	f.ok("transparent: no rules in pods, on links or in netfilter")
}

// findings collects the findings of one check.
type findings struct {
	check string
	list  []Finding
}

func (f *findings) add(state State, do, format string, args ...any) {
	f.list = append(f.list, Finding{Check: f.check, State: state, What: fmt.Sprintf(format, args...), Do: do})
}

func (f *findings) ok(format string, args ...any) { f.add(OK, "", format, args...) }

// unseen reports that something could not be read.
func (f *findings) unseen(err string) {
	f.add(Warn, "run the doctor as root in the host's namespaces, with the agent's configuration", "could not be read: %s", err)
}

func (f *findings) silent() bool { return len(f.list) == 0 }

func verdict(list []Finding, snap Snapshot) (string, bool) {
	warnings, failures := 0, 0
	for _, f := range list {
		switch f.State {
		case Warn:
			warnings++
		case Fail:
			failures++
		case OK:
		}
	}
	who := "steered pods are answered by kube-dns"
	if snap.Agent.Unseen {
		who = "this user cannot see which server answers steered pods"
	} else if snap.KernelAlone {
		who = "kube-dns answers all but the kernel's hits"
	} else if !snap.Table.Present && snap.Table.Err == "" {
		who = "without the switch, steered pods reach the agent if it listens, and no server if not"
	} else if held := snap.heldLeases(); held > 0 && snap.noUpstream() {
		who = "steered pods get entries of the cache, and all other queries fail: no upstream can be queried"
	} else if held > 0 && held == len(snap.Targets) {
		who = "steered pods are answered by the cache"
	} else if held > 0 {
		who = "steered pods are answered partly by the cache, partly by kube-dns"
	}
	switch {
	case failures > 0:
		return fmt.Sprintf("DEGRADED: %s; %s", plural(failures, "failure"), who), false
	case warnings > 0:
		return fmt.Sprintf("GOOD, with %s; %s", plural(warnings, "warning"), who), true
	}
	return "GOOD; " + who, true
}

// noUpstream reports whether no server of the cluster can be queried, by the agent's status or else by the doctor's own queries.
func (snap Snapshot) noUpstream() bool {
	if snap.Agent.CannotAsk != "" {
		return true
	}
	queried, failed := 0, 0
	for _, a := range snap.Upstreams {
		if a.Role == "cluster" {
			queried++
			if a.Err != "" {
				failed++
			}
		}
	}
	for _, a := range snap.Fallbacks { // the last resort
		if queried > 0 && a.Err == "" {
			return false
		}
	}
	return queried > 0 && queried == failed
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// Text is the report for people: a line a finding, the verdict last.
func (r Report) Text() string {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%-4s  %-11s  %s", f.State, f.Check, strings.ReplaceAll(f.What, "\n", "; "))
		if f.Do != "" {
			fmt.Fprintf(&b, ". Do: %s", f.Do)
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "\n%s\n", r.Verdict)
	return b.String()
}
