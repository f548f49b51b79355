package role

import (
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/neardns/neardns/agent/internal/chain"
	"github.com/neardns/neardns/agent/internal/clients"
	"github.com/neardns/neardns/agent/internal/coredns/ask"
	"github.com/neardns/neardns/agent/internal/coredns/cache"
	"github.com/neardns/neardns/agent/internal/coredns/limit"
	"github.com/neardns/neardns/agent/internal/coredns/metrics"
	"github.com/neardns/neardns/agent/internal/coredns/probe"
	"github.com/neardns/neardns/agent/internal/coredns/searchpath"
	"github.com/neardns/neardns/agent/internal/front"
	"github.com/neardns/neardns/agent/internal/lend"
	"github.com/neardns/neardns/agent/internal/plan"
	"github.com/neardns/neardns/agent/internal/query"
	"github.com/neardns/neardns/agent/internal/server"
	"github.com/neardns/neardns/agent/internal/wire"
	"github.com/neardns/neardns/pkg/steer"
)

const rcodeServerFailure = 2 // RFC 1035, section 4.1.1

// parts is what the server's own plugins share over all configurations.
type parts struct {
	gate      *limit.Gate
	upstreams *ask.Servers
	answers   *wire.Store
	clients   *clients.Clients // nil: none is known, none is counted
	lender    *lend.Lender     // nil: no hits are answered in the kernel
}

func newServer(log *slog.Logger, p parts) *server.Server {
	var watch front.Observer
	memory, completions := searchpath.NewMemory(), new(searchpath.Metrics)
	if c := p.clients; c != nil {
		watch, memory, completions = observer{c, p.upstreams}, c.Memory, &c.Metrics
	}
	s := server.New(log, watch,
		chain.Plugin{Name: "probe", Setup: probe.Setup(probeSources()...)},
		chain.Plugin{Name: "metrics", Setup: metrics.Setup},
		chain.Plugin{Name: "searchpath", Setup: searchpath.Setup(memory, completions)},
		chain.Plugin{Name: "limit", Setup: limit.Setup(p.gate)},
		chain.Plugin{Name: "ask", Setup: ask.Setup(p.upstreams)},
		chain.Plugin{Name: "cache", Setup: cache.Setup(p.answers, cache.NewMetrics(p.answers, nil), p.lender)})
	if p.lender != nil {
		s.OnChange(p.lender.Changed)
	}
	return s
}

// observer is told of each question that the server has dealt with.
type observer struct {
	*clients.Clients
	upstreams *ask.Servers
}

// Answered implements front.Observer.
func (o observer) Answered(a query.Answer) {
	if a.Rcode == rcodeServerFailure { // also where an operator's Corefile asks, of which upstreams knows nothing
		o.upstreams.NoteTrouble()
	}
	o.Clients.Answered(a)
}

// Check looks whether a plan can be served, without serving it. path is where its configuration is from; CoreDNS itself knows only the
// text that it is given.
func Check(p plan.Plan, path string) error {
	none := slog.New(slog.DiscardHandler)
	return checkDNS(newServer(none, parts{gate: limit.New(limit.DefaultLimit), upstreams: ask.NewServers(none), answers: wire.NewStore(0)}), p.Server,
		path)
}

func checkDNS(server *server.Server, conf server.Config, path string) error {
	err := server.Check(conf)
	if err != nil && path != "" {
		return fmt.Errorf("%s: %w", path, err)
	}
	return err
}

// probeSources are whom the probe plugin answers.
func probeSources() []netip.Addr { return []netip.Addr{steer.ProbeSource4, steer.ProbeSource6} }
