package role

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/neardns/neardns/agent/internal/chain"
	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/coredns/metrics"
	"github.com/neardns/neardns/agent/internal/coredns/shared"
	"github.com/neardns/neardns/agent/internal/ddns"
	"github.com/neardns/neardns/agent/internal/edge"
	"github.com/neardns/neardns/agent/internal/geo"
	"github.com/neardns/neardns/agent/internal/server"
	"github.com/neardns/neardns/agent/internal/targets"
	"github.com/neardns/neardns/agent/internal/telemetry"
	"github.com/neardns/neardns/agent/internal/upstream"
)

// inWork is how many questions over UDP an edge has in work at most, beside the front's own.
const inWork = 1024

// CheckEdge says what is wrong with an EdgeConfig and the files that it names.
func CheckEdge(e Env, path string) error {
	conf, err := loadEdge(e, path)
	if err == nil {
		_, err = locator(e, conf)
	}
	if err == nil {
		_, err = roots(e, conf)
	}
	if err != nil {
		return &ConfigError{err}
	}
	return nil
}

// Edge serves shared zones by an EdgeConfig until ctx ends. It is no agent of its node: it takes no lock, writes no packet rule and asks no
// API server.
func Edge(ctx context.Context, e Env, path string) error {
	conf, err := loadEdge(e, path)
	if err != nil {
		return &ConfigError{err}
	}
	pool, err := roots(e, conf)
	if err != nil {
		return &ConfigError{err}
	}
	level := new(slog.LevelVar)
	level.Set(conf.Log.Level)
	log := telemetry.NewLogger(e.Stderr, level, conf.Log.Format == config.LogJSON)
	limitMemory(log, e.LookupEnv, memlimit.FromCgroup, setMemoryLimit, setGCPercent)
	log.Info("starting", "version", e.Version, "zones", len(conf.Zones), "addresses", conf.Addresses)

	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	checker := targets.New(ctx, log, targets.Options{Roots: pool})
	wg.Go(checker.Wait)
	var copies []*edge.Copy
	plugin := shared.New(shared.Options{
		Rate:      shared.Rate{Answers: conf.Rate.Answers, Slip: conf.Rate.Slip, Exempt: conf.Rate.Exempt},
		Resolvers: conf.Geo.Resolvers,
		Notified:  func(zone string, sender netip.Addr) bool { return notified(conf, copies, zone, sender) },
	})
	place, err := locator(e, conf)
	if err != nil {
		return &ConfigError{err}
	}
	plugin.SetLocator(place)
	for _, z := range conf.Zones {
		copies = append(copies, copyOf(log, e, conf, z, plugin, checker))
	}

	s := server.New(log, nil, chain.Plugin{Name: shared.Name, Setup: plugin.Setup}, chain.Plugin{Name: "metrics", Setup: metrics.Setup})
	if err := s.Start(ctx, server.Config{Config: chain.Config{Addresses: conf.Addresses, Port: conf.Port, Shared: true, FastPath: true, Misses: inWork},
		Connections: conf.Limits.TCPConnections}); err != nil {
		return err
	}
	registry := telemetry.NewRegistry(e.Version)
	registry.Collect(plugin.Collector())
	registry.Collect(checker.Collector())
	registry.Collect(edge.Collector(copies))
	registry.Collect(s.Collector())
	health := telemetry.Health{Ready: func() (bool, string) { return ready(copies) }}
	wg.Go(func() { telemetry.ServeTCP(ctx, log, "metrics", conf.Listen.Metrics, registry.MetricsHandler()) })
	wg.Go(func() { telemetry.ServeTCP(ctx, log, "health", conf.Listen.Health, health.Handler()) })
	wg.Go(func() { followDatabase(ctx, log, e, conf, plugin) })
	for _, c := range copies {
		wg.Go(func() { c.Run(ctx) })
	}
	<-ctx.Done()
	log.Info("stopping")
	return s.Stop()
}

func loadEdge(e Env, path string) (*config.Edge, error) {
	return config.LoadEdge(path, config.Env{LookupEnv: e.LookupEnv, ReadFile: e.ReadFile})
}

