package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// limit is what a fault may cost ours. A zero field but lost and tcp is not judged.
type limit struct {
	lost, tcp       int     // queries over UDP, and over both kinds of TCP, without a right answer
	share, tcpShare float64 // the same as shares of those sent, in place of the counts
	gap             time.Duration
	refusal         time.Duration // until one who cannot be answered has a refusal
	kept            float64       // least share of the cache that is still there
	p99             float64       // most that hits may be slower
	memory          float64       // most that the process may grow
}

// String is the limit in the table's words.
func (l limit) String() string {
	out := []string{fmt.Sprintf("%d", l.lost)}
	if l.share > 0 {
		out[0] = percent(l.share)
	}
	if l.gap > 0 {
		out = append(out, "gap "+short(l.gap))
	}
	if l.refusal > 0 {
		out = append(out, "SERVFAIL "+short(l.refusal))
	}
	if l.p99 > 0 {
		out = append(out, fmt.Sprintf("p99 × %g", l.p99))
	}
	if l.memory > 0 {
		out = append(out, fmt.Sprintf("memory × %g", l.memory))
	}
	if l.kept > 0 {
		out = append(out, "cache kept "+percent(l.kept))
	}
	return strings.Join(out, ", ")
}

// measure is one judged figure of an outcome: at most its limit.
type measure struct {
	name         string
	value, limit float64
	print        func(float64) string
}

// measures are what a limit judges in an outcome. Wrong answers are never within a limit.
func (l limit) measures(o outcome) []measure {
	count := func(v float64) string { return fmt.Sprintf("%.0f", v) }
	times := func(v float64) string { return fmt.Sprintf("× %.2f", v) }
	period := func(v float64) string { return short(time.Duration(v)) }
	out := []measure{{"wrong answers", float64(o.wrong()), 0, count}}
	tcp := o.TCP.Sent + o.TCPLong.Sent
	if l.share > 0 {
		out = append(out, measure{"lost over UDP", share(o.UDP.Missed(), o.UDP.Sent), l.share, percent},
			measure{"lost over TCP", share(o.tcpMissed(), tcp), l.tcpShare, percent})
	} else {
		out = append(out, measure{"lost over UDP", float64(o.UDP.Missed()), float64(l.lost), count},
			measure{"lost over TCP", float64(o.tcpMissed()), float64(l.tcp), count})
	}
	if l.gap > 0 {
		out = append(out, measure{"longest gap", float64(o.UDP.Gap), float64(l.gap), period})
	}
	if l.refusal > 0 {
		out = append(out, measure{"slowest SERVFAIL", float64(o.Refusal), float64(l.refusal), period})
	}
	if l.p99 > 0 {
		out = append(out, measure{"p99 of hits", o.Slower, l.p99, times})
	}
	if l.memory > 0 {
		out = append(out, measure{"memory", o.Grown, l.memory, times})
	}
	if l.kept > 0 {
		out = append(out, measure{"cache lost", 1 - o.Kept, 1 - l.kept, percent})
	}
	return out
}

func share(part, of int) float64 {
	if of == 0 {
		return 0
	}
	return float64(part) / float64(of)
}

func percent(v float64) string { return fmt.Sprintf("%.3g %%", 100*v) }

// short prints a time with as many digits as it deserves.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.2g s", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// verdict holds rounds against the limit: what is beyond it in the median, and what was so only in the worst round.
func (l limit) verdict(rounds []outcome) (beyond, sometimes []string) {
	if len(rounds) == 0 {
		return nil, nil
	}
	if slices.ContainsFunc(rounds, func(o outcome) bool { return o.UDP.Sent == 0 }) {
		return []string{"nothing was asked that counts"}, nil
	}
	for k, m := range l.measures(rounds[0]) {
		values := each(rounds, func(o outcome) float64 { return l.measures(o)[k].value })
		typical, worst := median(values), slices.Max(values)
		switch {
		case m.name == "wrong answers" && worst > 0, typical > m.limit:
			beyond = append(beyond, fmt.Sprintf("%s %s (worst %s), at most %s", m.name, m.print(typical), m.print(worst), m.print(m.limit)))
		case worst > m.limit:
			sometimes = append(sometimes, fmt.Sprintf("%s %s in the worst round, at most %s", m.name, m.print(worst), m.print(m.limit)))
		}
	}
	return beyond, sometimes
}

// median is the middle value, of an even number the greater of the two: never better than what was seen.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
