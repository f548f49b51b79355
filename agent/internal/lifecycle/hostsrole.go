package lifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/hostsfile"
	"github.com/neardns/neardns/internal/process"
	"github.com/neardns/neardns/internal/telemetry"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/tick"
)

// Hosts runs the role `hosts` until ctx ends: it keeps names of Services in the hosts file of the node, whose root is mounted at
// hostRoot. The lines stay when it ends. It works with or without an agent on the node: it takes no lock and serves no DNS.
func Hosts(ctx context.Context, e Env, path, hostRoot string) error {
	conf, kept, err := loadHosts(e, path)
	if err != nil {
		return &ConfigError{err}
	}
	log, level := setUpProcess(e, conf)
	log.Info("starting to keep Service names in the hosts file", "version", e.Version, "services", kept.Services, "servers", kept.Servers)

	h := hostsfile.New(log, hostRoot, kept, nodestate.HostsFile(conf.StateDir).Write)
	metrics := telemetry.NewRegistry(e.Version)
	metrics.Collect(h.Collectors()...)
	health := telemetry.Health{Alive: h.Alive, Ready: h.Alive}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { telemetry.ServeTCP(ctx, log, "metrics", conf.Listen.Metrics, metrics.MetricsHandler(nil)) })
	wg.Go(func() { telemetry.ServeTCP(ctx, log, "health", conf.Listen.Health, health.Handler()) })
	wg.Go(func() { releaseStartMemory(ctx, log, h.Alive) })
	reload := make(chan hostsfile.Config)
	wg.Go(func() { followHosts(ctx, e, log, level, path, conf, reload) })
	changed := tick.New()
	wg.Go(func() {
		process.FollowFiles(ctx, log, nil, true, func() []string { return []string{filepath.Join(hostRoot, "etc/hosts")} }, changed.Send)
	})
	h.Run(ctx, changed, reload)
	return nil
}

// Default ports of the role `hosts`. They differ from the agent's, because both run in the network namespace of the same node.
const (
	hostsMetrics = 9263
	hostsHealth  = 9264
)

// loadHosts reads the configuration for the role `hosts`, with that role's default ports. It also returns the part of it that package
// hostsfile uses.
func loadHosts(e Env, path string) (*config.Node, hostsfile.Config, error) {
	n, err := config.Load(path, e.Env)
	if err != nil {
		return nil, hostsfile.Config{}, err
	}
	l := &n.Listen
	if !n.IsSet("listen.metrics") {
		l.Metrics = netip.AddrPortFrom(l.Metrics.Addr(), hostsMetrics)
	}
	if !n.IsSet("listen.health") {
		l.Health = netip.AddrPortFrom(l.Health.Addr(), hostsHealth)
	}
	kept, err := hostsConfig(n)
	return n, kept, err
}

// hostsConfig returns the part of a NodeConfig that the role `hosts` uses. The role queries upstreams.cluster, by default the cluster DNS
// addresses. A Service name that equals the node's own name is an error.
func hostsConfig(n *config.Node) (hostsfile.Config, error) {
	out := hostsfile.Config{Services: n.Hosts.Services, Domain: n.ClusterDomain}
	for _, a := range n.Upstreams.Cluster {
		out.Servers = append(out.Servers, a.Addr)
	}
	own, err := os.Hostname()
	if err != nil {
		return out, fmt.Errorf("read the node's name: %w", err)
	}
	for i, s := range out.Services {
		if slices.Contains(hostsfile.Names(s, out.Domain), strings.ToLower(own)) {
			return out, fmt.Errorf("hosts.services[%d]: %s is this node's own name: take %s out", i, own, s)
		}
	}
	return out, nil
}

// followHosts reads the configuration again after each change of its file and each signal, and sends it to reload. It logs and ignores a
// configuration that has a fault or a change that needs a restart.
func followHosts(ctx context.Context, e Env, log *slog.Logger, level *slog.LevelVar, path string,
	conf *config.Node, reload chan<- hostsfile.Config) {
	var files []string
	if path != "" {
		files = []string{path}
	}
	process.FollowFiles(ctx, log, e.Hangups(ctx), false, func() []string { return files }, func() {
		next, kept, err := loadHosts(e, path)
		if err == nil {
			if _, restart := config.Diff(conf, next); len(restart) > 0 {
				err = fmt.Errorf("%s: takes effect only when the role starts: restart it", strings.Join(restart, ", "))
			}
		}
		if err != nil {
			log.Error("changed configuration not applied; the old one stays in effect", "err", err)
			return
		}
		warnUnknown(log, next)
		level.Set(next.Log.Level)
		conf = next
		select {
		case reload <- kept:
		case <-ctx.Done():
		}
	})
}

// hostsAlive is the age up to which a record of the role `hosts` in the state folder means that the role runs.
const hostsAlive = 90 * time.Second

// removeHosts removes the lines of the role `hosts` from the hosts file. It returns a LockedError if that role's record shows that it runs,
// because the role would restore them. The lines have a marker, so they are found even if the role left no record.
func removeHosts(ctx context.Context, stateDir, hostRoot string, say func(string, ...any)) error {
	last, ok, err := nodestate.HostsFile(stateDir).Read()
	if err != nil {
		return err
	}
	if age := time.Since(last.Looked); ok && !last.Ended && age.Abs() < hostsAlive { // negative if the clock stepped back
		owner := fmt.Sprintf("neardns-agent hosts, which checked it %s ago: end it first", age.Round(time.Second))
		return &LockedError{path: "the hosts file", owner: owner}
	}
	had, err := hostsfile.Remove(ctx, hostRoot)
	if err != nil {
		return err
	}
	if had {
		say("lines taken out of %s", filepath.Join(hostRoot, "etc/hosts"))
	}
	return nodestate.HostsFile(stateDir).Remove()
}
