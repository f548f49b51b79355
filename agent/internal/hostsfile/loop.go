package hostsfile

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/node/backoff"
	"github.com/neardns/neardns/pkg/hostsfile"
	"github.com/neardns/neardns/pkg/nodestate"
)

// Hosts implements the role `hosts`. New makes it; Run is called once. The other exported methods may be called from any goroutine.
type Hosts struct {
	log      *slog.Logger
	pace     pace
	early    time.Duration // first pause between rounds while a Service has had no answer yet; later ones are longer, up to pace.every
	patience time.Duration // how long kube-dns must deny a name before its lines are removed
	store    func(nodestate.Hosts) error
	counts   *counts

	// Fields that only Run's goroutine uses.
	conf     Config
	resolver *resolver
	file     *file
	known    memory
	recalled bool              // recall was called with the lines that the file had at the start
	written  []hostsfile.Entry // neardns's lines after the last successful update; if the file has others, another program changed them
	conflict backoff.Conflict
	retry    <-chan time.Time // fires when a conflict with another program allows the next repair

	mu    sync.Mutex // guards state
	state nodestate.Hosts
}

// New returns the role `hosts` for the hosts file below root, where the host's root is mounted. store stores the state that `status` and
// `doctor` show; its errors are logged.
func New(log *slog.Logger, root string, conf Config, store func(nodestate.Hosts) error) *Hosts {
	h := &Hosts{log: log, pace: defaultPace(), early: defaultEarly, patience: defaultPatience, store: store, counts: newCounts(),
		file: &file{root: root}, known: memory{}}
	h.configure(conf)
	return h
}

// configure applies a configuration. Facts about Services that stay in it are kept.
func (h *Hosts) configure(conf Config) {
	h.conf, h.resolver = conf, &resolver{domain: conf.Domain, servers: conf.Servers}
	maps.DeleteFunc(h.known, func(k key, _ fact) bool { return !slices.Contains(conf.Services, k.service) })
}

// Run keeps the lines in the hosts file up to date until ctx ends; they stay in the file then. changed delivers a value when the file may
// have changed, and reload each new configuration.
func (h *Hosts) Run(ctx context.Context, changed <-chan struct{}, reload <-chan Config) {
	h.mu.Lock()
	h.state.Since = time.Now()
	h.mu.Unlock()
	next, early := time.After(0), h.early
	var between <-chan time.Time
	round := func(keys []key) {
		h.reconcile(ctx) // before the queries, because kube-dns may take long to answer
		if len(keys) > 0 {
			h.query(ctx, keys)
			h.reconcile(ctx)
		}
		unanswered := func(k key) bool { return h.known[k].answered.IsZero() }
		if early < h.pace.every && slices.ContainsFunc(h.conf.keys(), unanswered) {
			next = time.After(early)
			early *= 2
		} else if wait, ok := h.pace.between(time.Now(), h.known); ok {
			between = time.After(wait)
		}
	}
	for {
		select {
		case <-ctx.Done():
			h.update(func(s *nodestate.Hosts) { s.Ended = true })
			return
		case <-next:
			next = time.After(h.pace.begin(time.Now()))
			round(h.conf.keys())
		case <-between:
			round(h.pace.take(time.Now(), h.known))
		case <-changed:
			h.reconcile(ctx)
		case <-h.retry:
			h.reconcile(ctx)
		case conf := <-reload:
			h.configure(conf)
			h.log.Info("new configuration in effect; its Services are queried now", "services", len(conf.Services))
			next = time.After(0)
		}
	}
}

// query sends the queries for keys and learns from the replies.
func (h *Hosts) query(ctx context.Context, keys []key) {
	hasAddrs := map[key]bool{}
	for _, k := range keys {
		hasAddrs[k] = len(h.known[k].addrs) > 0
	}
	replies, trusted := h.resolver.round(ctx, keys, hasAddrs)
	if ctx.Err() != nil {
		return // the role ends: the queries failed for that reason
	}
	now := time.Now()
	for k, r := range replies {
		h.counts.queries.WithLabelValues(r.result()).Inc()
		h.known.learn(k, r, trusted[k], now, h.patience)
	}
}

// reconcile writes the lines that are known into the hosts file, unless a conflict delays that.
func (h *Hosts) reconcile(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	c, err := h.file.read()
	if err != nil {
		h.report(nil, err)
		return
	}
	ours := hostsfile.Ours(c.text)
	if !h.recalled {
		h.recalled = true
		h.known.recall(h.conf, ours)
		h.log.Info("neardns's earlier lines read from the hosts file", "file", c.path, "lines", len(ours))
	}
	now := time.Now()
	undone := h.written != nil && !slices.EqualFunc(ours, h.written, hostsfile.Entry.Equal)
	if undone && !h.conflict.Due(now) {
		h.retry = time.After(h.conflict.Until().Sub(now))
		return
	}
	entries := h.known.entries(h.conf)
	written, left, err := h.file.apply(ctx, entries)
	if err == nil { // computed instead of read from the file, because another program may have written it since
		after, _ := hostsfile.Apply(c.text, entries)
		h.written = append([]hostsfile.Entry{}, hostsfile.Ours(after)...)
	}
	h.count(written, undone, err, now)
	h.report(left, err)
}

