// Package metrics is the CoreDNS plugin that counts queries under CoreDNS's own metric names.
//
// CoreDNS's prometheus plugin opens another HTTP listener, and looks up five or six metrics by label for every query. This plugin opens no
// listener, because the agent serves CoreDNS's registry together with its own, and it keeps the counters that it has looked up. It has the
// same series as CoreDNS's plugin: those of plugin/metrics/vars, in Prometheus's default registry.
//
// It never refuses a query. A value that it does not know is counted as "other", or under the root zone.
package metrics

import (
	"context"
	"net"
	"strings"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/fairshare"
	"github.com/neardns/neardns/internal/dns/msg"
)

// Metrics counts the queries that pass it.
type Metrics struct {
	next  plugin.Handler
	zones []string // of the server block, lower case, fully qualified

	// One series per server and zone, made at the first query.
	series answers.CowMap[seriesKey, *series]
}

type seriesKey struct {
	server *dnsserver.Server
	zone   string
}

// Name implements plugin.Handler. It returns the name of CoreDNS's own plugin, so that coredns_plugin_enabled has the same label.
func (m *Metrics) Name() string { return "prometheus" }

// ServeDNS implements plugin.Handler.
func (m *Metrics) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	// Take the query's size now, before another plugin changes the query.
	asked := sample{start: time.Now(), size: r.Len(), qtype: r.Question[0].Qtype}
	if o := r.IsEdns0(); o != nil {
		asked.do = o.Do()
	}
	_, asked.tcp = w.RemoteAddr().(*net.TCPAddr)
	asked.v6 = !fairshare.Client(w.RemoteAddr()).Is4()

	rec := &recorder{ResponseWriter: w}
	status, err := plugin.NextOrFailure(m.Name(), m.next, ctx, rec, r)
	if !plugin.ClientWrite(status) {
		// No answer was written, so CoreDNS will answer with this code.
		rec.rcode = status
	}
	m.find(ctx, r.Question[0].Name).report(&asked, &answer{rec.rcode, rec.size, rec.plugin})
	return status, err
}

func (m *Metrics) find(ctx context.Context, qname string) *series {
	key := seriesKey{zone: m.zone(qname)}
	key.server, _ = ctx.Value(dnsserver.Key{}).(*dnsserver.Server)
	return m.series.Get(key, newSeries)
}

// zone returns the block's longest zone that contains qname. Most blocks have one zone; CoreDNS has checked that qname is in it.
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

// within is dns.IsSubDomain without splitting the names. It may be wrong for a label that contains a dot, which only leads to a wrong
// metric label.
func within(name, zone string) bool {
	at := len(name) - len(zone)
	return at >= 0 && (at == 0 || zone == "." || name[at-1] == '.') && strings.EqualFold(name[at:], zone)
}

// recorder records the answer's code and size. It implements plugin.PluginTracker, by which CoreDNS reports the plugin that writes the
// answer.
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
		if len(b) >= msg.HeaderSize { // the cache writes whole messages as bytes; CoreDNS's plugin would count them as NOERROR
			r.rcode = msg.Rcode(b)
		}
	}
	return n, err
}

// SetPlugin implements plugin.PluginTracker.
func (r *recorder) SetPlugin(name string) { r.plugin = name }

// GetPlugin implements plugin.PluginTracker.
func (r *recorder) GetPlugin() string { return r.plugin }
