package inspect

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/tick"
)

// The counters of a pod are read until they show the query, at most countTries times, countPause apart.
const (
	countTries = 10
	countPause = 30 * time.Millisecond
)

// CacheEntry is the running agent's reply at /entry: the state of its cache entry for a name and type.
type CacheEntry struct {
	Found bool `json:"found"`
	Left  int  `json:"left"` // seconds until it expires; 0 or less: it is stale
}

// Lookup is the output of `neardns-agent query`: how a node's cache and kube-dns answer a query for one name.
type Lookup struct {
	Name string `json:"name"`
	Type string `json:"type"`
	// Pod is the pod from whose network namespace the query was sent too. Path is the state of that pod's steering, with the reason.
	Pod  string `json:"pod,omitempty"`
	Path string `json:"path,omitempty"`
	// Cached is the state of the cache's entry before the query: "hit", "stale", "miss" or "no agent answers". Left is the number of
	// seconds until a hit's entry expires.
	Cached  string  `json:"cached"`
	Left    int     `json:"secondsLeft,omitempty"`
	Replies []Reply `json:"replies"`
}

// Reply is the answer of one server.
type Reply struct {
	From    string   `json:"from"` // pod, cache or kube-dns
	Server  string   `json:"server"`
	By      string   `json:"answeredBy"` // kernel, agent, kube-dns or none
	Code    string   `json:"code,omitempty"`
	TTL     uint32   `json:"ttl"` // lowest TTL in seconds of the answer and authority sections
	Records []string `json:"records,omitempty"`
	Millis  float64  `json:"milliseconds"`
	Error   string   `json:"error,omitempty"`
}

// QueryType returns the record type with a name such as AAAA.
func QueryType(name string) (uint16, bool) {
	t, ok := dns.StringToType[strings.ToUpper(name)]
	return t, ok
}

// Lookup sends a query for a name to the agent and to kube-dns, and also from the network namespace of pod if that is set. Like a pod's
// query, it may add an entry to the cache.
func (in *Inspector) Lookup(ctx context.Context, name string, qtype uint16, pod string) (*Lookup, error) {
	f := in.collect(ctx)
	defer f.close()
	if len(f.want.Redirects) == 0 {
		return nil, errors.New("no cluster DNS address is steered on this node")
	}
	to := f.want.Redirects[0]
	q := query{name: dns.Fqdn(name), qtype: qtype}
	l := &Lookup{Name: q.name, Type: dns.TypeToString[qtype], Pod: pod, Cached: "no agent answers", Replies: []Reply{}}
	question, err := msg.AppendQuestion(nil, q.name, qtype, dns.ClassINET)
	if err != nil {
		return nil, fmt.Errorf("%s is no name: %w", name, err)
	}
	if e, err := readAgent[CacheEntry](ctx, in.socket(), "/entry?question="+hex.EncodeToString(question)); err == nil {
		l.Cached = "miss"
		if e.Found && e.Left > 0 {
			l.Cached, l.Left = "hit", e.Left
		} else if e.Found {
			l.Cached = "stale"
		}
	}
	if pod != "" {
		from, err := in.fromPod(ctx, q, pod, l)
		if err != nil {
			return nil, err
		}
		l.Replies = append(l.Replies, from)
	}
	l.Replies = append(l.Replies, q.timed(ctx, "cache", "agent", to.Steering))
	if f.want.InterceptNode {
		q.mark = steer.Mark // else the host's rules would lead the query to the agent
	}
	l.Replies = append(l.Replies, q.timed(ctx, "kube-dns", "kube-dns", to.ClusterDNS))
	return l, nil
}

// fromPod sends the query from a pod's network namespace to its first cluster DNS address. The change of the running agent's counters of
// the pod shows which server answered; without a change it is taken to be kube-dns. If the pod sends another query at the same time, the
// result may be wrong.
func (in *Inspector) fromPod(ctx context.Context, q query, pod string, l *Lookup) (Reply, error) {
	files := pods.Open(in.Conf.StateDir, rules.Kind{}, slog.New(slog.DiscardHandler)).List()
	i := slices.IndexFunc(files, func(f podfile.File) bool { return nameOf(f) == pod && len(f.Decisions) > 0 })
	if i < 0 {
		return Reply{}, fmt.Errorf("this node knows no pod %s: it runs elsewhere, began before neardns, or uses the host's network", pod)
	}
	d := files[i].Decisions[0]
	l.Path = strings.TrimSuffix(stateOf(d)+": "+d.Reason, ": ")
	ns, err := files[i].OpenNetNS()
	if err != nil {
		return Reply{}, fmt.Errorf("enter the network namespace of %s: %w", pod, err)
	}
	defer ns.Close() //nolint:errcheck // only used to enter the netns
	counted := func() (queries, kernel uint64) {
		views, _ := readAgent[[]PodView](ctx, in.socket(), "/pods")
		for _, v := range views {
			if v.Container == files[i].ContainerID && v.Counts != nil {
				queries, kernel = queries+v.Counts.Queries, kernel+v.Counts.Kernel
			}
		}
		return queries, kernel
	}
	queries, kernel := counted()
	q.netNS = ns
	r := q.timed(ctx, "pod", "kube-dns", d.Redirect.ClusterDNS)
	for range countTries { // retry, because the agent may count a query after it has sent the answer
		switch nowQueries, nowKernel := counted(); {
		case nowKernel > kernel:
			r.By = "kernel"
			return r, nil
		case nowQueries > queries:
			r.By = "agent"
			return r, nil
		}
		tick.Pause(ctx, countPause)
	}
	return r, nil
}

// timed sends the query to a server, and returns the answer with its lowest TTL and the time that it took.
func (q query) timed(ctx context.Context, from, by string, server netip.Addr) Reply {
	r := Reply{From: from, Server: server.String(), By: by}
	begun := time.Now()
	m, err := q.send(ctx, netip.AddrPortFrom(server, 53))
	r.Millis = float64(time.Since(begun).Microseconds()) / 1000
	if err != nil {
		r.By, r.Error = "none", err.Error()
		return r
	}
	r.Code = cmp.Or(dns.RcodeToString[m.Rcode], "an unknown code")
	for i, rr := range slices.Concat(m.Answer, m.Ns) {
		if ttl := rr.Header().Ttl; i == 0 || ttl < r.TTL {
			r.TTL = ttl
		}
	}
	for _, rr := range m.Answer {
		r.Records = append(r.Records, strings.ReplaceAll(strings.TrimPrefix(rr.String(), rr.Header().String()), "\t", " "))
	}
	return r
}

// LookupText returns the result of a Lookup as text.
func LookupText(l *Lookup) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", l.Name, l.Type)
	if l.Pod != "" {
		fmt.Fprintf(&b, " from %s, which is %s", l.Pod, line(l.Path))
	}
	fmt.Fprintf(&b, "\nin the cache before: %s", l.Cached)
	if l.Left > 0 {
		fmt.Fprintf(&b, ", %d s left", l.Left)
	}
	b.WriteString("\n\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row(w, "FROM", "SERVER", "ANSWERED BY", "MS", "CODE", "TTL", "RECORDS")
	for _, r := range l.Replies {
		row(w, r.From, r.Server, r.By, r.Millis, cmp.Or(r.Code, "-"), r.TTL, line(cmp.Or(r.Error, strings.Join(r.Records, ", "))))
	}
	_ = w.Flush() // into memory
	return b.String()
}
