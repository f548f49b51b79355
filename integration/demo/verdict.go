package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// question is a line of a server's log: who asked it for what.
type question struct {
	client             netip.Addr
	qtype, name, proto string
}

// logFormat is what the servers' `log` plugin is told to print; parseLog reads it back.
const logFormat = `asked {remote} {type} {name} {proto}`

// parseLog picks the questions out of a CoreDNS log.
func parseLog(text string) []question {
	var out []question
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		at := slices.Index(f, "asked")
		if at < 0 || len(f) != at+5 {
			continue
		}
		client, err := netip.ParseAddr(strings.Trim(f[at+1], "[]"))
		if err != nil {
			continue
		}
		out = append(out, question{client.Unmap(), f[at+2], strings.ToLower(f[at+3]), f[at+4]})
	}
	return out
}

// named keeps the questions for one name.
func named(all []question, name string) []question {
	return slices.DeleteFunc(slices.Clone(all), func(q question) bool { return q.name != name })
}

// way is how a question was answered.
type way string

const (
	wayHit      way = "cache, hit"
	wayMiss     way = "cache, miss"
	wayKubeDNS  way = "kube-dns"
	wayNoAnswer way = "no answer"
	wayUnknown  way = "unclear"
)

// evidence is everything that is known of one question, from four places: the pod, the logs of both servers, and the
// agent's metrics.
type evidence struct {
	pod      []netip.Addr // the pod's own addresses
	kubeDNS  []question   // that came to kube-dns for this name meanwhile
	upstream []question   // and to the upstream
	hits     int          // by how many the cache's hits went up
	err      error        // why there was no answer
}

// way judges: whoever asked kube-dns tells the two ways apart, since the fallback leaves the pod's address as it is.
func (e evidence) way() way {
	mine := func(q question) bool { return slices.Contains(e.pod, q.client) }
	switch {
	case e.err != nil:
		return wayNoAnswer
	case slices.ContainsFunc(e.kubeDNS, mine):
		return wayKubeDNS
	case len(e.kubeDNS)+len(e.upstream) > 0 && e.hits == 0:
		return wayMiss
	case len(e.kubeDNS)+len(e.upstream) == 0 && e.hits > 0:
		return wayHit
	}
	return wayUnknown
}

// text says what the verdict rests on.
func (e evidence) text() string {
	var parts []string
	for _, s := range []struct {
		name  string
		asked []question
	}{{"kube-dns", e.kubeDNS}, {"the upstream", e.upstream}} {
		for _, q := range s.asked {
			who := "the node"
			if slices.Contains(e.pod, q.client) {
				who = "the pod itself"
			}
			parts = append(parts, fmt.Sprintf("%s was asked by %s, %s, over %s", s.name, q.client, who, q.proto))
		}
	}
	if len(parts) == 0 {
		parts = append(parts, "no server was asked")
	}
	if e.hits > 0 {
		parts = append(parts, fmt.Sprintf("the cache counts %d hit more", e.hits))
	}
	return strings.Join(parts, "; ")
}

// ms prints a duration as people compare them.
func ms(d time.Duration) string {
	if d < 10*time.Millisecond {
		return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
	}
	return fmt.Sprintf("%d ms", d.Milliseconds())
}
