// Package server is the DNS server of the agent and of an edge: a listener and its plugin chain, made from one configuration.
//
// A configuration that cannot be served changes nothing.
//
// On failure it does what packages listener and corefile do.
package server

import (
	"context"
	"log/slog"

	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/listener"
)

// Config has everything from which the server is made: the configuration of the plugin chain and of the listener. The server keeps no
// reference to its slices and maps.
type Config struct {
	corefile.Config

	// Transparent and Deaf are as in listener.Config.
	Transparent bool
	Deaf        bool
	// Connections is the maximum of open TCP connections, of all addresses together.
	Connections int
}

func (c Config) listener() listener.Config {
	return listener.Config{Addresses: c.Addresses, Port: c.Port, Transparent: c.Transparent, Deaf: c.Deaf,
		Misses: c.Misses, Connections: c.Connections}
}

// Server is an embedded CoreDNS with its sockets. Except for OnChange, its methods are safe for concurrent use.
type Server struct {
	*listener.Server
	chains  *corefile.Builder
	changed func() // nil: nothing to call
}

// New returns a server that is not started. observer may be nil.
func New(log *slog.Logger, observer listener.Observer, plugins ...corefile.Plugin) *Server {
	return &Server{Server: listener.New(log, observer), chains: corefile.NewBuilder(log, plugins...)}
}

// OnChange sets a function that is called whenever a new plugin chain is about to serve. Call OnChange at most once, before Start.
func (s *Server) OnChange(f func()) { s.changed = f }

// Check returns why a configuration cannot be served; see corefile.Builder.Check.
func (s *Server) Check(cfg Config) error { return s.chains.Check(cfg.Config) }

// Start listens on every address and serves; see listener.Server.Start. If it fails, no address is served.
func (s *Server) Start(ctx context.Context, cfg Config) error { return s.StartOn(ctx, cfg, nil) }

// StartOn is like Start, but uses listening sockets of another process. It owns these sockets.
func (s *Server) StartOn(ctx context.Context, cfg Config, inherited []listener.Socket) error {
	return s.Server.Start(ctx, cfg.listener(), s.build(cfg), inherited)
}

// Restart serves another configuration; see listener.Server.Restart. If it fails, the old configuration is still served.
func (s *Server) Restart(ctx context.Context, cfg Config) error {
	return s.Server.Restart(ctx, cfg.listener(), s.build(cfg))
}

// build returns the function that makes a configuration's plugin chain.
func (s *Server) build(cfg Config) listener.Build {
	return func(before listener.Chain) (listener.Chain, error) {
		old, _ := before.(*corefile.Chain) // nil for the first one
		c, err := s.chains.Build(cfg.Config, old)
		if err != nil {
			return nil, err
		}
		if s.changed != nil {
			s.changed()
		}
		return c, nil
	}
}
