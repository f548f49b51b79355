package main

import (
	"fmt"
	"time"
)

func each(rounds []outcome, f func(outcome) float64) []float64 {
	v := make([]float64, 0, len(rounds))
	for _, o := range rounds {
		v = append(v, f(o))
	}
	return v
}

func worst(rounds []outcome, f func(outcome) float64) float64 {
	w := 0.0
	for _, x := range each(rounds, f) {
		w = max(w, x)
	}
	return w
}

// progress is one run in a line.
func (o outcome) progress() string {
	line := fmt.Sprintf("lost %d of %d, gap %s; tcp %d of %d; by kube-dns %d; p50 %s p99 %s p99.9 %s", o.UDP.Missed(), o.UDP.Sent, short(o.UDP.Gap),
		o.tcpMissed(), o.TCP.Sent+o.TCPLong.Sent, o.UDP.Direct, us(o.UDP.P50), us(o.UDP.P99), us(o.UDP.P999))
	if o.wrong() > 0 {
		line += fmt.Sprintf("; %d WRONG", o.wrong())
	}
	if o.Kept >= 0 {
		line += "; cache kept " + percent(o.Kept)
	}
	if o.Slower > 0 {
		line += fmt.Sprintf("; p99 × %.2f", o.Slower)
	}
	if o.Grown > 0 {
		line += fmt.Sprintf("; memory × %.2f; flood %d, answered %d", o.Grown, o.Flooded[0], o.Flooded[1])
	}
	if o.Refusal > 0 {
		line += "; slowest SERVFAIL " + short(o.Refusal)
	}
	if o.Died > 0 {
		line += "; ended in " + short(o.Died)
	}
	if o.Dropped != [2]int{} {
		line += fmt.Sprintf("; full buffers dropped %d, at kube-dns %d", o.Dropped[0], o.Dropped[1])
	}
	if o.Waited > busy {
		line += fmt.Sprintf("; a thread of the server waited %s for a CPU within a second", short(o.Waited))
	}
	if o.Late > 50*time.Millisecond {
		line += "; generator late by " + short(o.Late)
	}
	return line
}

func us(d time.Duration) string { return fmt.Sprintf("%.2f ms", d.Seconds()*1000) }
