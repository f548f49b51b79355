package lifecycle

import (
	"context"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"

	"github.com/neardns/neardns/internal/telemetry"
)

// endpoint is an address at which metrics or health are served by HTTP.
type endpoint struct{ name, addr string }

// serve implements role.serve: it runs the endpoints that the flags and the current Corefile template name, until ctx ends.
func (c *nodeCache) serve(ctx context.Context, wg *sync.WaitGroup, m *telemetry.Metrics, metrics http.Handler, h telemetry.Health) {
	m.Collect(c.faults)
	handlers := map[string]http.Handler{"metrics": metrics, "health": h.NodeCacheHandler()}
	running := map[endpoint]func(){} // with the function that stops the endpoint
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follow = func() {
		wanted := c.wanted()
		maps.DeleteFunc(running, func(e endpoint, stop func()) bool {
			gone := !slices.Contains(wanted, e)
			if gone {
				stop()
			}
			return gone
		})
		for _, e := range wanted {
			if running[e] != nil || ctx.Err() != nil {
				continue
			}
			one, stop := context.WithCancel(ctx)
			running[e] = stop
			wg.Go(func() {
				select { // wait for the link, because the endpoint may listen at an address of it
				case <-c.linked:
					telemetry.ServeAt(one, c.log, e.name, e.addr, handlers[e.name])
				case <-one.Done():
				}
			})
		}
	}
	c.follow()
}

// wanted lists the endpoints that flags and template name, without those whose address conflicts with an earlier one's. The caller holds
// mu.
func (c *nodeCache) wanted() []endpoint {
	var out []endpoint
	add := func(name string, addrs ...string) {
		for _, a := range addrs {
			if a != "" && !slices.ContainsFunc(out, func(w endpoint) bool { return samePort(w.addr, a) }) {
				out = append(out, endpoint{name, a})
			}
		}
	}
	add("metrics", c.survey.Prometheus...)
	add("health", c.survey.Health...)
	add("health", c.survey.Ready...)
	add("metrics", c.opts.SetupMetrics)
	return out
}

// samePort reports whether two addresses may conflict, so that only one of them can be listened on.
func samePort(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB {
		return a == b
	}
	wild := func(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
	return hostA == hostB || wild(hostA) || wild(hostB)
}
