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

	"github.com/neardns/neardns/pkg/steer"
)

// Moment is what `status --watch` sees of the node at one time.
type Moment struct {
	At     time.Time
	Status *Status
	Pods   []PodView // by the running agent's word; none while there is no agent
}

// Moment looks at the node.
func (l *Looker) Moment(ctx context.Context) (*Moment, error) {
	s, err := l.Status(ctx)
	if err != nil {
		return nil, err
	}
	m := &Moment{At: time.Now(), Status: s}
	if s.Agent != nil {
		m.Pods, _ = askPods(ctx, l.socket()) // an agent that ended meanwhile is the next moment's news
	}
	return m, nil
}

// topPods is how many pods are shown: those that ask most.
const topPods = 10

// Text is what people see: who serves, who answers, and what was asked since the moment before. before is nil at the first one, and
// then no rate is known.
func (m *Moment) Text(before *Moment) string {
	var ofKernel, ofAgent span
	if before != nil {
		ofKernel = span{before: before, seconds: m.At.Sub(before.At).Seconds()}
		// Another agent began to count anew.
		if was, is := before.Status.Agent, m.Status.Agent; was != nil && is != nil && was.Instance == is.Instance {
			ofAgent = ofKernel
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s\n", m.At.UTC().Format("15:04:05Z"), strings.TrimSuffix(m.Status.verdict(), "\n"))
	b.WriteString(m.Status.faults())
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if a := m.Status.Agent; a != nil {
		fmt.Fprintln(w, "\nADDRESS\tPROTOCOL\tANSWERED BY\tSINCE\tREASON")
		for _, l := range a.Leases {
			by := "kube-dns"
			if l.Held {
				by = "the cache"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", l.Address, l.Protocol, by, l.Since.Format(time.RFC3339), l.Reason)
		}
	}
	m.switchRates(w, ofKernel)
	_ = w.Flush() // into memory
	m.hitRatio(&b, ofAgent)
	m.podRates(&b, ofAgent)
	return b.String()
}

// span is the time between two moments. The zero value is none.
type span struct {
	before  *Moment
	seconds float64
}

// rate is how often something was counted a second; "-" where that is not known.
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

// switchRates are the kernel's own counts, which go on while no agent runs.
func (m *Moment) switchRates(w io.Writer, s span) {
	if len(m.Status.Counters) == 0 {
		return
	}
	rate := func(name string) string {
		if s.before == nil || s.before.Status.Counters == nil {
			return "-"
		}
		return s.rate(s.before.Status.Counters[name].Packets, m.Status.Counters[name].Packets)
	}
	fmt.Fprintln(w, "\nQUESTIONS A SECOND\tUDP\tTCP CONNECTIONS")
	fmt.Fprintf(w, "to the cache\t%s\t%s\n", rate(steer.CounterDeliveredUDP), rate(steer.CounterDeliveredTCP))
	fmt.Fprintf(w, "to kube-dns\t%s\t%s\n", rate(steer.CounterFallbackUDP), rate(steer.CounterFallbackTCP))
}

// hitRatio says how much of what was asked of the agent was in its cache.
func (m *Moment) hitRatio(w io.Writer, s span) {
	if m.Status.Agent == nil || m.Status.Agent.Cache == nil {
		return
	}
	now := m.Status.Agent.Cache
	if s.before == nil || s.before.Status.Agent.Cache == nil {
		return
	}
	was := s.before.Status.Agent.Cache
	hits, misses := now.Hits-was.Hits, now.Misses-was.Misses
	if hits < 0 || misses < 0 || hits+misses == 0 {
		fmt.Fprintf(w, "\nin the cache: nobody asked; %d KiB of %d KiB taken\n", now.Bytes>>10, now.Limit>>10)
		return
	}
	fmt.Fprintf(w, "\nin the cache: %.1f %% of %d questions; %d KiB of %d KiB taken\n", 100*float64(hits)/float64(hits+misses), hits+misses,
		now.Bytes>>10, now.Limit>>10)
}

// podRates lists the pods that ask most. What they ask for is not counted anywhere.
func (m *Moment) podRates(b *strings.Builder, s span) {
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
	type asker struct {
		name, queries, hits, failed string
		sent                        uint64
	}
	was := map[[2]string]PodView{}
	for _, v := range s.before.Pods {
		was[[2]string{v.Container, v.Interface}] = v
	}
	var askers []asker
	for _, v := range m.Pods {
		old, known := was[[2]string{v.Container, v.Interface}]
		if !known || old.Counts == nil || v.Counts == nil || v.Counts.Queries <= old.Counts.Queries {
			continue
		}
		askers = append(askers, asker{name: line(cmp.Or(v.Pod, shortID(v.Container))), sent: v.Counts.Queries - old.Counts.Queries,
			queries: s.rate(old.Counts.Queries, v.Counts.Queries), hits: s.rate(old.Counts.Hits, v.Counts.Hits),
			failed: s.rate(old.Counts.Failures, v.Counts.Failures)})
	}
	if len(askers) == 0 {
		return
	}
	slices.SortStableFunc(askers, func(a, b asker) int { return cmp.Compare(b.sent, a.sent) })
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nPOD\tQUESTIONS A SECOND\tIN THE CACHE\tFAILED")
	for _, a := range askers[:min(topPods, len(askers))] {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", a.name, a.queries, a.hits, a.failed)
	}
	_ = w.Flush() // into memory
	if more := len(askers) - topPods; more > 0 {
		fmt.Fprintf(b, "and %s more\n", plural(more, "pod"))
	}
}

// Frame is a text as a terminal of a size shows it over the one before: lines are cut, and what was drawn before is gone. A terminal of
// no size is none, and then the text stands below the one before.
func Frame(text string, rows, cols int) string {
	if rows <= 0 || cols <= 0 {
		return text + "\n"
	}
	const home, restOfLine, below = "\x1b[H", "\x1b[K", "\x1b[J"
	var b strings.Builder
	b.WriteString(home)
	for i, l := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if i == rows-1 { // a line feed in the last row would scroll
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
