package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/coredns/ask"
	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/backend"
)

const statusTimeout = 3 * time.Second

// report is what `status` shows: the agent's own word, and what the kernel and the pod files say without it.
type report struct {
	Agent   *node.Status  `json:"agent,omitempty"`
	NoAgent string        `json:"noAgent,omitempty"`
	Leases  []kernelLease `json:"kernelLeases"`
	Backend string        `json:"backend"`
	// ConfigFault is what is wrong with the configuration's file, where the agent serves by the one before.
	ConfigFault string                   `json:"configFault,omitempty"`
	Switch      bool                     `json:"switch"` // the host table is there
	Counters    map[string]steer.Counter `json:"counters"`
	Pods        []podReport              `json:"pods"`
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

func runStatus(ctx context.Context, e env, args []string) error {
	fs := flags(e, "status")
	path := configFlag(fs)
	asJSON := fs.Bool("json", false, "print JSON")
	if err := parse(fs, args); err != nil {
		return err
	}
	conf, fault, err := inEffect(ctx, e, *path)
	if err != nil {
		return err
	}
	r, err := look(ctx, conf)
	if err != nil {
		return err
	}
	r.ConfigFault = text(fault)
	if *asJSON {
		enc := json.NewEncoder(e.stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(r)
	} else {
		_, err = io.WriteString(e.stdout, r.text())
	}
	if err != nil {
		return err
	}
	if r.Agent == nil || !r.Agent.Ready || len(r.Agent.Faults) > 0 || r.ConfigFault != "" {
		return &exitError{code: exitDegraded}
	}
	return nil
}

func look(ctx context.Context, conf *config.Node) (*report, error) {
	stateDir := conf.StateDir
	k, err := installed(stateDir)
	if err != nil {
		return nil, err
	}
	r := &report{Backend: k.String()}
	agent, err := askAgent(ctx, filepath.Join(stateDir, socketName))
	if err != nil {
		r.NoAgent = err.Error()
	} else {
		r.Agent = agent
	}
	rules, err := k.OpenHost(-1)
	if err != nil {
		return nil, err
	}
	defer rules.Close() //nolint:errcheck // only read
	if r.Switch, err = rules.Present(); err != nil {
		return nil, err
	}
	if r.Switch {
		leases, err := rules.Leases(conf.Lease.Renew, conf.Lease.Lifetime)
		if err != nil {
			return nil, err
		}
		for _, l := range leases {
			r.Leases = append(r.Leases, kernelLease{l.Address.String(), l.Protocol.String(), l.Expires.Round(time.Millisecond).String()})
		}
		if r.Counters, err = rules.Counters(); err != nil {
			return nil, err
		}
	}
	for _, f := range pods.Open(stateDir, k, discardLog()).List() {
		r.Pods = append(r.Pods, podReport{Name: strings.Trim(f.PodNamespace+"/"+f.PodName, "/"), Container: f.ContainerID, Interface: f.IfName, Decisions: f.Decisions})
	}
	return r, nil
}

// askAgent reads the running agent's status from its socket.
func askAgent(ctx context.Context, socket string) (*node.Status, error) {
	resp, cancel, err := get(ctx, socket, "/status")
	if err != nil {
		return nil, err
	}
	defer cancel()
	defer resp.Body.Close() //nolint:errcheck // read to the end
	var s node.Status
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		return nil, fmt.Errorf("read the agent's status: %w", err)
	}
	return &s, nil
}

// upstreamTable says whom the agent asks, and how they do.
func upstreamTable(w io.Writer, upstreams []ask.Status) {
	if len(upstreams) == 0 {
		return
	}
	fmt.Fprintln(w, "\nUPSTREAM\tFOR\tSTATE\tSINCE")
	for _, u := range upstreams {
		state, since := "asked", ""
		if u.LastResort {
			state = "last resort"
		}
		if u.NoTCP {
			state += ", over UDP: it does not take TCP"
		}
		if u.Failing {
			state = "failing (" + u.Reason + "): asked last, tried in the background"
		}
		if len(u.Loops) > 0 {
			state = "leads back to this node for " + strings.Join(u.Loops, ", ") + ": not asked for them"
		}
		if !u.Since.IsZero() {
			since = u.Since.Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", u.Server, strings.Join(u.Zones, ","), state, since)
	}
}

// whose names the process that speaks.
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

// text is the report for people: the verdict first.
func (r *report) text() string {
	var b strings.Builder
	switch {
	case r.Agent == nil:
		fmt.Fprintf(&b, "NOT SERVING: %s; pods are answered by kube-dns\n", r.NoAgent)
	case r.Agent.Ready && len(r.Agent.Faults) == 0 && r.ConfigFault == "":
		fmt.Fprintf(&b, "SERVING since %s (%s)\n", r.Agent.Started.Format(time.RFC3339), whose(r.Agent))
	default:
		fmt.Fprintf(&b, "DEGRADED (%s, started %s)\n", whose(r.Agent), r.Agent.Started.Format(time.RFC3339))
	}
	if r.Agent != nil {
		for _, part := range slices.Sorted(maps.Keys(r.Agent.Faults)) {
			fmt.Fprintf(&b, "  fault: %s: %s\n", part, r.Agent.Faults[part])
		}
		if r.ConfigFault != "" {
			fmt.Fprintf(&b, "  fault: configuration: %s\n", strings.ReplaceAll(r.ConfigFault, "\n", "; "))
		}
		for _, u := range r.Agent.Unknown {
			fmt.Fprintf(&b, "  warning: %s (it has no effect)\n", u)
		}
		for _, what := range r.Agent.Without {
			fmt.Fprintf(&b, "  without %s\n", what)
		}
		if h := r.Agent.Handover; h != nil {
			fmt.Fprintf(&b, "  taken over from %s at %s, in %s\n", h.From, h.At.Format(time.RFC3339), h.Took)
		}
		if r.Backend != "" && r.Backend != backend.Nftables {
			fmt.Fprintf(&b, "  rules: %s\n", r.Backend)
		}
		if e := r.Agent.External; e != "" {
			fmt.Fprintf(&b, "  external: %s\n", e)
		}
		if c := r.Agent.Cache; c != nil {
			fmt.Fprintf(&b, "  cache: %d KiB of %d KiB, %d hits, %d misses\n", c.Bytes>>10, c.Limit>>10, c.Hits, c.Misses)
		}
		if f := r.Agent.LastFault; f != nil {
			fmt.Fprintf(&b, "  last fault: %s %s: %s\n", f.Time.Format(time.RFC3339), f.Part, f.What)
		}
		if r.Agent.Repair != "" {
			fmt.Fprintf(&b, "  last repair: %s (since the start: %s)\n", r.Agent.Repair, counted(r.Agent.Repairs))
		}
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if r.Agent != nil {
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
			proven := "not proven: new pods wait"
			if slices.Contains(r.Agent.Proven, red.ClusterDNS) {
				proven = "proven"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", red.ClusterDNS, red.Steering, proven)
		}
		upstreamTable(w, r.Agent.Upstreams)
		if len(r.Agent.Bypassed) > 0 {
			fmt.Fprintln(w, "\nKUBE-DNS ANSWERS, SINCE A POLICY OR FIREWALL DROPS THE QUESTIONS\tSOURCE\tADDRESS\tPROTOCOL\tSINCE\tNEXT TRIAL")
			for _, b := range r.Agent.Bypassed {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", cmp.Or(b.Pod, "not a pod that is known here"), b.Source, b.Address, b.Protocol,
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
		fmt.Fprintln(w, "(the agent's own proofs of that way are among them, a few a minute)")
	}
	if len(r.Pods) > 0 {
		fmt.Fprintln(w, "\nPOD\tCONTAINER\tINTERFACE\tCLUSTER DNS\tSTATE\tREASON")
		for _, p := range r.Pods {
			for _, d := range p.Decisions {
				fmt.Fprintf(w, "%s\t%.13s\t%s\t%s\t%s\t%s\n", p.Name, p.Container, p.Interface, d.Redirect.ClusterDNS, stateOf(d), d.Reason)
			}
		}
	}
	_ = w.Flush() // into memory
	return b.String()
}
