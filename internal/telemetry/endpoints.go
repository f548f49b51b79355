package telemetry

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/tick"
)

// Times of the endpoints.
const (
	listenAgain   = 500 * time.Millisecond // an address may come later than the agent (the node's own, at boot)
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second // of the whole request; nobody has to send more than its header
	writeTimeout  = 30 * time.Second // a scrape of a busy node on a busy node
	idleTimeout   = 2 * time.Minute  // Prometheus asks every one by default
	stopTimeout   = time.Second
)

// Health is what the endpoints ask.
type Health struct {
	Alive  func() (bool, string) // all of it goes on; if not, what stands still. nil: while the process runs
	Ready  func() (bool, string) // serving under a lease, and able to ask; if not, why
	Status func() any            // for the status socket, as JSON
	Pods   func() any            // for the same
	Config func() string         // for the same: the configuration in effect, as NodeConfig
}

// MetricsHandler serves /metrics.
func (r *Registry) MetricsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", few(promhttp.HandlerFor(r.Gatherer(), promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})))
	return mux
}

// alive answers a liveness probe.
func (h Health) alive(w http.ResponseWriter, text string) {
	if h.Alive != nil {
		if ok, why := h.Alive(); !ok {
			http.Error(w, "not alive: "+why, http.StatusServiceUnavailable)
			return
		}
	}
	_, _ = io.WriteString(w, text) // a client that is gone needs no answer
}

// Handler serves /healthz (the agent goes on) and /readyz (pods are served under a lease, and what they need asked can be asked).
func (h Health) Handler() http.Handler { return h.mux() }

func (h Health) mux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		h.alive(w, "alive\n")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		ready, why := h.Ready()
		if !ready {
			http.Error(w, "not ready: "+why, http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ready\n")
	})
	return mux
}

// SocketHandler serves /status, /pods and /config too, which are for root alone: they name this node's pods.
func (h Health) SocketHandler() http.Handler {
	mux := h.mux()
	for path, read := range map[string]func() any{"/status": h.Status, "/pods": h.Pods} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			enc := json.NewEncoder(w)
			enc.SetIndent("", "  ")
			_ = enc.Encode(read())
		})
	}
	mux.HandleFunc("GET /config", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, h.Config())
	})
	return mux
}

// NodeCacheHandler serves what CoreDNS's plugins health and ready do, at addresses that their readers know: /health (the
// agent goes on) and /ready (pods are served under a lease).
func (h Health) NodeCacheHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		h.alive(w, "OK")
	})
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if ready, why := h.Ready(); !ready {
			http.Error(w, why, http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "OK")
	})
	return mux
}

// ServeTCP serves handler at addr until ctx ends, and keeps trying while the address cannot be had. An invalid addr means
// that the endpoint is turned off.
func ServeTCP(ctx context.Context, log *slog.Logger, name string, addr netip.AddrPort, handler http.Handler) {
	if !addr.IsValid() {
		return
	}
	ServeAt(ctx, log, name, addr.String(), handler)
}

// ServeAt is ServeTCP for an address as package net reads it, such as ":9253".
func ServeAt(ctx context.Context, log *slog.Logger, name, addr string, handler http.Handler) {
	serve(ctx, log.With("endpoint", name, "addr", addr), handler, func() (net.Listener, error) {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return newDoor(l, mostConns), nil
	})
}

// ServeTLS is ServeAt over TLS. conf is asked for each connection, so that renewed files count.
func ServeTLS(ctx context.Context, log *slog.Logger, name, addr string, handler http.Handler, conf func() (*tls.Config, error)) {
	log = log.With("endpoint", name, "addr", addr)
	if _, err := conf(); err != nil {
		log.Error("no connection is taken until it is mended", "err", err)
	}
	serve(ctx, log, handler, func() (net.Listener, error) {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		each := func(*tls.ClientHelloInfo) (*tls.Config, error) { return conf() }
		return tls.NewListener(newDoor(l, mostConns), &tls.Config{GetConfigForClient: each}), nil //nolint:gosec // the least version is conf's
	})
}

// ServeSocket serves handler on a unix socket that only root may use, until ctx ends. It takes the place of a socket that is
// there, in one step, and leaves its own at the end: by then it may be another agent's.
func ServeSocket(ctx context.Context, log *slog.Logger, path string, handler http.Handler) {
	serve(ctx, log.With("endpoint", "status", "path", path), handler, func() (net.Listener, error) {
		return atomicfile.Listen("unix", path)
	})
}

func serve(ctx context.Context, log *slog.Logger, handler http.Handler, listen func() (net.Listener, error)) {
	said := false
	for ctx.Err() == nil {
		l, err := listen()
		if err == nil {
			if said {
				log.Info("endpoint listens")
			}
			said = false
			err = serveOn(ctx, log, handler, l)
		}
		if err != nil && !said && ctx.Err() == nil {
			log.Warn("endpoint not served, will be tried again", "err", err)
			said = true
		}
		tick.Pause(ctx, listenAgain)
	}
}

// serveOn serves until ctx ends or l fails. When it returns, no request is being answered any more.
func serveOn(ctx context.Context, log *slog.Logger, handler http.Handler, l net.Listener) error {
	s := &http.Server{Handler: handler, MaxHeaderBytes: mostHeader, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if s.Shutdown(grace) != nil {
			_ = s.Close()
		}
	})
	err := s.Serve(l)
	if !stop() {
		<-ended
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// NewLogger makes the agent's logger: text or JSON, to w.
func NewLogger(w io.Writer, level slog.Leveler, asJSON bool) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if asJSON {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
