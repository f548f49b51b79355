package dns

import (
	"fmt"
	"slices"
	"sync"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
)

// process is what CoreDNS and caddy have once per process and not per server: the list of plugins, which panics when a
// name comes twice, the order of directives, the log, and the list of instances. It is the one package variable here, because
// what it guards is global too. Whoever starts, reloads or stops a server holds mu and sets current to that server's own
// plugins, so several servers with different plugins can live in one process (tests do).
var process struct {
	mu         sync.Mutex // guards the fields below, and caddy's and dnsserver's package variables
	registered []string
	current    map[string]caddy.SetupFunc
	made       *made
	output     lines // CoreDNS's log; safe by itself
}

// made notes the instance that caddy is making. caddy hands out neither an instance that failed to start nor, when an
// old one's shutdown fails, the new one that runs already; without it their goroutines and sockets could not be ended.
type made struct {
	instance *caddy.Instance
	started  bool // its start-up callbacks have begun
}

// Plugin is a CoreDNS plugin of ours: the directive's name, which directives() must know, and its set-up function.
type Plugin struct {
	Name  string
	Setup caddy.SetupFunc
}

// enter prepares the process for one call into caddy with this server's plugins. The returned function ends it.
func (s *Server) enter() (note *made, leave func(), err error) {
	process.mu.Lock()
	leave = func() {
		process.current, process.made = nil, nil
		process.mu.Unlock()
	}
	for name := range s.plugins {
		if slices.Contains(process.registered, name) {
			continue
		}
		if slices.Contains(caddy.ListPlugins()["others"], "dns."+name) {
			leave()
			return nil, nil, fmt.Errorf("plugin %s: CoreDNS has one of this name", name)
		}
		plugin.Register(name, dispatch(name))
		process.registered = append(process.registered, name)
	}
	if err := dnsserver.SetDirectives(directives()); err != nil {
		leave()
		return nil, nil, err
	}
	caddy.Quiet, dnsserver.Quiet = true, true
	process.current, process.made = s.plugins, new(made)
	return process.made, leave, nil
}

// dispatch calls the set-up function of the server that is being started. It runs inside caddy.Start or Restart, under mu.
func dispatch(name string) caddy.SetupFunc {
	return func(c *caddy.Controller) error {
		setup := process.current[name]
		if setup == nil {
			return c.Errf("the plugin is not part of this server")
		}
		note := process.made
		if all := caddy.Instances(); len(all) > 0 {
			note.instance = all[len(all)-1]
		}
		c.OnStartup(func() error { note.started = true; return nil })
		return setup(c)
	}
}
