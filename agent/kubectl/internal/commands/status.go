package commands

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/neardns/neardns/agent/internal/overview"
	"github.com/neardns/neardns/agent/kubectl/internal/cluster"
	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/tick"
)

// reading is what was read from one node.
type reading struct {
	cluster.Agent
	Verdict string         `json:"verdict"`
	Reason  string         `json:"reason,omitempty"` // why there is no status
	Status  *overview.Node `json:"status,omitempty"`
	// From is when the counts begin: at the agent's start, or with --interval at the first of two reads unless the agent restarted since.
	From time.Time `json:"countsFrom,omitzero"`
}

// The verdicts.
const (
	serving  = "SERVING"
	degraded = "DEGRADED"
	noAnswer = "NO ANSWER"
	noAgent  = "NO AGENT"
	excluded = "EXCLUDED"
)

func (r *reading) good() bool { return r.Verdict == serving || r.Verdict == excluded }

// seconds returns the length of the time for which the counts are, in seconds.
func (r *reading) seconds() float64 { return r.Status.Time.Sub(r.From).Seconds() }

// readings reads the status of all nodes. With an interval it reads twice, so that the counts can be those of the time in between.
func readings(ctx context.Context, c *cluster.Cluster, interval time.Duration) ([]reading, error) {
	agents, err := c.Agents(ctx)
	if err != nil {
		return nil, err
	}
	read := func() []reading {
		nodes, errs := c.ReadAll(ctx, agents)
		out := make([]reading, len(agents))
		for i, a := range agents {
			out[i] = readingOf(a, &nodes[i], errs[i])
		}
		return out
	}
	now := read()
	if interval <= 0 {
		return now, nil
	}
	before := now
	if !tick.Pause(ctx, interval) {
		return nil, ctx.Err()
	}
	now = read()
	for i := range now {
		now[i].countFrom(before[i])
	}
	return now, nil
}

func readingOf(a cluster.Agent, n *overview.Node, err error) reading {
	r := reading{Agent: a}
	switch {
	case a.Excluded:
		r.Verdict, r.Reason = excluded, err.Error()
	case a.Pod == "":
		r.Verdict, r.Reason = noAgent, err.Error()
	case err != nil:
		r.Verdict, r.Reason = noAnswer, err.Error()
	default:
		r.Verdict, r.Status, r.From = degraded, n, n.Started
		if n.Serving {
			r.Verdict = serving
		}
	}
	return r
}

// countFrom subtracts the counts of an earlier reading, so that only the time since counts. It changes nothing if the agent was restarted
// meanwhile.
func (r *reading) countFrom(before reading) {
	if r.Status == nil || before.Status == nil || r.Status.Instance != before.Status.Instance {
		return
	}
	was := map[string]overview.Counts{}
	for _, p := range before.Status.Pods {
		was[p.Pod] = p.Counts
	}
	r.From, r.Status.Counts = before.Status.Time, r.Status.Counts.Since(before.Status.Counts)
	r.Status.Pods = slices.DeleteFunc(r.Status.Pods, func(p overview.Pod) bool {
		_, known := was[p.Pod]
		return !known && len(was) >= overview.MaxPods // it may have counts from before the earlier reading, which listed MaxPods pods
	})
	for i, p := range r.Status.Pods {
		r.Status.Pods[i].Counts = p.Counts.Since(was[p.Pod])
	}
}

func intervalFlag(c *cobra.Command) *time.Duration {
	return c.Flags().Duration("interval", 0, "time between two reads of each node, for example 5s, to count queries in between; "+
		"default: count since the agent's start")
}

func statusCommand(o *cluster.Options) *cobra.Command {
	c := &cobra.Command{Use: "status", Short: "show every node: serving or not, leases, hit ratio, queries per second, pods, last fault"}
	interval, out := intervalFlag(c), cli.OutputFlag(c, "wide")
	c.RunE = func(c *cobra.Command, _ []string) error {
		cl, err := o.Open(c.ErrOrStderr())
		if err != nil {
			return err
		}
		nodes, err := readings(c.Context(), cl, *interval)
		if err != nil {
			return err
		}
		bad := slices.ContainsFunc(nodes, func(r reading) bool { return !r.good() })
		text := func() string { return statusTable(nodes, out.String() == "wide") }
		return out.Report(c.OutOrStdout(), map[string]any{"nodes": nodes}, text, !bad)
	}
	return c
}

func statusTable(nodes []reading, wide bool) string {
	rows := [][]any{{"NODE", "VERDICT", "VERSION", "LEASES", "HITS", "QUERIES/S", "STEERED", "BYPASSED", "PENDING", "KERNEL", "SINCE", "POD",
		"LAST FAULT"}}
	for _, r := range nodes {
		s, row := r.Status, []any{r.Node, r.Verdict, "-", "-", "-", "-", "-", "-", "-", "-", "-", cmp.Or(r.Pod, "-"), r.Reason}
		if s != nil {
			row = []any{r.Node, r.Verdict, s.Version, leases(s), percent(s.Counts.Hits, s.Counts.Queries), perSecond(s.Counts.Queries, r.seconds()),
				s.States["steered"] + s.States["served"], s.States["given-back"], s.States["pending"],
				percent(s.Counts.Kernel, s.Counts.Queries), r.From.UTC().Format(time.RFC3339), r.Pod, faults(s, wide)}
		}
		rows = append(rows, row)
	}
	if !wide { // without KERNEL, SINCE and POD
		for i := range rows {
			rows[i] = slices.Delete(rows[i], 9, 12)
		}
	}
	return table(rows)
}

// leases returns the text of the column LEASES as held/all, for example 2/4. A node that has only kernel hits has no leases; for it, the
// text is the name of its arrangement.
func leases(n *overview.Node) string {
	if n.Arranged != "" {
		return n.Arranged
	}
	held := 0
	for _, l := range n.Leases {
		if l.Held {
			held++
		}
	}
	return fmt.Sprintf("%d/%d", held, len(n.Leases))
}

// faults returns the present faults and the missing leases; if there are none, the last fault, with its age by the node's clock.
func faults(n *overview.Node, wide bool) string {
	const short = 70
	var all []string
	for _, part := range slices.Sorted(maps.Keys(n.Faults)) {
		all = append(all, "now "+part+": "+n.Faults[part])
	}
	for _, l := range n.Leases {
		if !l.Held {
			all = append(all, "now lease "+l.Address.String()+"/"+l.Protocol+": "+l.Reason)
		}
	}
	if f := n.LastFault; f != nil && len(all) == 0 {
		all = append(all, fmt.Sprintf("%s ago %s: %s", duration.HumanDuration(n.Time.Sub(f.Time)), f.Part, f.What))
	}
	text := strings.ReplaceAll(strings.Join(all, "; "), "\n", " ")
	if letters := []rune(text); !wide && len(letters) > short {
		text = string(letters[:short-1]) + "…"
	}
	return cmp.Or(text, "-")
}
