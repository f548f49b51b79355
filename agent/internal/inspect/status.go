package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/internal/dns/forward"
	"github.com/neardns/neardns/internal/offload"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// Status is what `status` shows: the agent's own status, and what the kernel, the state folder and the configuration show without the
// agent.
type Status struct {
	Agent   *node.Status  `json:"agent,omitempty"`
	NoAgent string        `json:"noAgent,omitempty"`
	Leases  []kernelLease `json:"kernelLeases"`
	Backend string        `json:"backend"`
	// ConfigFault is the fault of the configuration file, if the agent therefore keeps the previous configuration.
	ConfigFault string                   `json:"configFault,omitempty"`
	Switch      bool                     `json:"switch"` // the host table exists
	Counters    map[string]steer.Counter `json:"counters"`
	Pods        []podReport              `json:"pods"`
	Hosts       *Hosts                   `json:"hosts,omitempty"` // state of the role `hosts`, which the cache does not need
}

type kernelLease struct {
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
	Expires  string `json:"expires"`
}

type podReport struct {
	Name      string             `json:"name"`
	Container string             `json:"containerID"`
	Interface string             `json:"interface"`
	Decisions []podfile.Decision `json:"decisions"`
}

// Good reports whether the agent runs, is ready, and has no fault, and the configuration file has none.
func (r *Status) Good() bool {
	return r.Agent != nil && r.Agent.Ready && len(r.Agent.Faults) == 0 && r.ConfigFault == ""
}

// Status reads the node's status. It works without a running agent.
func (in *Inspector) Status(ctx context.Context) (*Status, error) {
	f := in.collect(ctx)
	defer f.close()
	err := cmp.Or(f.kindErr, f.tableErr)
	if errors.Is(f.agentErr, fs.ErrPermission) { // with arrangement: transparent there is no table to read
		err = cmp.Or(err, f.agentErr)
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w: run the command as root, in the host's namespaces", err)
	} else if err != nil {
		return nil, err
	}
	r := &Status{Backend: f.kind.String(), Agent: f.agent, NoAgent: text(f.agentErr), ConfigFault: text(in.Fault), Switch: f.present}
	for _, held := range f.leases {
		r.Leases = append(r.Leases, kernelLease{held.Address.String(), held.Protocol.String(), held.Expires.Round(time.Millisecond).String()})
	}
	if f.present {
		if r.Counters, err = f.host.Counters(); err != nil {
			return nil, err
		}
	}
	if h := in.hosts(time.Now()); h.Present {
		r.Hosts = &h
	}
	for _, p := range f.pods.List() {
		r.Pods = append(r.Pods, podReport{Name: nameOf(p), Container: p.ContainerID, Interface: p.IfName, Decisions: p.Decisions})
	}
	return r, nil
}

// row writes one row of a table.
func row(w io.Writer, cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = fmt.Sprint(c)
		if at, ok := c.(time.Time); ok {
			texts[i] = rfc3339(at)
		}
	}
	fmt.Fprintln(w, strings.Join(texts, "\t"))
}

// rfc3339 returns a time as text; "" for the zero time.
func rfc3339(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.Format(time.RFC3339)
}

// upstreamTable writes a table of the upstreams and their state.
func upstreamTable(w io.Writer, upstreams []forward.Status) {
	if len(upstreams) == 0 {
		return
	}
	row(w, "\nUPSTREAM", "FOR", "STATE", "SINCE")
	for _, u := range upstreams {
		state := "used"
		if u.LastResort {
			state = "last resort"
		}
		if u.NoTCP {
			state += ", over UDP: it does not take TCP"
		}
		if u.Failing {
			state = "failing (" + u.Reason + "): used last, checked in the background"
		}
		if len(u.Loops) > 0 {
			state = "leads back to this node for " + strings.Join(u.Loops, ", ") + ": not used for them"
		}
		row(w, u.Server, strings.Join(u.Zones, ","), state, u.Since)
	}
}

// counted returns counts as text: each key with its count.
func counted(counts map[string]int) string {
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, fmt.Sprintf("%s %d", kind, counts[kind]))
	}
	return strings.Join(out, ", ")
}

// verdict returns the first line of the status.
func (r *Status) verdict() string {
	a := r.Agent
	switch {
	case a != nil:
	case len(r.Leases) > 0:
		return "UNKNOWN: " + r.NoAgent + "; but a lease is granted, so pods are answered by the cache\n"
	case r.Switch:
		return "NOT SERVING: " + r.NoAgent + "; pods are answered by kube-dns\n"
	default:
		return "NOT SERVING: " + r.NoAgent + "\n"
	}
	agent := fmt.Sprintf("instance %s, process %d, version %s", a.Instance, a.PID, a.Version)
	if r.Good() {
		return "SERVING since " + rfc3339(a.Started) + " (" + agent + ")\n"
	}
	return "DEGRADED (" + agent + ", started " + rfc3339(a.Started) + ")\n"
}

// faults returns the current faults, one per line.
func (r *Status) faults() string {
	if r.Agent == nil {
		return ""
	}
	var b strings.Builder
	for _, part := range slices.Sorted(maps.Keys(r.Agent.Faults)) {
		fmt.Fprintf(&b, "  fault: %s: %s\n", part, r.Agent.Faults[part])
	}
	if r.ConfigFault != "" {
		fmt.Fprintf(&b, "  fault: configuration: %s\n", strings.ReplaceAll(r.ConfigFault, "\n", "; "))
	}
	return b.String()
}

