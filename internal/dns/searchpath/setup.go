package searchpath

import (
	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
)

// Setup returns the directive's set-up function, which the caller registers. All server blocks of the process use memory.
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
		// Only at start-up, because a configuration that is refused must change nothing. One that is accepted may give other answers, so
		// forget the decisions.
		c.OnStartup(func() error { memory.forget(); return nil })
		dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
			return &SearchPath{next: next, memory: memory, metrics: metrics}
		})
		return nil
	}
}
