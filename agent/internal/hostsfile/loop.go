package hostsfile

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/node/backoff"
	"github.com/neardns/neardns/pkg/hostsfile"
	"github.com/neardns/neardns/pkg/nodestate"
)

// Hosts is the role. New makes one; Run is called once. The other methods may be called by any goroutine.
type Hosts struct {
	log      *slog.Logger
	pace     pace          // of Run's goroutine, but for every
	early    time.Duration // until the next round while a Service was not heard of; doubled each time, up to pace.every
	patience time.Duration
	store    func(nodestate.Hosts) error
	counts   *counts

	// Of Run's goroutine alone.
	conf     Config
	asker    *asker
	file     *file
	known    memory
	recalled bool              // what the file said at the start is in known
	written  []hostsfile.Entry // that the file had when it was last looked at; what differs was undone by somebody
	fight    backoff.Flapping
	retry    *time.Timer // the next look at the file, while it must wait

	mu    sync.Mutex // guards state
	state nodestate.Hosts
}

// New makes the role for the hosts file below root, the folder where the host's root is mounted. store keeps what `status` and `doctor`
// show; an error of it is logged.
func New(log *slog.Logger, root string, conf Config, store func(nodestate.Hosts) error) *Hosts {
	h := &Hosts{log: log, pace: defaultPace(), early: defaultEarly, patience: defaultPatience, store: store, counts: newCounts(),
		file: &file{root: root}, known: memory{}}
	h.configure(conf)
	return h
}

// configure takes a configuration over. What is known of Services that stay is kept.
func (h *Hosts) configure(conf Config) {
	h.conf, h.asker = conf, &asker{domain: conf.Domain, servers: conf.Servers}
	for k := range h.known {
		if !slices.Contains(conf.Services, k.service) {
			delete(h.known, k)
		}
	}
}

// Run keeps the lines until ctx ends, and leaves them then. A tick of changed means that the file may be another, one of reload that
// the configuration is.
func (h *Hosts) Run(ctx context.Context, changed <-chan struct{}, reload <-chan Config) {
	h.mu.Lock()
	h.state.Since = time.Now()
	h.mu.Unlock()
	h.retry = time.NewTimer(0)
	h.retry.Stop()
	defer h.retry.Stop()
	answers := make(chan func(), 1) // of the one round that may be under way
	asking := false
	ask := func(keys []key) {
		if asking || len(keys) == 0 {
			return
		}
		asking = true
		round := h.round(keys)
		go func() { answers <- round(ctx) }()
	}
	h.look(ctx)
	ask(h.keys())
	next, between := time.NewTimer(h.pace.begin(time.Now())), time.NewTimer(0)
	between.Stop()
	defer next.Stop()
	defer between.Stop()
	early := h.early
	for {
		select {
		case <-ctx.Done():
			if asking {
				<-answers // ctx ends it
			}
			h.tell(func(s *nodestate.Hosts) { s.Ended = true })
			return
		case <-next.C:
			next.Reset(h.pace.begin(time.Now()))
			h.look(ctx)
			ask(h.keys())
		case <-between.C:
			ask(h.pace.take(time.Now(), h.known))
		case <-changed:
			if h.look(ctx) {
				ask(h.keys())
			}
		case <-h.retry.C:
			h.look(ctx)
		case conf := <-reload:
			h.configure(conf)
			h.log.Info("configuration taken over", "services", len(conf.Services))
			h.look(ctx)
			asking = false
			answers = make(chan func(), 1) // what the round before it brings is of no use
			ask(h.keys())
		case learn := <-answers:
			asking = false
			learn()
			h.look(ctx)
			if early < h.pace.every && !h.known.complete(h.conf) {
				next.Reset(early)
				early *= 2
			} else if wait, ok := h.pace.between(time.Now(), h.known); ok {
				between.Reset(wait)
			}
		}
	}
}

// keys are all that a round asks.
func (h *Hosts) keys() (out []key) {
	for _, s := range h.conf.Services {
		for _, f := range families() {
			out = append(out, key{s, f})
		}
	}
	return out
}

// round prepares a round of questions by what is known now. The first function asks and may run beside the loop; what it returns takes
// the answers in and may not.
func (h *Hosts) round(keys []key) func(ctx context.Context) (learn func()) {
	held := map[key]bool{}
	for _, k := range keys {
		held[k] = len(h.known[k].addrs) > 0
	}
	asker := h.asker
	return func(ctx context.Context) func() {
		replies, trusted := asker.round(ctx, keys, held)
		return func() {
			if ctx.Err() != nil {
				return // cut off, which says nothing of the servers
			}
			now := time.Now()
			for k, r := range replies {
				h.counts.question(r)
				h.known.learn(k, r, trusted[k], now, h.patience)
			}
		}
	}
}

