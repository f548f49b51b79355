package telemetry

import (
	"context"
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
	listenAgain   = 500 * time.Millisecond // pause before another try to listen: at boot, the node may not have the address yet
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second // for reading the whole request, which is only a header
	writeTimeout  = 30 * time.Second // for handling a request and writing the answer; on a busy node a scrape is large and slow
	idleTimeout   = 2 * time.Minute  // of a connection between two requests; Prometheus scrapes every minute by default
	stopTimeout   = time.Second      // for running requests when the endpoint stops
)

// Health has the functions behind the endpoints.
type Health struct {
	Alive  func() (bool, string) // whether all of the program's loops run, else which one does not; nil: alive while the process runs
	Ready  func() (bool, string) // whether the program serves, else why not
	Status func() any            // status socket, path /status: a value that is sent as JSON
	Pods   func() any            // status socket, path /pods: a value that is sent as JSON
	Config func() string         // status socket, path /config: the configuration in effect, as NodeConfig
	Entry  http.HandlerFunc      // status socket, path /entry: the cache's entry for a name and type; nil: the path does not exist
}

// MetricsHandler serves /metrics, and the values of more as JSON at their paths. Pods may be able to read them.
func (r *Registry) MetricsHandler(more map[string]func() any) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r.Gatherer(), promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	serveJSON(mux, more)
	return limitScrapes(mux)
}

// serveJSON serves a value at each path.
func serveJSON(mux *http.ServeMux, values map[string]func() any) {
	for path, read := range values {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			enc := json.NewEncoder(w)
			enc.SetIndent("", "  ")
			_ = enc.Encode(read())
		})
	}
}

// probe answers text if check reports true or is nil, and otherwise 503, prefix and the reason.
func probe(check func() (bool, string), text, prefix string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if check != nil {
			if ok, why := check(); !ok {
				http.Error(w, prefix+why, http.StatusServiceUnavailable)
				return
			}
		}
		_, _ = io.WriteString(w, text) // a client that is gone needs no answer
	}
}

// Handler serves /healthz (Alive) and /readyz (Ready).
func (h Health) Handler() *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", probe(h.Alive, "alive\n", "not alive: "))
	mux.Handle("GET /readyz", probe(h.Ready, "ready\n", "not ready: "))
	return mux
}

// SocketHandler serves what Handler does, and /status, /pods, /config and, if Entry is set, /entry. Some of these name the node's pods, so
// serve it only where no process but root's can read it (ServeSocket).
func (h Health) SocketHandler() http.Handler {
	mux := h.Handler()
	serveJSON(mux, map[string]func() any{"/status": h.Status, "/pods": h.Pods})
	if h.Entry != nil {
		mux.HandleFunc("GET /entry", h.Entry)
	}
	mux.HandleFunc("GET /config", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, h.Config())
	})
	return mux
}

// NodeCacheHandler serves the paths of CoreDNS's plugins health and ready: /health (Alive) and /ready (Ready).
func (h Health) NodeCacheHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /health", probe(h.Alive, "OK", "not alive: "))
	mux.Handle("GET /ready", probe(h.Ready, "OK", ""))
	return mux
}

// ServeTCP serves handler at addr until ctx ends, and tries again while it cannot listen there. An invalid addr turns the endpoint off.
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
		return &fairListener{Listener: l, max: maxConns}, nil
	})
}

// ServeSocket serves handler on a unix socket that only root may use, until ctx ends. It replaces an existing socket in one step. It does
// not remove the socket at the end: by then it may be another agent's.
func ServeSocket(ctx context.Context, log *slog.Logger, path string, handler http.Handler) {
	serve(ctx, log.With("endpoint", "status", "path", path), handler, func() (net.Listener, error) {
		return atomicfile.Listen("unix", path)
	})
}

func serve(ctx context.Context, log *slog.Logger, handler http.Handler, listen func() (net.Listener, error)) {
	logged := false
	for ctx.Err() == nil {
		l, err := listen()
		if err == nil {
			if logged {
				log.Info("HTTP endpoint (metrics, health or status) is served again after a failure")
			}
			logged = false
			err = serveOn(ctx, log, handler, l)
		}
		if err != nil && !logged && ctx.Err() == nil {
			log.Warn("cannot serve the HTTP endpoint (metrics, health or status); it is retried", "err", err)
			logged = true
		}
		tick.Pause(ctx, listenAgain)
	}
}

// serveOn serves until ctx ends or l fails. When ctx ends, it waits up to stopTimeout for running requests, and then closes their
// connections.
func serveOn(ctx context.Context, log *slog.Logger, handler http.Handler, l net.Listener) error {
	s := &http.Server{Handler: handler, MaxHeaderBytes: maxHeader, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout,
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

// NewLogger makes a logger that writes text or JSON to w.
func NewLogger(w io.Writer, level slog.Leveler, asJSON bool) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if asJSON {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
