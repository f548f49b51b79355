package lifecycle

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"

	"github.com/neardns/neardns/internal/telemetry"
)

// endpoint is an address at which metrics or health are served by HTTP.
type endpoint struct {
	name, addr string
	secure     bool // served over TLS, because -tls-enabled is set
}

// serve implements role.serve: it runs the endpoints that the flags and the current Corefile template name, until ctx ends.
func (c *nodeCache) serve(ctx context.Context, wg *sync.WaitGroup, m *telemetry.Metrics, metrics http.Handler, h telemetry.Health) {
	m.Collect(c.faults.Collector())
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
			var secure func() (*tls.Config, error)
			if e.secure {
				secure = c.tlsConfig
			}
			wg.Go(func() {
				select { // wait for the link, because the endpoint may listen at an address of it
				case <-c.linked:
					telemetry.ServeAt(one, c.log, e.name, e.addr, handlers[e.name], secure)
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
	add := func(name string, secure bool, addrs ...string) {
		for _, a := range addrs {
			if a != "" && !slices.ContainsFunc(out, func(w endpoint) bool { return samePort(w.addr, a) }) {
				out = append(out, endpoint{name, a, secure})
			}
		}
	}
	add("metrics", false, c.survey.Prometheus...)
	add("health", false, c.survey.Health...)
	add("health", false, c.survey.Ready...)
	add("metrics", c.opts.TLS.Enabled, c.opts.SetupMetrics)
	return out
}

// tlsConfig reads the certificate, the key and the client CA that the -tls- flags name.
func (c *nodeCache) tlsConfig() (*tls.Config, error) {
	o := c.opts.TLS
	conf := &tls.Config{ClientAuth: o.Auth, MinVersion: o.Min} //nolint:gosec // the operator's to choose
	cert, certErr := c.env.ReadFile(o.Cert)
	key, keyErr := c.env.ReadFile(o.Key)
	if err := errors.Join(certErr, keyErr); err != nil {
		return nil, fmt.Errorf("read -tls-cert-file and -tls-private-key-file: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("-tls-cert-file %s, -tls-private-key-file %s: %w", o.Cert, o.Key, err)
	}
	conf.Certificates = []tls.Certificate{pair}
	if o.ClientCA == "" {
		return conf, nil
	}
	signers, err := c.env.ReadFile(o.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("read -tls-client-ca-file: %w", err)
	}
	conf.ClientCAs = x509.NewCertPool()
	if !conf.ClientCAs.AppendCertsFromPEM(signers) {
		return nil, fmt.Errorf("-tls-client-ca-file %s: no certificate in it", o.ClientCA)
	}
	return conf, nil
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
