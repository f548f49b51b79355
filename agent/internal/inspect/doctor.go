// Package inspect inspects the node that it runs on, for the commands `status`, `pods`, `query` and `doctor`. It reads the node's state
// and sends queries. It does not need a running agent.
//
// It changes nothing on the node, except that its queries may add entries to the agent's cache. The doctor's checks are pure functions of
// facts that were read before.
//
// Failure policy: if something cannot be read, the doctor reports that and goes on. `status` fails if the kernel's rules cannot be read.
package inspect

import (
	"context"
	"fmt"
	"strings"

	"github.com/neardns/neardns/internal/cli"
)

// State is the severity of a finding.
type State string

// The states. Warn means that something works, but not as configured or perhaps not for long, or could not be read. Fail means that
// something does not work now.
const (
	OK   State = "OK"
	Warn State = "WARN"
	Fail State = "FAIL"
)

// Finding is one line of the report.
type Finding struct {
	Check string `json:"check"`
	State State  `json:"state"`
	What  string `json:"what"`
	Do    string `json:"do,omitempty"` // remedy; empty for OK
}

// Report is the result of the doctor.
type Report struct {
	Findings []Finding `json:"findings"`
	Verdict  string    `json:"verdict"`
	Good     bool      `json:"good"` // no finding is Fail
}

// Doctor inspects the node, and reports problems and their remedies.
func (in *Inspector) Doctor(ctx context.Context) Report { return diagnose(in.gather(ctx)) }

// check is one of the doctor's checks. judge adds findings; good is the text of its finding if it has added neither a warning nor a
// failure, and "" for none.
type check struct {
	name    string
	judge   func(*facts, *findings) (good string)
	steered bool // not for nodes with arrangement: transparent, which have neither link nor rules nor leases
}

// checks returns all checks, in the order of the report.
func checks() []check {
	return []check{
		{"arrangement", checkArrangement, false},
		{"config", checkConfig, false},
		{"agent", checkAgent, false},
		{"link", checkLink, true},
		{"rules", checkRules, true},
		{"firewall", checkFirewall, true},
		{"leases", checkLeases, true},
		{"fallback", checkFallback, true},
		{"kube-proxy", checkKubeProxy, true},
		{"upstreams", checkUpstreams, false},
		{"answers", checkAnswers, true},
		{"resolv.conf", checkResolvConf, false},
		{"conflist", checkConflist, true},
		{"pods", checkPods, true},
		{"pod dns", checkPodDNS, true},
		{"kernel hits", checkKernelHits, false},
		{"hosts", checkHosts, false},
	}
}

// diagnose runs the checks on the facts.
func diagnose(f *facts) Report {
	var all []Finding
	for _, c := range checks() {
		if c.steered && f.want.KernelOnly() {
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
	bad   bool // list has a warning or a failure
}

func (r *findings) add(state State, do, format string, args ...any) {
	r.list = append(r.list, Finding{Check: r.check, State: state, What: fmt.Sprintf(format, args...), Do: do})
	r.bad = r.bad || state != OK
}

func (r *findings) ok(format string, args ...any)       { r.add(OK, "", format, args...) }
func (r *findings) warn(do, format string, args ...any) { r.add(Warn, do, format, args...) }
func (r *findings) fail(do, format string, args ...any) { r.add(Fail, do, format, args...) }

// unreadable adds a warning if err is not nil.
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
		answers = "without the host's packet rules, steered pods reach the agent if it listens, and no server if not"
	} else if granted > 0 && f.noUpstream() {
		answers = "steered pods get entries of the cache, but no server for the cluster's names can be queried"
	} else if granted > 0 && granted == wanted {
		answers = "steered pods are answered by the cache"
	} else if granted > 0 {
		answers = "steered pods are answered partly by the cache, partly by kube-dns"
	}
	if n := count[Fail]; n > 0 {
		return "DEGRADED: " + cli.Plural(n, "failure") + "; " + answers, false
	} else if n := count[Warn]; n > 0 {
		return "GOOD, with " + cli.Plural(n, "warning") + "; " + answers, true
	}
	return "GOOD; " + answers, true
}

// some joins at most two items of a list, and the number of the others.
func some(list []string) string {
	const most = 2
	if len(list) <= most {
		return strings.Join(list, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(list[:most], "; "), len(list)-most)
}

// texts returns the String of each value.
func texts[T fmt.Stringer](values []T) (out []string) {
	for _, v := range values {
		out = append(out, v.String())
	}
	return out
}

// Text returns the report as text: one line per finding, then the verdict.
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
