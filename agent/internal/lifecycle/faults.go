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

// nodeCacheRecorder is the loop's recorder in node-cache mode. It also counts faults under node-cache's names, starts the endpoints
// that wait for the link, and writes the pid file once the server runs.
type nodeCacheRecorder struct {
	node.Recorder
	c *nodeCache
}

// PartChecked implements node.Recorder.
func (r nodeCacheRecorder) PartChecked(part string, err error) {
	r.Recorder.PartChecked(part, err)
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
				c.log.Warn("file of -pidfile not written", "err", err)
			}
		}
	}
}

// pidText is the content of the file of -pidfile.
func pidText() string { return fmt.Sprintln(os.Getpid()) }

// rulesFault names why rules were not written: another program holds iptables' lock, or an error.
func rulesFault(err error) string {
	// If go-iptables ran the program, only its message shows the cause.
	if err != nil && (errors.Is(err, iptables.ErrLocked) || strings.Contains(err.Error(), "holding the xtables lock")) {
		return nodecache.FaultIptablesLock
	}
	return nodecache.FaultIptables
}
