package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/backend"
)

// podView is what `pods` shows of one attachment.
type podView struct {
	Pod       string       `json:"pod,omitempty"` // namespace/name
	Container string       `json:"containerID"`
	Interface string       `json:"interface"`
	Addresses []netip.Addr `json:"addresses,omitempty"`

	// What its processes resolve with; all empty where the runtime tells nobody.
	Nameservers []string `json:"nameservers,omitempty"`
	Searches    []string `json:"searches,omitempty"`
	Options     []string `json:"options,omitempty"`
	// Overlay tells what became of the overlay on these settings, and Lever by what it reached the pod.
	Overlay podfile.DNSState `json:"overlay,omitempty"`
	Lever   podfile.Lever    `json:"lever,omitempty"`
	Reason  string           `json:"reason,omitempty"`

	SearchCompletion bool               `json:"searchCompletion"`
	Decisions        []podfile.Decision `json:"decisions"`
	Ignored          []podfile.Ignored  `json:"ignored,omitempty"`

	// Since the agent's start, or since the pod's; absent where no agent counts.
	Counts *podCounts `json:"counts,omitempty"`
}

// podCounts are a pod's questions that the agent answered. Those that kube-dns answered are not among them.
type podCounts struct {
	Queries  uint64 `json:"queries"`
	Hits     uint64 `json:"hits"`     // of these, from the cache
	Failures uint64 `json:"failures"` // of these, with neither an answer nor that there is no such name
}

// view is what the running agent tells of its pods.
func (c *clients) view() []podView {
	out := []podView{}
	conf := c.conf.Load()
	for _, p := range c.index.All() {
		v := viewOf(p.file, conf)
		v.Counts = &podCounts{Queries: p.tally.queries.Load(), Hits: p.tally.hits.Load(), Failures: p.tally.failures.Load()}
		out = append(out, v)
	}
	sortViews(out)
	return out
}

func viewOf(f podfile.File, conf *config.Node) podView {
	v := podView{
		Pod: strings.Trim(f.PodNamespace+"/"+f.PodName, "/"), Container: f.ContainerID, Interface: f.IfName, Addresses: f.Addresses,
		SearchCompletion: searchOf(f, conf) != nil, Decisions: f.Decisions, Ignored: f.Ignored,
	}
	if s, known := f.Resolver(); known {
		v.Nameservers, v.Searches, v.Options = s.Nameservers, s.Searches, s.Options
	}
	if f.DNS != nil {
		v.Overlay, v.Lever, v.Reason = f.DNS.State, f.DNS.Lever, f.DNS.Reason
	}
	return v
}

func sortViews(views []podView) {
	slices.SortFunc(views, func(a, b podView) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container), cmp.Compare(a.Interface, b.Interface))
	})
}

func runPods(ctx context.Context, e env, args []string) error {
	fs := flags(e, "pods")
	path := configFlag(fs)
	asJSON := fs.Bool("json", false, "print JSON")
	if err := parse(fs, args); err != nil {
		return err
	}
	conf, err := loadConfig(e, *path)
	if err != nil {
		return err
	}
	views, noAgent := askPods(ctx, filepath.Join(conf.StateDir, socketName))
	if noAgent != nil {
		views = []podView{}
		for _, f := range pods.Open(conf.StateDir, backend.Kind{}, discardLog()).List() {
			views = append(views, viewOf(f, conf))
		}
		sortViews(views)
	}
	if *asJSON {
		enc := json.NewEncoder(e.stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(views)
	} else {
		_, err = io.WriteString(e.stdout, podsText(views))
	}
	if err != nil {
		return err
	}
	if noAgent != nil {
		return &exitError{code: exitDegraded, err: fmt.Errorf("%w; this is what the pods' files say", noAgent)}
	}
	return nil
}

// askPods reads the pods from the running agent.
func askPods(ctx context.Context, socket string) ([]podView, error) {
	resp, cancel, err := get(ctx, socket, "/pods")
	if err != nil {
		return nil, err
	}
	defer cancel()
	defer resp.Body.Close() //nolint:errcheck // read to the end
	var views []podView
	if err := json.NewDecoder(resp.Body).Decode(&views); err != nil {
		return nil, fmt.Errorf("read the agent's pods: %w", err)
	}
	return views, nil
}

// podsText is the table for people. Words of the runtime's and of pods' owners come from outside, so a line stays one.
func podsText(views []podView) string {
	if len(views) == 0 {
		return "no pods: none was made since the plugin is in the network's list\n"
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "POD\tADDRESSES\tCLUSTER DNS\tNAMESERVERS\tSEARCH\tOPTIONS\tOVERLAY\tCOMPLETION\tQUERIES\tHITS\tFAILURES")
	for _, v := range views {
		completion := "off"
		if v.SearchCompletion {
			completion = "on"
		}
		counts := [3]string{"-", "-", "-"}
		if c := v.Counts; c != nil {
			counts = [3]string{strconv.FormatUint(c.Queries, 10), strconv.FormatUint(c.Hits, 10), strconv.FormatUint(c.Failures, 10)}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", line(cmp.Or(v.Pod, shortID(v.Container))), listed(v.Addresses), steered(v.Decisions),
			line(strings.Join(v.Nameservers, ",")), line(strings.Join(v.Searches, ",")), line(strings.Join(v.Options, ",")), overlaid(v), completion,
			counts[0], counts[1], counts[2])
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

func listed(in []netip.Addr) string {
	var out []string
	for _, a := range in {
		out = append(out, a.String())
	}
	return cmp.Or(strings.Join(out, ","), "-")
}

// steered sums the decisions up: one word where they agree.
func steered(decisions []podfile.Decision) string {
	var states []string
	for _, d := range decisions {
		states = append(states, stateOf(d))
	}
	if all := slices.Compact(slices.Clone(states)); len(all) == 1 {
		return all[0]
	}
	var out []string
	for _, d := range decisions {
		out = append(out, d.Redirect.ClusterDNS.String()+" "+stateOf(d))
	}
	return cmp.Or(strings.Join(out, ","), "-")
}

// stateOf tells those that were given back from those that wait for the fallback's proof.
func stateOf(d podfile.Decision) string {
	if len(d.Unanswered) > 0 {
		return pods.GivenBack
	}
	return string(d.State)
}

func overlaid(v podView) string {
	if v.Lever == "" {
		return cmp.Or(string(v.Overlay), "-")
	}
	return string(v.Overlay) + " (" + string(v.Lever) + ")"
}

// line keeps text from breaking the table, and says that there is none.
func line(s string) string {
	return cmp.Or(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, s), "-")
}
