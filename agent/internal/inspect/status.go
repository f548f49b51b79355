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
	"github.com/neardns/neardns/internal/dns/forward"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// Status is what `status` shows: the agent's own status, and the kernel's and the pod files' state without it.
type Status struct {
	Agent   *node.Status  `json:"agent,omitempty"`
	NoAgent string        `json:"noAgent,omitempty"`
	Leases  []kernelLease `json:"kernelLeases"`
	Backend string        `json:"backend"`
	// ConfigFault is what is wrong with the configuration's file, if the agent serves by the one before.
	ConfigFault string                   `json:"configFault,omitempty"`
	Switch      bool                     `json:"switch"` // the host table exists
	Counters    map[string]steer.Counter `json:"counters"`
	Pods        []podReport              `json:"pods"`
	Hosts       *Hosts                   `json:"hosts,omitempty"` // of the role `hosts`, which is no part of the cache
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

// Good reports whether the agent runs and neither it nor its configuration has a fault.
func (r *Status) Good() bool {
	return r.Agent != nil && r.Agent.Ready && len(r.Agent.Faults) == 0 && r.ConfigFault == ""
}

// Status reads the node's status. It needs no agent.
func (in *Inspector) Status(ctx context.Context) (*Status, error) {
	f := in.collect(ctx)
	defer f.close()
	if err := cmp.Or(f.kindErr, f.tableErr); errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w: run the command as root, in the host's namespaces", err)
	} else if err != nil {
		return nil, err
	}
	r := &Status{Backend: f.kind.String(), Agent: f.agent, NoAgent: text(f.agentErr), ConfigFault: text(in.Fault), Switch: f.present}
	for _, held := range f.leases {
		r.Leases = append(r.Leases, kernelLease{held.Address.String(), held.Protocol.String(), held.Expires.Round(time.Millisecond).String()})
	}
	if f.present {
		var err error
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

// upstreamTable lists the upstreams and their state.
func upstreamTable(w io.Writer, upstreams []forward.Status) {
	if len(upstreams) == 0 {
		return
	}
	fmt.Fprintln(w, "\nUPSTREAM\tFOR\tSTATE\tSINCE")
	for _, u := range upstreams {
		state, since := "used", ""
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
		if !u.Since.IsZero() {
			since = u.Since.Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", u.Server, strings.Join(u.Zones, ","), state, since)
	}
}

// whose identifies the agent.
func whose(s *node.Status) string {
	return fmt.Sprintf("instance %s, process %d, version %s", s.Instance, s.PID, s.Version)
}

// counted lists counts by kind.
func counted(counts map[string]int) string {
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, fmt.Sprintf("%s %d", kind, counts[kind]))
	}
	return strings.Join(out, ", ")
}

// verdict is the first line.
func (r *Status) verdict() string {
	switch {
	case r.Agent == nil:
		return fmt.Sprintf("NOT SERVING: %s; pods are answered by kube-dns\n", r.NoAgent)
	case r.Good():
		return fmt.Sprintf("SERVING since %s (%s)\n", r.Agent.Started.Format(time.RFC3339), whose(r.Agent))
	}
	return fmt.Sprintf("DEGRADED (%s, started %s)\n", whose(r.Agent), r.Agent.Started.Format(time.RFC3339))
}

// faults lists what is wrong now, a line each.
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

// Text is the report for people: the verdict first.
func (r *Status) Text() string {
	var b strings.Builder
	b.WriteString(r.verdict())
	b.WriteString(r.faults())
	if r.Agent != nil {
		for _, u := range r.Agent.Unknown {
			fmt.Fprintf(&b, "  warning: %s (it has no effect)\n", u)
		}
		for _, what := range r.Agent.Without {
			fmt.Fprintf(&b, "  without %s\n", what)
		}
		if h := r.Agent.Handover; h != nil {
			fmt.Fprintf(&b, "  taken over from %s at %s, in %s\n", h.From, h.At.Format(time.RFC3339), h.Took)
		}
		if r.Backend != "" && r.Backend != rules.Nftables {
			fmt.Fprintf(&b, "  rules: %s\n", r.Backend)
		}
		if e := r.Agent.External; e != "" {
			fmt.Fprintf(&b, "  external: %s\n", e)
		}
		if c := r.Agent.Cache; c != nil {
			fmt.Fprintf(&b, "  cache: %d KiB of %d KiB, %d hits, %d misses\n", c.Bytes>>10, c.Limit>>10, c.Hits, c.Misses)
		}
		who := "the agent"
		if r.Agent.Arranged != "" {
			who = "kube-dns"
			fmt.Fprintf(&b, "  arrangement: %s\n", r.Agent.Arranged)
		}
		b.WriteString(kernelText(r.Agent.KernelHits, who))
		if f := r.Agent.LastFault; f != nil {
			fmt.Fprintf(&b, "  last fault: %s %s: %s\n", f.Time.Format(time.RFC3339), f.Part, f.What)
		}
		if r.Agent.Repair != "" {
			fmt.Fprintf(&b, "  last repair: %s (since the start: %s)\n", r.Agent.Repair, counted(r.Agent.Repairs))
		}
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if r.Agent != nil && r.Agent.Arranged != "" {
		upstreamTable(w, r.Agent.Upstreams)
	} else if r.Agent != nil {
		fmt.Fprintln(w, "\nADDRESS\tPROTOCOL\tLEASE\tSINCE\tREASON")
		for _, l := range r.Agent.Leases {
			held := "kube-dns answers"
			if l.Held {
				held = "held"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", l.Address, l.Protocol, held, l.Since.Format(time.RFC3339), l.Reason)
		}
		fmt.Fprintln(w, "\nCLUSTER DNS\tSTEERING\tFALLBACK")
		for _, red := range r.Agent.Redirects {
			fallback := "not verified: new pods are pending"
			if slices.Contains(r.Agent.Proven, red.ClusterDNS) {
				fallback = "verified"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", red.ClusterDNS, red.Steering, fallback)
		}
		upstreamTable(w, r.Agent.Upstreams)
		if len(r.Agent.Bypassed) > 0 {
			fmt.Fprintln(w, "\nKUBE-DNS ANSWERS: A POLICY OR FIREWALL DROPS THE QUERIES\tSOURCE\tADDRESS\tPROTOCOL\tSINCE\tNEXT TRIAL")
			for _, b := range r.Agent.Bypassed {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", cmp.Or(b.Pod, "unknown pod"), b.Source, b.Address, b.Protocol,
					b.Since.Format(time.RFC3339), b.NextTrial.Format(time.RFC3339))
			}
		}
	} else if !r.Switch {
		fmt.Fprintln(w, "\nthe switch is not installed on this node")
	}
	if len(r.Counters) > 0 {
		fmt.Fprintln(w, "\nSWITCH\tUDP\tTCP CONNECTIONS")
		fmt.Fprintf(w, "to the agent\t%d\t%d\n", r.Counters[steer.CounterDeliveredUDP].Packets, r.Counters[steer.CounterDeliveredTCP].Packets)
		fmt.Fprintf(w, "to kube-dns\t%d\t%d\n", r.Counters[steer.CounterFallbackUDP].Packets, r.Counters[steer.CounterFallbackTCP].Packets)
		fmt.Fprintln(w, "(with a few fallback checks of the agent a minute)")
	}
	if len(r.Pods) > 0 {
		fmt.Fprintln(w, "\nPOD\tCONTAINER\tINTERFACE\tCLUSTER DNS\tSTATE\tREASON")
		for _, p := range r.Pods {
			for _, d := range p.Decisions {
				fmt.Fprintf(w, "%s\t%.13s\t%s\t%s\t%s\t%s\n", p.Name, p.Container, p.Interface, d.Redirect.ClusterDNS, stateOf(d), d.Reason)
			}
		}
	}
	hostsTable(w, r.Hosts)
	_ = w.Flush() // into memory
	return b.String()
}
