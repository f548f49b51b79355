package lifecycle

import (
	"errors"
	"net"
	"strings"

	"github.com/neardns/neardns/agent/internal/config/nodecache"
	"github.com/neardns/neardns/pkg/steer/iptables"
)

// partChecked implements role.checked. It counts faults in node-cache's metrics, and starts the waiting endpoints after the first check
// of the link.
func (c *nodeCache) partChecked(part string, err error) {
	switch part {
	case "link":
		c.once.Do(func() { close(c.linked) })
		if err != nil {
			if _, missing := net.InterfaceByName(c.opts.Interface); missing != nil {
				_ = c.faults.Count(nodecache.FaultInterfaceAdd, err) // a missing interface counts under both labels, as in node-cache
			}
		}
		_ = c.faults.Count(nodecache.FaultInterfaceCheck, err)
	case "rules", "firewall":
		_ = c.faults.Count(rulesFault(err), err)
	}
}

// rulesFault returns node-cache's metric label for a failed write of the rules: another program holds iptables' lock, or any other error.
func rulesFault(err error) string {
	// go-iptables returns an error of its own type, so only the text shows that the lock was held.
	if err != nil && (errors.Is(err, iptables.ErrLocked) || strings.Contains(err.Error(), "holding the xtables lock")) {
		return nodecache.FaultIptablesLock
	}
	return nodecache.FaultIptables
}