// look has the file hold what is known. It reports whether the file was found changed by another program.
func (h *Hosts) look(ctx context.Context) (undone bool) {
	way := h.file.way
	c, err := h.file.read()
	if err != nil {
		h.said(nil, err)
		return false
	}
	ours := hostsfile.Ours(c.text)
	if !h.recalled {
		h.recalled = true
		h.known.recall(h.conf, ours)
		way = h.file.way
		h.log.Info("hosts file read", "file", c.path, "lines", len(ours), "way", way, "why", h.file.why)
	}
	now := time.Now()
	undone = h.written != nil && !slices.EqualFunc(ours, h.written, sameEntry)
	if undone && !h.fight.Due(now) {
		h.retry.Reset(h.fight.Until().Sub(now))
		return true
	}
	entries := h.known.entries(h.conf)
	written, left, err := h.file.apply(ctx, entries)
	if way != h.file.way {
		h.log.Warn("the hosts file is written in place: readers may meet half of our lines, never of another's", "why", h.file.why)
	}
	if err == nil { // by what was meant, since somebody may have written behind it
		after, _ := hostsfile.Apply(c.text, entries)
		h.written = append([]hostsfile.Entry{}, hostsfile.Ours(after)...)
	}
	h.count(written, undone, err, now)
	h.said(left, err)
	return undone
}

// count keeps the book of writes and repairs.
func (h *Hosts) count(written, undone bool, err error, now time.Time) {
	h.counts.write(written, err)
	if written && err == nil && undone {
		h.counts.repairs.Inc()
		if h.fight.Repaired(now) {
			h.log.Warn("another program keeps taking our lines out of the hosts file: they are put back less often until that ends")
		}
		if _, lasts := h.fight.Lasts(); lasts {
			h.retry.Reset(h.fight.Until().Sub(now))
		}
		h.tell(func(s *nodestate.Hosts) { s.Repairs++ })
	} else if written && err == nil {
		h.log.Info("hosts file written", "lines", len(h.written))
	}
	if repairs, ended := h.fight.Ended(now); ended {
		h.log.Info("nobody takes our lines out of the hosts file any more", "repairs", repairs)
	}
}

func sameEntry(a, b hostsfile.Entry) bool { return hostsfile.Compare(a, b) == 0 }

// said reports how it stands, and logs what is new of it.
func (h *Hosts) said(left []string, err error) {
	fault := ""
	if err != nil && !errors.Is(err, context.Canceled) {
		fault = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	var services []nodestate.HostsService
	for _, s := range h.conf.Services {
		services = append(services, h.service(s, left))
	}
	before := h.State()
	h.tell(func(s *nodestate.Hosts) {
		s.Looked, s.Way, s.Why, s.Fault, s.Services = time.Now(), h.file.way, h.file.why, fault, services
		_, s.Fighting = h.fight.Lasts()
	})
	switch {
	case fault != "" && fault != before.Fault:
		h.log.Error("the hosts file is left as it is", "err", fault)
	case fault == "" && before.Fault != "":
		h.log.Info("the hosts file can be written again")
	}
	for i, s := range services {
		var old nodestate.HostsService
		if i < len(before.Services) && before.Services[i].Name == s.Name {
			old = before.Services[i]
		}
		if !slices.Equal(old.Left, s.Left) && len(s.Left) > 0 {
			h.log.Warn("names of a Service stand in lines of others, which win", "service", s.Name, "names", s.Left)
		}
		if (old.Failed == "") != (s.Failed == "") {
			h.log.Warn("answers of the cluster DNS", "service", s.Name, "failing", s.Failed)
		}
	}
}

// service sums up what is known of one.
func (h *Hosts) service(s string, left []string) nodestate.HostsService {
	out := nodestate.HostsService{Name: s, Addresses: []string{}}
	names := Names(s, h.conf.Domain)
	for _, f := range families() {
		fact := h.known[key{s, f}]
		if fact.answered.After(out.Answered) {
			out.Answered = fact.answered
		}
		if out.Failed == "" {
			out.Failed = fact.failed
		}
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

// tell changes the state and has it kept.
func (h *Hosts) tell(change func(*nodestate.Hosts)) {
	h.mu.Lock()
	change(&h.state)
	s := h.state
	h.mu.Unlock()
	if err := h.store(s); err != nil {
		h.log.Warn("the state is not stored, so that status and doctor do not see it", "err", err)
	}
}

// State is how it stands.
func (h *Hosts) State() nodestate.Hosts {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// Alive reports whether the loop comes round; if not, why.
func (h *Hosts) Alive() (bool, string) {
	s := h.State()
	if since := time.Since(s.Looked); !s.Looked.IsZero() && since > 3*h.pace.every {
		return false, "the file was last looked at " + since.Round(time.Second).String() + " ago"
	}
	return true, ""
}
