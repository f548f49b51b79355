package lifecycle

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
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

// endpoints runs the HTTP endpoints that the current Corefile template and the flags name.
type endpoints struct {
	ctx     context.Context // its end stops all endpoints
	serve   func(ctx context.Context, e endpoint)
	mu      sync.Mutex        // guards the field below
	running map[string]func() // by endpoint.key: stops a running endpoint
}

// follow starts the wanted endpoints that do not run yet, and stops those that are no longer wanted.
func (e *endpoints) follow(wanted []endpoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, stop := range e.running {
		if !slices.ContainsFunc(wanted, func(w endpoint) bool { return w.key() == key }) {
			stop()
			delete(e.running, key)
		}
	}
	for _, w := range wanted {
		if e.running[w.key()] != nil || e.ctx.Err() != nil {
			continue
		}
		ctx, cancel := context.WithCancel(e.ctx)
		e.running[w.key()] = cancel
		e.serve(ctx, w)
	}
}

func (w endpoint) key() string { return w.name + " " + w.addr }

// serve implements role.serve: it runs the endpoints that the flags and the template name, until ctx ends.
func (c *nodeCache) serve(ctx context.Context, wg *sync.WaitGroup, m *telemetry.Metrics, metrics http.Handler, h telemetry.Health) {
	m.Collect(c.faults.Collector())
	handlers := map[string]http.Handler{"metrics": metrics, "health": h.NodeCacheHandler()}
	e := &endpoints{ctx: ctx, running: map[string]func(){}, serve: func(ctx context.Context, w endpoint) {
		wg.Go(func() {
			select { // wait for the link, because most endpoints listen at an address of it
			case <-c.linked:
				if w.secure {
					telemetry.ServeTLS(ctx, c.log, w.name, w.addr, handlers[w.name], c.tlsConfig)
					return
				}
				telemetry.ServeAt(ctx, c.log, w.name, w.addr, handlers[w.name])
			case <-ctx.Done():
			}
		})
	}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endpoints = e
	e.follow(c.wanted())
}

// wanted lists the endpoints that flags and template name, without those whose address conflicts with an earlier one's. The caller holds
// mu.
func (c *nodeCache) wanted() []endpoint {
	var out []endpoint
	add := func(name string, addrs ...string) {
		for _, a := range addrs {
			if a != "" && !slices.ContainsFunc(out, func(w endpoint) bool { return samePort(w.addr, a) }) {
				out = append(out, endpoint{name: name, addr: a})
			}
		}
	}
	add("metrics", c.survey.Prometheus...)
	add("health", c.survey.Health...)
	add("health", c.survey.Ready...)
	plain := len(out)
	add("metrics", c.opts.SetupMetrics)
	for i := range out[plain:] {
		out[plain+i].secure = c.opts.TLS.Enabled
	}
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
