package lifecycle

import (
	"fmt"
	"log/slog"

	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/pods/podindex"
	"github.com/neardns/neardns/internal/dns/cache"
	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/forward"
	"github.com/neardns/neardns/internal/dns/limit"
	"github.com/neardns/neardns/internal/dns/listener"
	"github.com/neardns/neardns/internal/dns/metrics"
	"github.com/neardns/neardns/internal/dns/probe"
	"github.com/neardns/neardns/internal/dns/queryinfo"
	"github.com/neardns/neardns/internal/dns/server"
	"github.com/neardns/neardns/internal/offload"
	"github.com/neardns/neardns/pkg/steer"
)

const rcodeServerFailure = 2 // RFC 1035, section 4.1.1

// newServer makes a server. The state of its plugins outlives reloads of the Corefile. If clients is nil, clients are not identified and
// not counted. If entries is nil, there are no kernel hits.
func newServer(log *slog.Logger, gate *limit.Gate, upstreams *forward.Servers, store *answers.Store, clients *podindex.Clients,
	entries *offload.Entries) *server.Server {
	var watch listener.Observer
	if clients != nil {
		watch = observer{clients, upstreams}
	}
	s := server.New(log, watch,
		corefile.Plugin{Name: "probe", Setup: probe.Setup(steer.ProbeSource4, steer.ProbeSource6)},
		corefile.Plugin{Name: "metrics", Setup: metrics.Setup},
		corefile.Plugin{Name: "limit", Setup: limit.Setup(gate)},
		corefile.Plugin{Name: "ask", Setup: forward.Setup(upstreams)},
		corefile.Plugin{Name: "cache", Setup: cache.Setup(store, cache.NewMetrics(store, nil), entries)})
	if entries != nil {
		s.OnChange(entries.Changed)
	}
	return s
}

// observer implements listener.Observer: it counts each answered query of a known pod, and notes SERVFAIL answers as a sign of trouble with
// the upstreams.
type observer struct {
	*podindex.Clients
	upstreams *forward.Servers
}

// Record implements listener.Observer.
func (o observer) Record(a queryinfo.Answer) {
	if a.Rcode == rcodeServerFailure { // upstreams does not see queries that an operator's Corefile forwards
		o.upstreams.NoteTrouble()
	}
	o.Clients.Record(a)
}

// Check returns an error if a plan's Corefile cannot be served. It opens no socket. path is the configuration file, for error messages,
// because CoreDNS knows only the text.
func Check(p plan.Plan, path string) error {
	none := slog.New(slog.DiscardHandler)
	s := newServer(none, limit.New(limit.DefaultLimit), forward.NewServers(none), answers.NewStore(0), nil, nil)
	return checkDNS(s, p.Server, path)
}

func checkDNS(server *server.Server, conf server.Config, path string) error {
	err := server.Check(conf)
	if err != nil && path != "" {
		return fmt.Errorf("%s: %w", path, err)
	}
	return err
}
