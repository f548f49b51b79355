package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/neardns/neardns/fleet/edge/authoritative"
	"github.com/neardns/neardns/fleet/edge/edgeconfig"
	"github.com/neardns/neardns/fleet/edge/healthcheck"
	"github.com/neardns/neardns/fleet/edge/secondary"
	"github.com/neardns/neardns/fleet/zones/rfc2136"
)

// edge has those parts of the running program that a reload of the configuration needs.
type edge struct {
	env     env
	path    string
	log     *slog.Logger
	level   *slog.LevelVar
	plugin  *authoritative.Server
	checker *healthcheck.Checker
	reloads secondary.Reloads
	wg      *sync.WaitGroup // counts the goroutines that serve waits for before it returns

	mu    sync.Mutex // guards the fields below, which only apply modifies
	conf  *edgeconfig.Config
	zones map[string]*zone // by name
}

// zone is one zone that the edge serves.
type zone struct {
	conf    edgeconfig.Zone // only apply uses it
	copy    *secondary.Copy
	targets atomic.Pointer[[]netip.Prefix] // networks to which health checks may connect
	stop    context.CancelFunc
	done    chan struct{} // closed when the zone's goroutine has ended
}

// reload reads the configuration again, and applies it completely. If it has an error, or needs a restart, reload changes nothing.
func (r *edge) reload(ctx context.Context) {
	next, err := readConfig(r.env, r.path)
	if err = cmp.Or(err, next.geoFault); err == nil {
		if fields := r.conf.Restart(next.Config); len(fields) > 0 {
			err = fmt.Errorf("%s: takes effect only when the edge starts: restart it", strings.Join(fields, ", "))
		}
	}
	if err != nil {
		r.reloads.Count(false)
		r.log.Error("configuration, or a file that it names, refused; the edge serves as before", "err", err)
		return
	}
	r.apply(ctx, next)
	r.reloads.Count(true)
	r.log.Info("configuration reloaded", "zones", len(next.Zones))
}

// apply puts a configuration into effect. Only one goroutine at a time may call it. Zones that the configuration no longer has are no
// longer served; their files stay on disk.
func (r *edge) apply(ctx context.Context, next configuration) {
	conf := next.Config
	r.level.Set(conf.Level)
	rate := authoritative.Rate{Answers: conf.Rate.Answers, Slip: conf.Rate.Slip, Exempt: conf.Rate.Exempt}
	r.plugin.Configure(authoritative.Options{Rate: rate, Resolvers: conf.Geo.Resolvers, Notified: r.notified})
	r.plugin.SetLocator(next.locator)
	r.checker.SetRoots(next.roots)

	zones := map[string]*zone{}
	for _, z := range conf.Zones {
		zone := r.zones[z.Name]
		if zone == nil {
			zone = r.begin(ctx, conf, z)
		} else if !zone.conf.Same(&z) {
			zone.conf = z
			zone.targets.Store(&z.Targets)
			zone.copy.Follow(r.client(z, conf.Limits))
		}
		zones[z.Name] = zone
	}
	before := r.zones
	r.mu.Lock()
	r.conf, r.zones = conf, zones
	r.mu.Unlock()
	for name, z := range before {
		if zones[name] == nil {
			z.stop()
			<-z.done // otherwise the goroutine could serve the zone again
			r.plugin.Drop(name + ".")
			r.checker.Set(name+".", nil, nil)
			r.log.Info("zone removed from the configuration; it is not served any more, its file stays", "zone", name)
		}
	}
}

// begin starts to serve a zone, at once from its file if there is one, and to follow its primary until ctx ends or apply removes the zone.
func (r *edge) begin(ctx context.Context, conf *edgeconfig.Config, z edgeconfig.Zone) *zone {
	ctx, stop := context.WithCancel(ctx)
	out := &zone{conf: z, stop: stop, done: make(chan struct{})}
	out.targets.Store(&z.Targets)
	watch := func(name string, checks map[string][]healthcheck.Check) map[healthcheck.Check]authoritative.Target {
		watched := map[healthcheck.Check]authoritative.Target{}
		for check, t := range r.checker.Set(name, checks, *out.targets.Load()) {
			watched[check] = t
		}
		return watched
	}
	origin := z.Name + "."
	out.copy = secondary.New(r.log, origin, filepath.Join(conf.StateDir, z.Name+".zone"), r.client(z, conf.Limits),
		secondary.Bounded(r.plugin.Taker(origin, watch), conf.Limits.Records))
	out.copy.Confirmed = r.judge(origin)
	r.wg.Go(func() {
		defer close(out.done)
		out.copy.Run(ctx)
	})
	return out
}

// judge returns a function to be called each time the zone's copy was confirmed to be current. That function judges which clusters are
// silent, and logs if they are others than before. Only one goroutine at a time may call it.
func (r *edge) judge(origin string) func() {
	var last []string
	return func() {
		silent := r.plugin.Current(origin)
		if !slices.Equal(silent, last) {
			r.log.Warn("the list of silent clusters changed: their addresses count as unhealthy, "+
				"except those that a health check probes", "zone", origin, "silent", silent, "before", last)
			last = silent
		}
	}
}

// client returns the client that reads a zone from its primary.
func (r *edge) client(z edgeconfig.Zone, limits edgeconfig.Limits) *rfc2136.Client {
	keys := &keyFolder{read: r.env.readFile, folder: z.Key, log: r.log}
	return &rfc2136.Client{Server: z.Primary.Addr.String(), Zone: z.Name + ".", Key: keys.key, Most: limits.Records}
}

// files returns the files whose changes cause a reload. Key files are not among them, because they are read for each message.
func (r *edge) files() (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range []string{r.path, r.conf.Geo.Database, r.conf.Roots} {
		if f != "" {
			out = append(out, f)
		}
	}
	return out
}

// copies returns the copies of all served zones, in the configuration's order.
func (r *edge) copies() (out []*secondary.Copy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, z := range r.conf.Zones {
		out = append(out, r.zones[z.Name].copy)
	}
	return out
}

// notified makes the edge read a zone after a NOTIFY. It returns false, and does nothing, if the sender is neither the zone's primary nor
// one of the zone's notify addresses.
func (r *edge) notified(origin string, sender netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, z := range r.conf.Zones {
		if z.Name+"." == origin && (z.Primary.Addr.Addr() == sender || slices.Contains(z.Notify, sender)) {
			r.zones[z.Name].copy.Notify()
			return true
		}
	}
	return false
}

// ready is the readiness check. It fails if no zone was ever read, so that the edge then gets no queries through its Service. If only some
// were not, it succeeds: usually no edge can read those, and the others must stay served. But until the first success, which sets started,
// it waits for each zone's first read or failure.
func ready(copies []*secondary.Copy, started *atomic.Bool) (served bool, missing string) {
	for _, c := range copies {
		s := c.State()
		if s.Records > 0 {
			served = true
			continue
		}
		missing = fmt.Sprintf("zone %s was never read: %s", s.Zone, s.Fault)
		if s.Fault == "" && !started.Load() {
			return false, missing
		}
	}
	if served {
		started.Store(true)
	}
	return served, missing
}