// count counts writes and repairs in the metrics, and logs updates and the begin and end of a conflict with another program. While a
// conflict lasts, it sets the time of the next repair.
func (h *Hosts) count(written, undone bool, err error, now time.Time) {
	switch {
	case err != nil:
		h.counts.writes.WithLabelValues("failed").Inc()
	case written:
		h.counts.writes.WithLabelValues("ok").Inc()
	}
	if written && undone {
		h.counts.repairs.Inc()
		if h.conflict.Repaired(now) {
			h.log.Warn("another program keeps changing neardns's lines in the hosts file; repairs are less frequent until it stops")
		}
		if _, lasts := h.conflict.Lasts(); lasts {
			h.retry = time.After(h.conflict.Until().Sub(now))
		}
		h.update(func(s *nodestate.Hosts) { s.Repairs++ })
	} else if written {
		h.log.Info("Service lines in the hosts file updated", "lines", len(h.written))
	}
	if repairs, ended := h.conflict.Ended(now); ended {
		h.log.Info("conflict over: no other program changes neardns's lines in the hosts file any more", "repairs", repairs)
	}
}

// report stores the role's state, and logs what is new in it.
func (h *Hosts) report(left []string, err error) {
	fault := ""
	if err != nil && !errors.Is(err, context.Canceled) {
		fault = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	var services []nodestate.HostsService
	for _, s := range h.conf.Services {
		services = append(services, h.service(s, left))
	}
	before := h.State()
	h.update(func(s *nodestate.Hosts) {
		s.Looked, s.Fault, s.Services = time.Now(), fault, services
		_, s.Fighting = h.conflict.Lasts()
	})
	switch {
	case fault != "" && fault != before.Fault:
		h.log.Error("cannot read or update the hosts file; will retry", "err", fault)
	case err == nil && before.Fault != "":
		h.log.Info("hosts file is up to date again")
	}
	for i, s := range services {
		var old nodestate.HostsService
		if i < len(before.Services) && before.Services[i].Name == s.Name {
			old = before.Services[i]
		}
		if !slices.Equal(old.Left, s.Left) && len(s.Left) > 0 {
			h.log.Warn("hosts file already has a foreign line for names of a Service; they are left out", "service", s.Name, "names", s.Left)
		}
		switch {
		case old.Failed == "" && s.Failed != "":
			h.log.Warn("queries to cluster DNS for a Service's names fail; the hosts file keeps its lines", "service", s.Name, "err", s.Failed)
		case old.Failed != "" && s.Failed == "":
			h.log.Info("queries to cluster DNS for a Service's names are answered again", "service", s.Name)
		}
	}
}

// service returns the state of one Service, for `status` and `doctor`.
func (h *Hosts) service(s string, left []string) nodestate.HostsService {
	out := nodestate.HostsService{Name: s, Addresses: []string{}}
	names := Names(s, h.conf.Domain)
	for _, qtype := range qtypes() {
		fact := h.known[key{s, qtype}]
		if fact.answered.After(out.Answered) {
			out.Answered = fact.answered
		}
		out.Failed = cmp.Or(out.Failed, fact.failed)
	}
	for _, e := range h.written {
		if slices.ContainsFunc(names, func(n string) bool { return slices.Contains(e.Names, n) }) {
			out.Addresses = append(out.Addresses, e.Addr.String())
		}
	}
	for _, n := range names {
		if slices.Contains(left, n) {
			out.Left = append(out.Left, n)
		}
	}
	return out
}

// update changes the role's state and stores it.
func (h *Hosts) update(change func(*nodestate.Hosts)) {
	h.mu.Lock()
	change(&h.state)
	s := h.state
	h.mu.Unlock()
	if err := h.store(s); err != nil {
		h.log.Warn("cannot write the state file of the role hosts; status and doctor show the previous state", "err", err)
	}
}

// State returns the role's current state.
func (h *Hosts) State() nodestate.Hosts {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// Alive reports whether Run's loop works, and the reason if it does not.
func (h *Hosts) Alive() (bool, string) {
	s := h.State()
	if since := time.Since(s.Looked); !s.Looked.IsZero() && since > 3*h.pace.every {
		return false, "the hosts file was last checked " + since.Round(time.Second).String() + " ago"
	}
	return true, ""
}
