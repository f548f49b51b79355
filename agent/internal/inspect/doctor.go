// Package inspect inspects the node that it runs on, for the commands `status`, `pods` and `doctor`. It reads and sends queries, also if
// the agent is dead.
//
// It never changes anything, and never guesses: the doctor has a warning of its own for what could not be read. The checks are pure: they
// judge the facts that were read before.
//
// Failure policy: the doctor notes what it cannot read and goes on; each check reports, also if all is well, so that silence never passes
// for health. `status` is an error if the kernel's rules cannot be read.
package inspect

import (
	"context"
	"fmt"
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
func (in *Inspector) Doctor(ctx context.Context) Report { return diagnose(in.gather(ctx)) }

// check judges one part of the node. good is its finding if it has neither a warning nor a failure; "" for none.
type check struct {
	name  string
	judge func(*facts, *findings) (good string)
	on    arrangements
}

// arrangements are the nodes that a check is for.
type arrangements int

const (
	onSteered     arrangements = 1 << iota // with link, rules and leases
	onKernelAlone                          // only the kernel serves hits
	onEvery       = onSteered | onKernelAlone
)

// checks are in the order of a query's path through the node.
func checks() []check {
	return []check{
		{"arrangement", checkArrangement, onKernelAlone},
		{"config", checkConfig, onEvery},
		{"agent", checkAgent, onEvery},
		{"link", checkLink, onSteered},
		{"port 53", checkListeners, onSteered},
		{"rules", checkRules, onSteered},
		{"firewall", checkFirewall, onSteered},
		{"leases", checkLeases, onSteered},
		{"fallback", checkFallback, onSteered},
		{"kube-proxy", checkKubeProxy, onSteered},
		{"upstreams", checkUpstreams, onEvery},
		{"answers", checkAnswers, onSteered},
		{"resolv.conf", checkResolvConf, onEvery},
		{"conflist", checkConflist, onSteered},
		{"pods", checkPods, onSteered},
		{"pod dns", checkPodDNS, onSteered},
		{"kernel hits", checkKernelHits, onEvery},
		{"kernel", checkKernel, onSteered},
		{"conntrack", checkConntrack, onSteered},
		{"hosts", checkHosts, onEvery},
		{"folders", checkFolders, onEvery},
		{"neighbours", checkNeighbours, onSteered},
	}
}

// diagnose judges what was read.
func diagnose(f *facts) Report {
	node := onSteered
	if f.want.KernelOnly() {
		node = onKernelAlone
	}
	var all []Finding
	for _, c := range checks() {
		if c.on&node == 0 {
			continue
		}
		r := findings{check: c.name}
		if good := c.judge(f, &r); good != "" && !r.bad {
			all = append(all, Finding{Check: c.name, State: OK, What: good})
		}
		all = append(all, r.list...)
	}
	r := Report{Findings: all}
	r.Verdict, r.Good = verdict(all, f)
	return r
}

// findings collects the findings of one check.
type findings struct {
	check string
	list  []Finding
	bad   bool // it has a warning or a failure
}

func (r *findings) add(state State, do, format string, args ...any) {
	r.list = append(r.list, Finding{Check: r.check, State: state, What: fmt.Sprintf(format, args...), Do: do})
	r.bad = r.bad || state != OK
}

func (r *findings) ok(format string, args ...any)       { r.add(OK, "", format, args...) }
func (r *findings) warn(do, format string, args ...any) { r.add(Warn, do, format, args...) }
func (r *findings) fail(do, format string, args ...any) { r.add(Fail, do, format, args...) }

// unreadable reports err, if it is one.
func (r *findings) unreadable(err error) {
	if err != nil {
		r.warn("run the doctor as root in the host's namespaces, with the agent's configuration", "could not be read: %s", err)
	}
}

func verdict(list []Finding, f *facts) (string, bool) {
	count := map[State]int{}
	for _, one := range list {
		count[one.State]++
	}
	answers := "steered pods are answered by kube-dns"
	if granted, wanted := f.leaseCount(); f.agentUnseen() {
		answers = "this user cannot see which server answers steered pods"
	} else if f.want.KernelOnly() {
		answers = "kube-dns answers all but the kernel's hits"
	} else if !f.present && f.tableErr == nil {
		answers = "without the switch, steered pods reach the agent if it listens, and no server if not"
	} else if granted > 0 && f.noUpstream() {
		answers = "steered pods get entries of the cache, and all other queries fail: no upstream can be queried"
	} else if granted > 0 && granted == wanted {
		answers = "steered pods are answered by the cache"
	} else if granted > 0 {
		answers = "steered pods are answered partly by the cache, partly by kube-dns"
	}
	if n := count[Fail]; n > 0 {
		return "DEGRADED: " + plural(n, "failure") + "; " + answers, false
	} else if n := count[Warn]; n > 0 {
		return "GOOD, with " + plural(n, "warning") + "; " + answers, true
	}
	return "GOOD; " + answers, true
}

// some shortens a list.
func some(list []string) string {
	const most = 2
	if len(list) <= most {
		return strings.Join(list, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(list[:most], "; "), len(list)-most)
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

func entries(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}

// texts returns values as text.
func texts[T fmt.Stringer](values []T) (out []string) {
	for _, v := range values {
		out = append(out, v.String())
	}
	return out
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
