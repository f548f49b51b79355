// Package metrics is the CoreDNS plugin that counts queries under CoreDNS's own metric names.
//
// CoreDNS's prometheus plugin opens a second HTTP listener and looks six metrics up by label for every query. This one opens none,
// because the agent serves CoreDNS's registry together with its own, and keeps the counters that it has found. It guarantees the same
// series as CoreDNS's plugin, and owns none: all are from plugin/metrics/vars, in Prometheus's default registry.
//
// On failure it counts a value that it cannot name as "other" or under the root. It never refuses a query.
package metrics

import (
	"context"
	"strings"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/msg"
)

// Metrics counts the queries that pass it.
type Metrics struct {
	next  plugin.Handler
	zones []string // of the server block, lower case, fully qualified

	// One entry per server address, zone and view, made at the first query.
	series answers.CowMap[seriesKey, *series]
}

type seriesKey struct {
	server *dnsserver.Server
	zone   string
	view   string
}

// Name implements plugin.Handler. It is the name that CoreDNS's own plugin has, so that coredns_plugin_enabled keeps its label.
func (m *Metrics) Name() string { return "prometheus" }

// ServeDNS implements plugin.Handler.
func (m *Metrics) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	// Before a plugin behind us changes the message: its size as it came.
	asked := sample{start: time.Now(), size: r.Len(), qtype: r.Question[0].Qtype}
	if o := r.IsEdns0(); o != nil {
		asked.do = o.Do()
	}
	asked.tcp, asked.v6 = client(w.RemoteAddr())

	rec := &recorder{ResponseWriter: w}
	status, err := plugin.NextOrFailure(m.Name(), m.next, ctx, rec, r)
	if !plugin.ClientWrite(status) {
		// Nothing was written yet: CoreDNS will answer with the status.
		rec.rcode = status
	}
	m.find(ctx, r.Question[0].Name).report(&asked, &answer{rec.rcode, rec.size, rec.plugin})
	return status, err
}

func (m *Metrics) find(ctx context.Context, qname string) *series {
	key := seriesKey{zone: m.zone(qname)}
	key.server, _ = ctx.Value(dnsserver.Key{}).(*dnsserver.Server)
	key.view, _ = ctx.Value(dnsserver.ViewKey{}).(string)
	return m.series.Get(key, newSeries)
}

// zone is the block's zone that qname is in. Most blocks have one zone; CoreDNS has checked that qname is in it.
func (m *Metrics) zone(qname string) string {
	if len(m.zones) == 1 {
		return m.zones[0]
	}
	longest := ""
	for _, z := range m.zones {
		if len(z) > len(longest) && within(qname, z) {
			longest = z
		}
	}
	if longest == "" {
		return "."
	}
	return longest
}

// within is dns.IsSubDomain without splitting the names. It is wrong only for a label that contains a dot, which costs a wrong metric
// label.
func within(name, zone string) bool {
	at := len(name) - len(zone)
	return at >= 0 && (at == 0 || zone == "." || name[at-1] == '.') && strings.EqualFold(name[at:], zone)
}

// recorder notes the answer. It implements plugin.PluginTracker, by which CoreDNS names the plugin that wrote.
type recorder struct {
	dns.ResponseWriter
	rcode  int
	size   int
	plugin string
}

func (r *recorder) WriteMsg(m *dns.Msg) error {
	r.rcode = m.Rcode
	r.size += m.Len()
	return r.ResponseWriter.WriteMsg(m)
}

func (r *recorder) Write(b []byte) (int, error) {
	n, err := r.ResponseWriter.Write(b)
	if err == nil {
		r.size += n
		if len(b) >= msg.HeaderSize { // the cache writes whole messages; CoreDNS's plugin would count them as NOERROR
			r.rcode = msg.Rcode(b)
		}
	}
	return n, err
}

// SetPlugin implements plugin.PluginTracker.
func (r *recorder) SetPlugin(name string) { r.plugin = name }

// GetPlugin implements plugin.PluginTracker.
func (r *recorder) GetPlugin() string { return r.plugin }
