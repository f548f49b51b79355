// Package server is the DNS server of the agent and of an edge: a listener and the plugin chain behind it, made from one configuration.
//
// It guarantees that a configuration that cannot be served changes nothing.
//
// On failure it does what its two parts do; see listener and corefile.
package server

import (
	"context"
	"log/slog"

	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/listener"
)

// Config is all that the server is made from: the chain's configuration and the listener's. The server keeps no reference to its slices
// and maps.
type Config struct {
	corefile.Config

	// Transparent and Deaf are as in listener.Config.
	Transparent bool
	Deaf        bool
	// Connections bounds the open TCP connections, at all addresses together.
	Connections int
}

func (c Config) listener() listener.Config {
	return listener.Config{Addresses: c.Addresses, Port: c.Port, Transparent: c.Transparent, Deaf: c.Deaf,
		Misses: c.Misses, Connections: c.Connections}
}

// Server is one embedded CoreDNS behind its sockets. Its methods may be called from several goroutines; they wait for each other.
type Server struct {
	*listener.Server
	chains  *corefile.Builder
	changed func() // nil: nothing to call
}

// New makes a server that is not started. observer may be nil.
func New(log *slog.Logger, observer listener.Observer, plugins ...corefile.Plugin) *Server {
	return &Server{Server: listener.New(log, observer), chains: corefile.NewBuilder(log, plugins...)}
}

// OnChange sets a function to call whenever a new chain is about to answer. Call it once, before Start.
func (s *Server) OnChange(f func()) { s.changed = f }

// Check reports why a configuration cannot be served; see corefile.Builder.Check.
func (s *Server) Check(cfg Config) error { return s.chains.Check(cfg.Config) }

// Start listens on every address and serves; see listener.Server.Start. Nothing is served when it fails.
func (s *Server) Start(ctx context.Context, cfg Config) error { return s.StartOn(ctx, cfg, nil) }

// StartOn is Start with sockets that another process listens on, which StartOn owns.
func (s *Server) StartOn(ctx context.Context, cfg Config, inherited []listener.Socket) error {
	done, build, err := s.prepare(cfg)
	if err != nil {
		listener.CloseAll(inherited)
		return err
	}
	return s.Server.Start(ctx, done.listener(), build, inherited)
}

// Restart serves another configuration; see listener.Server.Restart. The old one still serves when it fails.
func (s *Server) Restart(ctx context.Context, cfg Config) error {
	done, build, err := s.prepare(cfg)
	if err != nil {
		return err
	}
	return s.Server.Restart(ctx, done.listener(), build)
}

// prepare completes a configuration and returns the function that makes its chain.
func (s *Server) prepare(cfg Config) (Config, listener.Build, error) {
	var err error
	if cfg.Config, err = cfg.Complete(); err != nil {
		return cfg, nil, err
	}
	return cfg, func(before listener.Chain) (listener.Chain, error) {
		old, _ := before.(*corefile.Chain) // nil for the first one
		c, err := s.chains.Build(cfg.Config, old)
		if err != nil {
			return nil, err
		}
		if s.changed != nil {
			s.changed()
		}
		return c, nil
	}, nil
}
