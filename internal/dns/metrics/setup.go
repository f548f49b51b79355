package metrics

import (
	"net"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics/vars"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/internal/telemetry/scrape"
)

// Setup is the directive's set-up function. The program that assembles the server registers it. Only package corefile writes the directive,
// without arguments.
func Setup(c *caddy.Controller) error {
	config := dnsserver.GetConfig(c)
	m := &Metrics{zones: plugin.OriginsFromArgsOrServerBlock(nil, c.ServerBlockKeys)}
	config.AddPlugin(func(next plugin.Handler) plugin.Handler {
		m.next = next
		return m
	})

	// As in CoreDNS: a reload clears the record of enabled plugins and sets it again. A failed reload does that too.
	enabled := func() error {
		for _, host := range config.ListenHosts {
			addr := config.Transport + "://" + net.JoinHostPort(host, config.Port)
			for _, h := range config.Handlers() {
				vars.PluginEnabled.WithLabelValues(addr, config.Zone, "", h.Name()).Set(1)
			}
		}
		return nil
	}
	c.OnStartup(enabled)
	c.OnRestartFailed(enabled)
	c.OnRestart(func() error { vars.PluginEnabled.Reset(); return nil })
	setBuildInfo()
	return nil
}

// setBuildInfo sets coredns_build_info. The metric belongs to plugin/metrics, which does not export it: registering another with its name
// returns the existing one.
func setBuildInfo() {
	vec, err := scrape.Register(prometheus.DefaultRegisterer, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: plugin.Namespace,
		Name:      "build_info",
		Help:      "A metric with a constant '1' value labeled by version, revision, and goversion from which CoreDNS was built.",
	}, []string{"version", "revision", "goversion"}))
	if err != nil {
		return // the metric exists with other labels or another help: no build info is better than a wrong one
	}
	vec.WithLabelValues(coreDNSVersion(), "", runtime.Version()).Set(1)
}

// coreDNSVersion returns the version of the linked CoreDNS module without "v", as CoreDNS writes it.
func coreDNSVersion() string {
	const unknown = "unknown"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return unknown
	}
	for _, dep := range info.Deps {
		if dep.Path == "github.com/coredns/coredns" {
			return strings.TrimPrefix(dep.Version, "v")
		}
	}
	return unknown
}
