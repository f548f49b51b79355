package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/neardns/neardns/fleet/edge/authoritative"
	"github.com/neardns/neardns/fleet/edge/edgeconfig"
	"github.com/neardns/neardns/fleet/edge/geo"
	"github.com/neardns/neardns/fleet/edge/healthcheck"
	"github.com/neardns/neardns/fleet/edge/secondary"
	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/metrics"
	"github.com/neardns/neardns/internal/dns/server"
	"github.com/neardns/neardns/internal/process"
	"github.com/neardns/neardns/internal/telemetry"
	"github.com/neardns/neardns/pkg/version"
)

// maxMisses is added to package listener's maximum of UDP queries that CoreDNS handles at a time. Queries that the fast path answers do
// not count.
const maxMisses = 1024

// checkConfig returns an error if the EdgeConfig, its geo database or its file of CAs is invalid.
func checkConfig(e env, path string) error {
	read, err := readConfig(e, path)
	return cmp.Or(err, read.geoFault)
}

// configuration is an EdgeConfig with the contents of its geo database and its file of CAs.
type configuration struct {
	*edgeconfig.Config
	locator *geo.Locator
	roots   *x509.CertPool // nil: the system's
	// geoFault is a configError if the configured geo database could not be read, so that the locator has none; otherwise nil.
	geoFault error
}

// readConfig reads an EdgeConfig, its geo database and its file of CAs. Its errors are configErrors. A geo database that cannot be read is
// no error, but sets geoFault.
func readConfig(e env, path string) (c configuration, err error) {
	if c.Config, err = edgeconfig.Load(path, edgeconfig.Env{LookupEnv: e.lookupEnv, ReadFile: e.readFile}); err != nil {
		return c, configError{err}
	}
	var fault error
	if c.locator, fault = readLocator(e, c.Geo); fault != nil {
		c.geoFault = configError{fault}
	}
	if c.roots, err = readRoots(e, c.Roots); err != nil {
		return c, configError{err}
	}
	return c, nil
}

// serve serves the zones of an EdgeConfig until ctx ends.
func serve(ctx context.Context, e env, path string) error {
	conf, err := readConfig(e, path)
	if err != nil {
		return err
	}
	level := new(slog.LevelVar)
	level.Set(conf.Level)
	log := telemetry.NewLogger(e.stderr, level, conf.JSON)
	process.LimitMemory(log, e.lookupEnv)
	log.Info("edge is starting", "version", version.String(), "zones", len(conf.Zones), "addresses", conf.Addresses)

	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	hangups := e.hangups(ctx)
	r := &edge{env: e, path: path, log: log, level: level, checker: healthcheck.New(ctx, log, healthcheck.Options{}),
		plugin: authoritative.New(authoritative.Options{}), wg: &wg}
	wg.Go(r.checker.Wait)
	r.apply(ctx, conf) // also with a geoFault, which the reload below logs: without the database, only the choice of clusters is worse

	s := server.New(log, nil,
		corefile.Plugin{Name: authoritative.Name, Setup: r.plugin.Setup}, corefile.Plugin{Name: "metrics", Setup: metrics.Setup})
	zones := corefile.Config{Addresses: conf.Addresses, Port: conf.Port, Shared: true, FastPath: true, Misses: maxMisses}
	if err := s.Start(ctx, server.Config{Config: zones, Connections: conf.Limits.TCPConnections}); err != nil {
		return err
	}
	registry := telemetry.NewRegistry(version.String())
	registry.Collect(r.plugin.Collector())
	registry.Collect(r.checker.Collector())
	registry.Collect(secondary.Collector(r.copies, &r.reloads))
	registry.Collect(s.Collector())
	var started atomic.Bool
	health := telemetry.Health{Ready: func() (bool, string) { return ready(r.copies(), &started) }}
	wg.Go(func() { telemetry.ServeTCP(ctx, log, "metrics", conf.Listen.Metrics, registry.MetricsHandler(nil)) })
	wg.Go(func() { telemetry.ServeTCP(ctx, log, "health", conf.Listen.Health, health.Handler()) })
	// Begin with a reload: since readConfig a file may have changed, for example the database, which another container downloads.
	wg.Go(func() { process.FollowFiles(ctx, log, hangups, true, r.files, func() { r.reload(ctx) }) })
	<-ctx.Done()
	log.Info("edge is stopping")
	return s.Stop()
}

// readLocator reads the data by which clients are located. If the geo database cannot be read, it returns an error, and a locator with
// the configured ranges and region only.
func readLocator(e env, conf edgeconfig.Geo) (*geo.Locator, error) {
	l := &geo.Locator{Own: conf.Region}
	for _, r := range conf.Ranges {
		l.Ranges.Add(r.Network, r.Codes)
	}
	if conf.Database == "" {
		return l, nil
	}
	data, err := e.readFile(conf.Database)
	if err == nil {
		l.Database, err = geo.ReadDatabase(data)
	}
	if err != nil {
		l.Database = nil
		return l, fmt.Errorf("geo.database: %w", err)
	}
	return l, nil
}

// readRoots reads the CAs that may sign the certificates of health checks' targets; nil stands for the system's CAs.
func readRoots(e env, path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // as in package tls
	}
	data, err := e.readFile(path)
	if err != nil {
		return nil, fmt.Errorf("healthChecks.caFile: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("healthChecks.caFile: %s has no certificate: name a file in PEM", path)
	}
	return pool, nil
}
