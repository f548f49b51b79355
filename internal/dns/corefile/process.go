package corefile

import (
	"log/slog"
	"slices"
	"sync"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
)

// process is what CoreDNS and caddy have once per process: the list of plugins, which panics when a name is registered twice, the order
// of directives, and the log. It is this package's only global state, because what it guards is global too. The goroutine that builds or
// ends a chain holds mu. For building, it also sets current to its Builder's plugins, so one process can have servers with different
// plugins, as in tests.
var process struct {
	mu         sync.Mutex // guards the fields below, and the package variables of caddy and dnsserver
	registered []string
	current    map[string]caddy.SetupFunc
	context    caddy.Context  // caddy's context of the instance under construction; caddy passes it only to plugins
	blocks     map[int]served // the server blocks of that instance, by their index
	output     lines          // CoreDNS's log; safe without mu
}

// Builder makes chains, one after the other. It is safe for concurrent use.
type Builder struct {
	log     *slog.Logger
	plugins map[string]caddy.SetupFunc
}

// NewBuilder returns a Builder. plugins are neardns's own CoreDNS plugins that the Corefile uses, for example probe and metrics.
func NewBuilder(log *slog.Logger, plugins ...Plugin) *Builder {
	b := &Builder{log: log, plugins: map[string]caddy.SetupFunc{}}
	for _, p := range plugins {
		b.plugins[p.Name] = p.Setup
	}
	return b
}

// Plugin is one of neardns's own CoreDNS plugins: the name of its directive, which directives() must have, and its set-up function.
type Plugin struct {
	Name  string
	Setup caddy.SetupFunc
}

// enter locks the process's global state, and prepares it for one call of caddy with this Builder's plugins. If it succeeds, the caller
// must call leave afterwards.
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
		plugin.Register(name, dispatch(name))
		process.registered = append(process.registered, name)
	}
	if err := dnsserver.SetDirectives(directives()); err != nil {
		leave()
		return nil, err
	}
	caddy.Quiet, dnsserver.Quiet = true, true
	// CoreDNS serves other classes than IN only on servers with a plugin of this list, which has forward. So the agent's own forwarding
	// plugin must be in it too.
	dnsserver.EnableChaos[dirAsk] = struct{}{}
	process.current = b.plugins
	return leave, nil
}

// dispatch returns the set-up function of a directive, which runs inside caddy.Start or Check, under mu, and calls the set-up function of
// the Builder's plugin. The first call for a Corefile also saves caddy's context, and makes caddy stop before it listens.
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

// Check returns why a configuration could not be served; it checks plugins' arguments too. It opens no socket and sends no query, but it
// reads files that an operator's Corefile names. It is for a command that exits soon: CoreDNS cannot stop what a plugin has started
// during the check, for example to watch a hosts file.
func (b *Builder) Check(cfg Config) error {
	input, err := prepare(cfg)
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

// prepare returns cfg's Corefile as caddy's input.
func prepare(cfg Config) (caddy.CaddyfileInput, error) {
	text, err := Render(cfg)
	return caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(text), ServerTypeName: "dns"}, err
}
