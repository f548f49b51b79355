package corefile

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
)

// process is what CoreDNS and caddy have once per process and not per server: the list of plugins, which panics when a name comes twice,
// the order of directives and the log. It is the one package variable here, because what it guards is global too. The goroutine that builds
// or ends a chain holds mu and sets current to that server's own plugins, so several servers with different plugins can be in one process,
// as in tests.
var process struct {
	mu         sync.Mutex // guards the fields below, and caddy's and dnsserver's package variables
	registered []string
	current    map[string]caddy.SetupFunc
	context    caddy.Context  // the caddy instance under construction; caddy passes its context to plugins alone
	blocks     map[int]served // the server blocks of that instance, each by its number
	output     lines          // CoreDNS's log; safe by itself
}

// Builder makes chains, one after the other. Its methods may be called from several goroutines.
type Builder struct {
	log     *slog.Logger
	plugins map[string]caddy.SetupFunc
}

// NewBuilder returns a builder. plugins are CoreDNS plugins of our own that the rendered Corefile uses: probe, metrics and others.
func NewBuilder(log *slog.Logger, plugins ...Plugin) *Builder {
	b := &Builder{log: log, plugins: map[string]caddy.SetupFunc{}}
	for _, p := range plugins {
		b.plugins[p.Name] = p.Setup
	}
	return b
}

// Plugin is a CoreDNS plugin of ours: the directive's name, which directives() must know, and its set-up function.
type Plugin struct {
	Name  string
	Setup caddy.SetupFunc
}

// enter prepares the process for one call into caddy with this builder's plugins. The returned function ends it.
func (b *Builder) enter() (leave func(), err error) {
	process.mu.Lock()
	leave = func() {
		process.current, process.context, process.blocks = nil, nil, nil
		process.mu.Unlock()
	}
	for name := range b.plugins {
		if slices.Contains(process.registered, name) {
			continue
		}
		if slices.Contains(caddy.ListPlugins()["others"], "dns."+name) {
			leave()
			return nil, fmt.Errorf("plugin %s: CoreDNS has one of this name", name)
		}
		plugin.Register(name, dispatch(name))
		process.registered = append(process.registered, name)
	}
	if err := dnsserver.SetDirectives(directives()); err != nil {
		leave()
		return nil, err
	}
	caddy.Quiet, dnsserver.Quiet = true, true
	// CoreDNS passes classes other than IN on where these plugins are in the block, as kube-dns with its forward does.
	dnsserver.EnableChaos[dirAsk] = struct{}{}
	process.current = b.plugins
	return leave, nil
}

// dispatch calls the set-up function of the server that is being made. It runs inside caddy.Start, under mu. The first of
// our plugins in a Corefile also notes the context and ends caddy's start before anything listens.
func dispatch(name string) caddy.SetupFunc {
	return func(c *caddy.Controller) error {
		setup := process.current[name]
		if setup == nil {
			return c.Errf("the plugin is not part of this server")
		}
		if process.context == nil {
			process.context = c.Context()
			c.OnFirstStartup(func() error { return errBuilt })
		}
		if process.blocks == nil {
			process.blocks = map[int]served{}
		}
		process.blocks[c.ServerBlockIndex] = served{config: dnsserver.GetConfig(c),
			zones: plugin.OriginsFromArgsOrServerBlock(nil, c.ServerBlockKeys)}
		return setup(c)
	}
}

// Check reports why a configuration could not be served, plugins' arguments included. It opens no socket and sends no query
// (but reads the files that an operator's Corefile names). It is for a command that ends: CoreDNS has no way to end what a
// plugin's set-up has begun for a check, and the hosts plugin begins to watch its file.
func (b *Builder) Check(cfg Config) error {
	input, _, err := prepare(cfg)
	if err != nil {
		return err
	}
	leave, err := b.enter()
	if err != nil {
		return err
	}
	defer leave()
	if err := caddy.ValidateAndExecuteDirectives(input, nil, true); err != nil {
		return inRendered(err)
	}
	return nil
}

// prepare renders cfg for caddy and completes it.
func prepare(cfg Config) (caddy.CaddyfileInput, Config, error) {
	text, err := Render(cfg)
	if err != nil {
		return caddy.CaddyfileInput{}, cfg, err
	}
	cfg, err = cfg.Complete()
	return caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(text), ServerTypeName: "dns"}, cfg, err
}
