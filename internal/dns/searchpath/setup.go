package searchpath

import (
	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
)

// Setup returns the directive's set-up function for a process's one memory. It registers nothing; the program that assembles the server
// does.
func Setup(memory *Memory, metrics *Metrics) caddy.SetupFunc {
	return func(c *caddy.Controller) error {
		for i := 0; c.Next(); i++ {
			if i > 0 {
				return plugin.Error("searchpath", plugin.ErrOnce)
			}
			if len(c.RemainingArgs()) != 0 || c.NextBlock() {
				return plugin.Error("searchpath", c.Err("takes no arguments: NodeConfig or an annotation turns it on for a pod"))
			}
		}
		// At start-up, not here: a configuration that is refused must change nothing. One that is taken may answer otherwise.
		c.OnStartup(func() error { memory.forget(); return nil })
		dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
			return &SearchPath{next: next, memory: memory, metrics: metrics}
		})
		return nil
	}
}
