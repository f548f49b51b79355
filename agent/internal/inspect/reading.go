package inspect

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/neardns/neardns/agent/internal/pods/podindex"
	"github.com/neardns/neardns/pkg/steer"
)

// Reading is the state of the node at one time, for `status --watch`.
type Reading struct {
	At     time.Time
	Status *Status
	Pods   []PodView // pods of the running agent; none if there is no agent
}

// Read returns the node's current status and pods.
func (in *Inspector) Read(ctx context.Context) (*Reading, error) {
	s, err := in.Status(ctx)
	if err != nil {
		return nil, err
	}
	m := &Reading{At: time.Now(), Status: s}
	if s.Agent != nil {
		m.Pods, _ = readAgent[[]PodView](ctx, in.socket(), "/pods") // if this fails because the agent ended, the next reading shows that
	}
	return m, nil
}

// topPods is the maximum number of pods that are shown: those with the most queries.
const topPods = 10

// Text returns the reading as text, with rates since the reading before. If before is nil, it shows no rates.
func (m *Reading) Text(before *Reading) string {
	var ofKernel, ofAgent span
	if before != nil {
		ofKernel = span{before: before, seconds: m.At.Sub(before.At).Seconds()}
		// A different agent has counted from zero.
		if was, is := before.Status.Agent, m.Status.Agent; was != nil && is != nil && was.Instance == is.Instance {
			ofAgent = ofKernel
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s\n", m.At.UTC().Format("15:04:05Z"), strings.TrimSuffix(m.Status.verdict(), "\n"))
	b.WriteString(m.Status.faults())
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if a := m.Status.Agent; a != nil {
		row(w, "\nADDRESS", "PROTOCOL", "ANSWERED BY", "SINCE", "REASON")
		for _, l := range a.Leases {
			by := "kube-dns"
			if l.Held {
				by = "the cache"
			}
			row(w, l.Address, l.Protocol, by, l.Since, l.Reason)
		}
	}
	m.switchRates(w, ofKernel)
	_ = w.Flush() // into memory
	m.hitRatio(&b, ofAgent)
	m.podRates(&b, ofAgent)
	return b.String()
}

// span is the time between two readings, over which rates are computed. The zero value means that rates are unknown.
type span struct {
	before  *Reading
	seconds float64
}

// rate returns a counter's increase per second; "-" if unknown.
func (s span) rate(before, now uint64) string {
	if s.before == nil || s.seconds <= 0 || now < before {
		return "-"
	}
	r := float64(now-before) / s.seconds
	if r > 0 && r < 10 {
		return fmt.Sprintf("%.1f", r)
	}
	return fmt.Sprintf("%.0f", r)
}

// switchRates shows the rates of the kernel's counters, which also count while no agent runs.
func (m *Reading) switchRates(w io.Writer, s span) {
	if len(m.Status.Counters) == 0 {
		return
	}
	rate := func(name string) string {
		if s.before == nil || s.before.Status.Counters == nil {
			return "-"
		}
		return s.rate(s.before.Status.Counters[name].Packets, m.Status.Counters[name].Packets)
	}
	row(w, "\nQUERIES PER SECOND", "UDP", "TCP CONNECTIONS")
	row(w, "to the cache", rate(steer.CounterDeliveredUDP), rate(steer.CounterDeliveredTCP))
	row(w, "to kube-dns", rate(steer.CounterFallbackUDP), rate(steer.CounterFallbackTCP))
}

// hitRatio shows the share of hits among the queries that the agent answered.
func (m *Reading) hitRatio(w io.Writer, s span) {
	if s.before == nil || m.Status.Agent.Cache == nil || s.before.Status.Agent.Cache == nil {
		return
	}
	was, now := s.before.Status.Agent.Cache, m.Status.Agent.Cache
	hits, queries := now.Hits-was.Hits, now.Hits-was.Hits+now.Misses-was.Misses
	share := "no queries"
	if queries > 0 {
		share = fmt.Sprintf("%.1f %% of %d queries", 100*float64(hits)/float64(queries), queries)
	}
	fmt.Fprintf(w, "\nin the cache: %s; %d KiB of %d KiB used\n", share, now.Bytes>>10, now.Limit>>10)
}

// podRates lists the pods with the most queries.
func (m *Reading) podRates(b *strings.Builder, s span) {
	if len(m.Pods) == 0 {
		return
	}
	states := map[string]int{}
	for _, v := range m.Pods {
		states[steered(v.Decisions)]++
	}
	fmt.Fprintf(b, "\npods: %s\n", counted(states))
	if s.before == nil {
		return
	}
	was := map[[2]string]*podindex.Counts{}
	for _, v := range s.before.Pods {
		was[[2]string{v.Container, v.Interface}] = v.Counts
	}
	sent := func(v PodView) uint64 { // number of queries since the reading before
		old := was[[2]string{v.Container, v.Interface}]
		if old == nil || v.Counts == nil || v.Counts.Queries <= old.Queries {
			return 0
		}
		return v.Counts.Queries - old.Queries
	}
	clients := slices.DeleteFunc(slices.Clone(m.Pods), func(v PodView) bool { return sent(v) == 0 })
	if len(clients) == 0 {
		return
	}
	slices.SortStableFunc(clients, func(a, b PodView) int { return cmp.Compare(sent(b), sent(a)) })
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	row(w, "\nPOD", "QUERIES PER SECOND", "IN THE CACHE", "FAILED")
	for _, v := range clients[:min(topPods, len(clients))] {
		old := was[[2]string{v.Container, v.Interface}]
		row(w, line(cmp.Or(v.Pod, shortID(v.Container))), s.rate(old.Queries, v.Counts.Queries), s.rate(old.Hits, v.Counts.Hits),
			s.rate(old.Failures, v.Counts.Failures))
	}
	_ = w.Flush() // into memory
	if more := len(clients) - topPods; more > 0 {
		fmt.Fprintf(b, "and %s more\n", plural(more, "pod"))
	}
}

// Frame returns text with the control codes that draw it over the previous text on a terminal: lines are cut to its width, and the rest
// of the previous text is erased. If rows or cols is 0 (no terminal), the text is only followed by an empty line.
func Frame(text string, rows, cols int) string {
	if rows <= 0 || cols <= 0 {
		return text + "\n"
	}
	const home, restOfLine, below = "\x1b[H", "\x1b[K", "\x1b[J"
	var b strings.Builder
	b.WriteString(home)
	for i, l := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if i == rows-1 { // a line feed in the last row would scroll the screen
			break
		}
		if r := []rune(l); len(r) > cols {
			l = string(r[:cols])
		}
		b.WriteString(l + restOfLine + "\n")
	}
	b.WriteString(below)
	return b.String()
}
