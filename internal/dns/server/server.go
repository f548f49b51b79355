// Package server is the agent's DNS server: a front and the chain behind it, made from one configuration.
//
// It owns nothing beside the two. Failure policy: theirs; a configuration that cannot be served changes nothing.
package server

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/listener"
)

// Config is all that the server is made from: what the chain answers by, and what the front needs beside it. The server keeps no
// reference to its slices and maps.
type Config struct {
	corefile.Config

	// Transparent is front.Config's, as Deaf is.
	Transparent bool
	Deaf        bool
	// Connections bounds the open TCP connections, at all addresses together.
	Connections int
}

func (c Config) front() listener.Config {
	return listener.Config{Addresses: c.Addresses, Port: c.Port, Transparent: c.Transparent, Deaf: c.Deaf, Misses: c.Misses, Connections: c.Connections}
}

// Server is one embedded CoreDNS behind the sockets that it answers at. Its methods may be called from several goroutines; they wait for
// each other.
type Server struct {
	*listener.Server
	chains  *corefile.Builder
	changed func() // nil: nobody is told
}

// New makes a server that is not started. observer is told of each question; it may be nil.
func New(log *slog.Logger, observer listener.Observer, plugins ...corefile.Plugin) *Server {
	return &Server{Server: listener.New(log, observer), chains: corefile.NewBuilder(log, plugins...)}
}

// OnChange has f called whenever another chain is made and about to answer, before it does. It is called once, before Start.
func (s *Server) OnChange(f func()) { s.changed = f }

// Check says whether a configuration could be served; see chain.Builder.Check.
func (s *Server) Check(cfg Config) error { return s.chains.Check(cfg.Config) }

// Start listens on every address and serves; see front.Server.Start. Nothing is served when it fails.
func (s *Server) Start(ctx context.Context, cfg Config) error { return s.StartOn(ctx, cfg, nil) }

// StartOn is Start with sockets that another process listens on, which StartOn owns.
func (s *Server) StartOn(ctx context.Context, cfg Config, inherited []listener.Socket) error {
	done, build, err := s.prepare(cfg)
	if err != nil {
		listener.CloseAll(inherited)
		return err
	}
	return s.Server.Start(ctx, done.front(), build, inherited)
}

// Restart serves another configuration; see front.Server.Restart. The old one still serves when it fails.
func (s *Server) Restart(ctx context.Context, cfg Config) error {
	done, build, err := s.prepare(cfg)
	if err != nil {
		return err
	}
	return s.Server.Restart(ctx, done.front(), build)
}

// prepare completes a configuration and says how its chain is made.
func (s *Server) prepare(cfg Config) (Config, listener.Build, error) {
	var err error
	if cfg.Config, err = cfg.Complete(); err != nil {
		return cfg, nil, err
	}
	return cfg, func(before listener.Chain) (listener.Chain, error) {
		old, _ := before.(served) // nothing in it: it is the first
		c, err := s.chains.Build(cfg.Config, old.Chain)
		if err != nil {
			return nil, err
		}
		if s.changed != nil {
			s.changed()
		}
		return served{c}, nil
	}, nil
}

// served is a chain as the front has it.
type served struct{ *corefile.Chain }

// First implements front.Chain.
func (s served) First(at netip.AddrPort) listener.Answerer {
	if h := s.Hits(at); h != nil {
		return h
	}
	return nil
}