// copyOf makes a zone's copy, which is served from its file at once.
func copyOf(log *slog.Logger, e Env, conf *config.Edge, z config.EdgeZone, plugin *shared.Server, checker *targets.Checker) *edge.Copy {
	origin := z.Name + "."
	keys := &keyFolder{read: e.ReadFile, folder: z.Key, log: log}
	client := &ddns.Client{Server: z.Primary.Addr.String(), Zone: origin, Key: keys.key}
	watch := func(name string, checks []targets.Check) map[targets.Check]shared.Target {
		out := map[targets.Check]shared.Target{}
		for check, t := range checker.Set(name, checks, z.Targets) {
			out[check] = t
		}
		return out
	}
	return edge.New(log, origin, filepath.Join(conf.StateDir, z.Name+".zone"), client, plugin.Taker(origin, watch))
}

// notified passes a NOTIFY on; it is taken from the zone's primary and from whom the configuration names.
func notified(conf *config.Edge, copies []*edge.Copy, name string, sender netip.Addr) bool {
	for i, z := range conf.Zones {
		if z.Name+"." == name && (z.Primary.Addr.Addr() == sender || slices.Contains(z.Notify, sender)) {
			copies[i].Notify()
			return true
		}
	}
	return false
}

// ready is the readiness probe's: an edge without one of its zones must get no question of it.
func ready(copies []*edge.Copy) (bool, string) {
	for _, c := range copies {
		if s := c.State(); s.Records == 0 {
			return false, fmt.Sprintf("zone %s was never read: %s", s.Zone, s.Fault)
		}
	}
	return true, ""
}

// locator reads what tells where clients are.
func locator(e Env, conf *config.Edge) (*geo.Locator, error) {
	l := &geo.Locator{Own: conf.Geo.Region}
	for _, r := range conf.Geo.Ranges {
		l.Ranges.Add(r.Network, r.Codes)
	}
	if conf.Geo.Database == "" {
		return l, nil
	}
	data, err := e.ReadFile(conf.Geo.Database)
	if err == nil {
		l.Database, err = geo.ReadDatabase(data)
	}
	if err != nil {
		return nil, fmt.Errorf("geo.database: %w", err)
	}
	return l, nil
}

// followDatabase takes a new database over. One with a fault has no effect.
func followDatabase(ctx context.Context, log *slog.Logger, e Env, conf *config.Edge, plugin *shared.Server) {
	if conf.Geo.Database == "" {
		return
	}
	for range upstream.Watch(ctx, log, []string{conf.Geo.Database}) {
		next, err := locator(e, conf)
		if err != nil {
			log.Error("the new geo database is not taken over", "err", err)
			continue
		}
		plugin.SetLocator(next)
		log.Info("geo database taken over", "file", conf.Geo.Database)
	}
}

// roots reads who may sign the certificates of targets; nil for the system's.
func roots(e Env, conf *config.Edge) (*x509.CertPool, error) {
	if conf.Roots == "" {
		return nil, nil //nolint:nilnil // as package tls has it
	}
	data, err := e.ReadFile(conf.Roots)
	if err != nil {
		return nil, fmt.Errorf("healthChecks.caFile: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("healthChecks.caFile: %s has no certificate: name a file in PEM", conf.Roots)
	}
	return pool, nil
}

// keyFolder is a mounted Secret with a TSIG key. It is read for each message, so that a key is rotated without a restart.
type keyFolder struct {
	read   func(string) ([]byte, error)
	folder string
	log    *slog.Logger

	mu   sync.Mutex // guards the fields below
	last ddns.Key
	said time.Time
}

// key is the folder's key; the last one that was good where it cannot be read, and no key where there is none.
func (k *keyFolder) key() ddns.Key {
	if k.folder == "" {
		return ddns.Key{}
	}
	next := ddns.Key{Algorithm: "hmac-sha256"}
	var errs []error
	for name, to := range map[string]*string{"name": &next.Name, "secret": &next.Secret, "algorithm": &next.Algorithm} {
		data, err := k.read(filepath.Join(k.folder, name))
		if err == nil {
			*to = strings.TrimSpace(string(data))
		} else if name != "algorithm" || !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	err := errors.Join(errs...)
	if err == nil {
		err = next.Validate()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		k.last = next
	} else if time.Since(k.said) > time.Minute {
		k.said = time.Now()
		k.log.Error("the zone's key cannot be read", "folder", k.folder, "err", err)
	}
	return k.last
}
