// Package inspect looks at the node that it runs on and shows what it found: the facts, the judgement, and the views of the commands
// `status`, `pods` and `doctor`. It only reads and asks, also where the agent is dead.
//
// It must never change anything, and never guess where something could not be looked at: the doctor has a warning of its own for that.
// The judgement (Diagnose) is pure: it is given a picture of a node.
//
// Failure policy: the doctor notes what it cannot look at and goes on; each of its checks reports, also when all is well, so that
// silence never passes for health. `status` is an error where the kernel's rules cannot be read.
package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// State is how one thing is.
type State string

// The states. A warning is about what works and may stop working, or what could not be seen; a failure is about what
// does not work now.
const (
	OK   State = "OK"
	Warn State = "WARN"
	Fail State = "FAIL"
)

// Finding is what one check has to say: one line.
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

// Doctor tells what is wrong on the node and what to do.
func (l *Looker) Doctor(ctx context.Context) Report { return Diagnose(l.picture(ctx)) }

// Diagnose judges a picture. Findings come in the order of a query's way through the node.
func Diagnose(p Picture) Report {
	var r Report
	for _, check := range []struct {
		name string
		look func(Picture, *findings)
	}{
		{"arrangement", checkArrangement},
		{"config", checkConfig}, {"agent", checkAgent}, {"link", checkLink}, {"port 53", checkListeners}, {"rules", checkRules},
		{"firewall", checkFirewall}, {"leases", checkLeases},
		{"fallback", checkFallback}, {"kube-proxy", checkKubeProxy}, {"upstreams", checkUpstreams}, {"answers", checkAnswers},
		{"resolv.conf", checkResolvConf},
		{"conflist", checkConflist}, {"pods", checkPods}, {"pod dns", checkPodDNS}, {"kernel hits", checkKernelHits}, {"kernel", checkKernel}, {"conntrack", checkConntrack},
		{"hosts", checkHosts}, {"folders", checkFolders}, {"neighbours", checkNeighbours},
	} {
		if p.KernelAlone && !slices.Contains(checksOfKernelAlone(), check.name) || !p.KernelAlone && check.name == "arrangement" {
			continue
		}
		f := findings{check: check.name}
		check.look(p, &f)
		r.Findings = append(r.Findings, f.list...)
	}
	r.Verdict, r.Good = verdict(r.Findings, p)
	return r
}

// checksOfKernelAlone are those that have something to look at where there is neither link nor rule nor lease.
func checksOfKernelAlone() []string {
	return []string{"arrangement", "config", "agent", "upstreams", "resolv.conf", "kernel hits", "hosts", "folders"}
}

// checkArrangement tells of a node on which the kernel's hits are all.
func checkArrangement(p Picture, f *findings) {
	if p.KernelHitsOff {
		f.add(Warn, "write kernelHits.mode: \"on\" or namespaces", "transparent, and kernel hits are off: kube-dns answers everything")
		return
	}
	f.ok("transparent: nothing is laid in pods, on links or in netfilter")
}

// findings collects what one check says.
type findings struct {
	check string
	list  []Finding
}

func (f *findings) add(state State, do, format string, args ...any) {
	f.list = append(f.list, Finding{Check: f.check, State: state, What: fmt.Sprintf(format, args...), Do: do})
}

func (f *findings) ok(format string, args ...any) { f.add(OK, "", format, args...) }

// unseen is said of what could not be looked at.
func (f *findings) unseen(err string) {
	f.add(Warn, "run the doctor as root in the host's namespaces, with the agent's configuration", "could not be looked at: %s", err)
}

func (f *findings) silent() bool { return len(f.list) == 0 }

func verdict(list []Finding, p Picture) (string, bool) {
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
	if p.Agent.Unseen {
		who = "this user cannot see who answers steered pods"
	} else if p.KernelAlone {
		who = "kube-dns answers what the kernel does not"
	} else if !p.Table.Present && p.Table.Err == "" {
		who = "without the switch, steered pods reach the agent if it listens, and nobody if not"
	} else if held := p.heldLeases(); held > 0 && p.unasked() {
		who = "steered pods are answered with what the cache holds, and what is not in it fails: it has nobody to ask"
	} else if held > 0 && held == len(p.Targets) {
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

// unasked reports whether nobody who answers for the cluster can be asked, by the agent's word or else by the doctor's own questions.
func (p Picture) unasked() bool {
	if p.Agent.CannotAsk != "" {
		return true
	}
	asked, failed := 0, 0
	for _, a := range p.Upstreams {
		if a.Role == "cluster" {
			asked++
			if a.Err != "" {
				failed++
			}
		}
	}
	for _, a := range p.Fallbacks { // the last resort
		if asked > 0 && a.Err == "" {
			return false
		}
	}
	return asked > 0 && asked == failed
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
