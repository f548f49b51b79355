package lifecycle

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/neardns/neardns/agent/internal/config/nodecache"
	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/pkg/steer/iptables"
)

// nodeCacheRecorder is the loop's recorder in node-cache's place: faults are counted under node-cache's names, too, and what waits for
// the link or the server is told.
type nodeCacheRecorder struct {
	node.Recorder
	c *nodeCache
}

// Kept implements node.Recorder.
func (r nodeCacheRecorder) Kept(part string, err error) {
	r.Recorder.Kept(part, err)
	c := r.c
	switch part {
	case "link":
		c.once.Do(func() { close(c.linked) })
		if err != nil {
			if _, missing := net.InterfaceByName(c.opts.Interface); missing != nil {
				_ = c.faults.Count(nodecache.FaultInterfaceAdd, err) // and below, as node-cache does
			}
		}
		_ = c.faults.Count(nodecache.FaultInterfaceCheck, err)
	case "rules", "firewall":
		_ = c.faults.Count(rulesFault(err), err)
	case "server":
		if file := c.opts.PIDFile; err == nil && file != "" {
			if err := replaceFile(file, pidText()); err != nil {
				c.log.Warn("the file of -pidfile is not written", "err", err)
			}
		}
	}
}

// pidText is what stands in the file of -pidfile.
func pidText() string { return fmt.Sprintln(os.Getpid()) }

// rulesFault names what kept rules from being written: iptables' lock, which others hold, or something that is wrong.
func rulesFault(err error) string {
	// Where go-iptables ran it, the program's own words are all that tells.
	if err != nil && (errors.Is(err, iptables.ErrLocked) || strings.Contains(err.Error(), "holding the xtables lock")) {
		return nodecache.FaultIptablesLock
	}
	return nodecache.FaultIptables
}
