package inspect

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/agent/internal/pods/podindex"
	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// PodView is what `neardns-agent pods` shows of one network interface of a pod.
type PodView struct {
	Pod       string       `json:"pod,omitempty"` // namespace/name
	Container string       `json:"containerID"`
	Interface string       `json:"interface"`
	Addresses []netip.Addr `json:"addresses,omitempty"`

	// The DNS settings of the pod's processes, as far as they are known.
	Nameservers []string `json:"nameservers,omitempty"`
	Searches    []string `json:"searches,omitempty"`
	Options     []string `json:"options,omitempty"`
	// Overlay is the state of podDNS's changes to these settings, and Method the way in which they reached the pod.
	Overlay podfile.DNSState `json:"overlay,omitempty"`
	Method  podfile.Method   `json:"lever,omitempty"`
	Reason  string           `json:"reason,omitempty"`

	Decisions []podfile.Decision `json:"decisions"`
	Ignored   []podfile.Ignored  `json:"ignored,omitempty"`

	// Counts since the start of the agent or of the pod, whichever is later. It is nil if no agent runs.
	Counts *podindex.Counts `json:"counts,omitempty"`
}

// PodViews returns what a running agent serves at /pods.
func PodViews(known []podindex.Pod) []PodView {
	out := []PodView{}
	for _, p := range known {
		v := viewOf(p.File)
		v.Counts = &p.Counts
		out = append(out, v)
	}
	sortViews(out)
	return out
}

// Pods returns the node's pods as the running agent reports them. If no agent answers, noAgent is the reason, and the pods' files are
// read instead.
func (in *Inspector) Pods(ctx context.Context) (views []PodView, noAgent error) {
	views, noAgent = readAgent[[]PodView](ctx, in.socket(), "/pods")
	if noAgent == nil {
		return views, nil
	}
	views = []PodView{}
	for _, f := range pods.Open(in.Conf.StateDir, rules.Kind{}, slog.New(slog.DiscardHandler)).List() {
		views = append(views, viewOf(f))
	}
	sortViews(views)
	return views, noAgent
}

func viewOf(f podfile.File) PodView {
	v := PodView{
		Pod: nameOf(f), Container: f.ContainerID, Interface: f.IfName, Addresses: f.Addresses,
		Decisions: f.Decisions, Ignored: f.Ignored,
	}
	if s, known := f.Resolver(); known {
		v.Nameservers, v.Searches, v.Options = s.Nameservers, s.Searches, s.Options
	}
	if f.DNS != nil {
		v.Overlay, v.Method, v.Reason = f.DNS.State, f.DNS.Method, f.DNS.Reason
	}
	return v
}

// nameOf returns a pod's namespace/name; "" if the runtime did not pass them.
func nameOf(f podfile.File) string { return strings.Trim(f.PodNamespace+"/"+f.PodName, "/") }

func sortViews(views []PodView) {
	slices.SortFunc(views, func(a, b PodView) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container), cmp.Compare(a.Interface, b.Interface))
	})
}

// PodsText returns the pods as a table. Control characters are replaced, because names come from other programs.
func PodsText(views []PodView) string {
	if len(views) == 0 {
		return "no pods: the state folder has no pod file\n"
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row(w, "POD", "ADDRESSES", "CLUSTER DNS", "NAMESERVERS", "SEARCH", "OPTIONS", "OVERLAY", "QUERIES", "HITS", "IN KERNEL", "NXDOMAIN",
		"FAILURES")
	for _, v := range views {
		cells := []any{line(cmp.Or(v.Pod, shortID(v.Container))), cmp.Or(steer.JoinAddrs(v.Addresses, ","), "-"), steered(v.Decisions),
			line(strings.Join(v.Nameservers, ",")), line(strings.Join(v.Searches, ",")), line(strings.Join(v.Options, ",")), overlayOf(v)}
		if c := v.Counts; c != nil {
			cells = append(cells, c.Queries, c.Hits, c.Kernel, c.NXDomain, c.Failures)
		} else {
			cells = append(cells, "-", "-", "-", "-", "-")
		}
		row(w, cells...)
	}
	_ = w.Flush() // into memory
	for _, v := range views {
		for _, i := range v.Ignored {
			fmt.Fprintf(&b, "%s: ignored: %s: %s\n", line(cmp.Or(v.Pod, shortID(v.Container))), line(i.What), line(i.Why))
		}
	}
	return b.String()
}

func shortID(id string) string { return id[:min(13, len(id))] }

// steered returns the state of a pod's decisions: one state if all are equal, or else each with its cluster DNS address.
func steered(decisions []podfile.Decision) string {
	states, each := map[string]bool{}, []string{}
	for _, d := range decisions {
		states[stateOf(d)] = true
		each = append(each, d.Redirect.ClusterDNS.String()+" "+stateOf(d))
	}
	if len(states) == 1 {
		return stateOf(decisions[0])
	}
	return cmp.Or(strings.Join(each, ","), "-")
}

// stateOf returns the state of a decision as commands show it.
func stateOf(d podfile.Decision) string {
	switch {
	case len(d.Unanswered) > 0:
		return pods.Bypassed
	case d.Local.IsValid() && (d.State != podfile.LeftAlone || d.Excluded):
		return "served" // the pod names a local address as nameserver, so the host's rules steer or bypass it
	case d.Excluded:
		return pods.LeftAlone + " (steer.mode)"
	}
	return string(d.State)
}

func overlayOf(v PodView) string {
	if v.Method == "" {
		return cmp.Or(string(v.Overlay), "-")
	}
	return string(v.Overlay) + " (" + string(v.Method) + ")"
}

// line replaces control characters in text, so that it fits into one row of a table; "-" if it is empty.
func line(s string) string { return cmp.Or(strings.ReplaceAll(cli.Printable(s), "\n", "?"), "-") }
