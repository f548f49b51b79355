package lifecycle

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"sync"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/fleet/edge/authoritative"
	"github.com/neardns/neardns/fleet/edge/geo"
	"github.com/neardns/neardns/fleet/edge/healthcheck"
	"github.com/neardns/neardns/fleet/edge/secondary"
	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/metrics"
	"github.com/neardns/neardns/internal/dns/server"
	"github.com/neardns/neardns/internal/telemetry"
)

// inWork is how many questions over UDP an edge has in work at most, beside the front's own.
const inWork = 1024

// CheckEdge says what is wrong with an EdgeConfig and the files that it names.
func CheckEdge(e Env, path string) error {
	read, err := readEdge(e, path)
	return cmp.Or(err, read.geoFault)
}

// edgeFiles are an EdgeConfig and what it names.
type edgeFiles struct {
	conf  *config.Edge
	place *geo.Locator
	roots *x509.CertPool // nil: the system's
	// geoFault says why place has no database although the configuration names one; nil if it has. It is a ConfigError.
	geoFault error
}

// readEdge reads all of them; an error is a ConfigError.
func readEdge(e Env, path string) (f edgeFiles, err error) {
	if f.conf, err = config.LoadEdge(path, config.Env{LookupEnv: e.LookupEnv, ReadFile: e.ReadFile}); err == nil {
		var fault error
		if f.place, fault = locator(e, f.conf); fault != nil {
			f.geoFault = &ConfigError{fault}
		}
	}
	if err == nil {
		f.roots, err = roots(e, f.conf)
	}
	if err != nil {
		return f, &ConfigError{err}
	}
	return f, nil
}

// Edge serves shared zones by an EdgeConfig until ctx ends. It is no agent of its node: it takes no lock, writes no packet rule and asks no
// API server.
func Edge(ctx context.Context, e Env, path string) error {
	read, err := readEdge(e, path)
	if err != nil {
		return err
	}
	conf, level := read.conf, new(slog.LevelVar)
	level.Set(conf.Log.Level)
	log := telemetry.NewLogger(e.Stderr, level, conf.Log.Format == config.LogJSON)
	limitMemory(log, e.LookupEnv, memlimit.FromCgroup, setMemoryLimit, setGCPercent)
	log.Info("starting", "version", e.Version, "zones", len(conf.Zones), "addresses", conf.Addresses)

	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	hangups := e.Hangups(ctx)
	r := &edgeRole{env: e, path: path, log: log, level: level, checker: healthcheck.New(ctx, log, healthcheck.Options{}), plugin: authoritative.New(authoritative.Options{}),
		wg: &wg}
	wg.Go(r.checker.Wait)
	r.apply(ctx, read)
	if read.geoFault != nil { // a missing download must not cost an authoritative server
		r.reloads.Count(false)
		log.Error("clients are located without the database until it can be read", "err", read.geoFault)
	}

	s := server.New(log, nil, corefile.Plugin{Name: authoritative.Name, Setup: r.plugin.Setup}, corefile.Plugin{Name: "metrics", Setup: metrics.Setup})
	if err := s.Start(ctx, server.Config{Config: corefile.Config{Addresses: conf.Addresses, Port: conf.Port, Shared: true, FastPath: true, Misses: inWork},
		Connections: conf.Limits.TCPConnections}); err != nil {
		return err
	}
	registry := telemetry.NewRegistry(e.Version)
	registry.Collect(r.plugin.Collector())
	registry.Collect(r.checker.Collector())
	registry.Collect(secondary.Collector(r.copies, &r.reloads))
	registry.Collect(s.Collector())
	health := telemetry.Health{Ready: func() (bool, string) { return ready(r.copies()) }}
	wg.Go(func() { telemetry.ServeTCP(ctx, log, "metrics", conf.Listen.Metrics, registry.MetricsHandler()) })
	wg.Go(func() { telemetry.ServeTCP(ctx, log, "health", conf.Listen.Health, health.Handler()) })
	wg.Go(func() { followFiles(ctx, log, hangups, false, r.files, func() { r.reload(ctx) }) })
	<-ctx.Done()
	log.Info("stopping")
	return s.Stop()
}

// locator reads what tells where clients are. With an error, it knows what the configuration itself says.
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
		l.Database = nil
		return l, fmt.Errorf("geo.database: %w", err)
	}
	return l, nil
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