// Text returns the report for people; the first line is the verdict. With wide, it does not shorten container IDs.
func (r *Status) Text(wide bool) string {
	var b strings.Builder
	b.WriteString(r.verdict() + r.faults())
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if r.Agent != nil {
		r.agentLines(&b)
		agentTables(w, r.Agent)
	} else if !r.Switch {
		fmt.Fprintln(w, "\nthe switch is not installed on this node")
	}
	if c := r.Counters; len(c) > 0 {
		row(w, "\nSWITCH", "UDP", "TCP CONNECTIONS")
		row(w, "to the agent", c[steer.CounterDeliveredUDP].Packets, c[steer.CounterDeliveredTCP].Packets)
		row(w, "to kube-dns", c[steer.CounterFallbackUDP].Packets, c[steer.CounterFallbackTCP].Packets)
		fmt.Fprintln(w, "(with a few fallback checks of the agent a minute)")
	}
	if len(r.Pods) > 0 {
		row(w, "\nPOD", "CONTAINER", "INTERFACE", "CLUSTER DNS", "STATE", "REASON")
		for _, p := range r.Pods {
			id := shortID(p.Container)
			if wide {
				id = p.Container
			}
			for _, d := range p.Decisions {
				row(w, p.Name, id, p.Interface, d.Redirect.ClusterDNS, stateOf(d), d.Reason)
			}
		}
	}
	hostsTable(w, r.Hosts)
	_ = w.Flush() // into memory
	return b.String()
}

// agentLines writes what the agent reports about itself, one fact per line.
func (r *Status) agentLines(b *strings.Builder) {
	a := r.Agent
	line := func(format string, args ...any) { fmt.Fprintf(b, "  "+format+"\n", args...) }
	for _, u := range a.Unknown {
		line("warning: %s (it has no effect)", u)
	}
	for _, what := range a.Without {
		line("without %s", what)
	}
	if h := a.Handover; h != nil {
		line("taken over from %s at %s, in %s", h.From, rfc3339(h.At), h.Took)
	}
	if r.Backend != "" && r.Backend != rules.Nftables {
		line("rules: %s", r.Backend)
	}
	if a.External != "" {
		line("external: %s", a.External)
	}
	if c := a.Cache; c != nil {
		line("cache: %d KiB of %d KiB, %d hits, %d misses", c.Bytes>>10, c.Limit>>10, c.Hits, c.Misses)
	}
	if a.Arranged != "" {
		line("arrangement: %s", a.Arranged)
	}
	if a.SteerMode != "" {
		line("steer.mode: %s: kube-dns answers the pods that it does not select", a.SteerMode)
	}
	if k := a.KernelHits; k != nil {
		kernelLines(line, k, a.Arranged != "")
	}
	if f := a.LastFault; f != nil {
		line("last fault: %s %s: %s", rfc3339(f.Time), f.Part, f.What)
	}
	if a.Repair != "" {
		line("last repair: %s (since the start: %s)", a.Repair, counted(a.Repairs))
	}
}

// kernelLines writes the state of kernel hits. alone means that the node has arrangement: transparent.
func kernelLines(line func(format string, args ...any), k *offload.State, alone bool) {
	if k.Fault == "" {
		line("kernel hits: %s, %s offloaded, %d answers", cli.Plural(k.Pods, "pod"), cli.Plural(k.Lent, "entry"), k.Answers)
	} else {
		answerer, off := "the agent", "none"
		if alone {
			answerer = "kube-dns"
		}
		if k.Auto {
			off = "off (kernelHits.mode: auto)"
		}
		line("kernel hits: %s, %s answers them: %s", off, answerer, strings.ReplaceAll(k.Fault, "\n", "; "))
	}
	if len(k.Served) > 0 {
		line("  in place of %s; the agent fetched %d times for them, and was too busy %d times", strings.Join(texts(k.Served), ", "),
			k.Fetched, k.Dropped)
	}
	for _, r := range k.Refused {
		line("  not of %s: %s", r.Pod, r.Why)
	}
}

func agentTables(w io.Writer, a *node.Status) {
	if a.Arranged == "" {
		row(w, "\nADDRESS", "PROTOCOL", "LEASE", "SINCE", "REASON")
		for _, l := range a.Leases {
			state := "kube-dns answers"
			if l.Held {
				state = "held"
			}
			row(w, l.Address, l.Protocol, state, l.Since, l.Reason)
		}
		row(w, "\nCLUSTER DNS", "STEERING", "FALLBACK")
		for _, r := range a.Redirects {
			fallback := "not verified: new pods are pending"
			if slices.Contains(a.Proven, r.ClusterDNS) {
				fallback = "verified"
			}
			row(w, r.ClusterDNS, r.Steering, fallback)
		}
	}
	upstreamTable(w, a.Upstreams)
	if len(a.Bypassed) > 0 {
		row(w, "\nKUBE-DNS ANSWERS: A POLICY OR FIREWALL DROPS THE QUERIES", "SOURCE", "ADDRESS", "PROTOCOL", "SINCE", "NEXT TRIAL")
		for _, b := range a.Bypassed {
			row(w, cmp.Or(b.Pod, "unknown pod"), b.Source, b.Address, b.Protocol, b.Since, b.NextTrial)
		}
	}
}
