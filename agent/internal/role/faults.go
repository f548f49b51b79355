package role

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/nodecache"
	"github.com/neardns/neardns/agent/internal/server"
	"github.com/neardns/neardns/agent/internal/sole"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
)

// netLock names the right of one agent to a node's addresses. It belongs to a netns and goes with its process, and no folder has to
// be shared: node-cache's manifest has none.
const netLock = "neardns-nodecache"

// lockNetNS makes sure that one agent in node-cache's place serves this netns. *HeldError: another does.
func lockNetNS() (*os.File, error) {
	f, err := sole.Take(netLock)
	if errors.Is(err, sole.ErrHeld) {
		return nil, &HeldError{path: "@" + netLock, holder: "in node-cache's place"}
	} else if err != nil {
		return nil, fmt.Errorf("take lock: %w", err)
	}
	return f, nil
}

// parts gives the loop what this role does in another way.
func (c *nodeCache) parts(p *node.Parts) {
	p.Server = markedServer{p.Server, c}
	p.Rules = countedRules{p.Rules, c.faults}
	p.Firewall = countedFirewall{p.Firewall, c.faults}
	p.Link = countedLink{p.Link, c}
	if !c.opts.SetupInterface {
		p.Link = countedLink{foreignLink{p.Link}, c}
	}
	if !c.opts.SetupIptables {
		p.Firewall = noFirewall{}
	}
}

// markedServer is a server that leaves the file of -pidfile once it serves.
type markedServer struct {
	node.Server
	c *nodeCache
}

func (s markedServer) Start(ctx context.Context, cfg server.Config) error {
	if err := s.Server.Start(ctx, cfg); err != nil {
		return err
	}
	if file := s.c.opts.PIDFile; file != "" {
		if err := replaceFile(file, pidText()); err != nil {
			s.c.log.Warn("the file of -pidfile is not written", "err", err)
		}
	}
	return nil
}

// pidText is what stands in the file of -pidfile.
func pidText() string { return fmt.Sprintln(os.Getpid()) }

// countedRules and what follows count what goes wrong under node-cache's name.
type countedRules struct {
	node.Rules
	faults *nodecache.Faults
}

func (r countedRules) Repair(rs steer.Ruleset) ([]string, error) {
	drift, err := r.Rules.Repair(rs)
	return drift, r.faults.Count(rulesFault(err), err)
}

type countedFirewall struct {
	node.Firewall
	faults *nodecache.Faults
}

func (f countedFirewall) Ensure(addresses []netip.Addr, legacy bool) (string, error) {
	mended, err := f.Firewall.Ensure(addresses, legacy)
	return mended, f.faults.Count(rulesFault(err), err)
}

// rulesFault names what kept rules from being written: iptables' lock, which others hold, or something that is wrong.
func rulesFault(err error) string {
	// Where go-iptables ran it, the program's own words are all that tells.
	if err != nil && (errors.Is(err, iptables.ErrLocked) || strings.Contains(err.Error(), "holding the xtables lock")) {
		return nodecache.FaultIptablesLock
	}
	return nodecache.FaultIptables
}

type countedLink struct {
	node.Link
	c *nodeCache
}

func (l countedLink) Ensure(name string, addresses []netip.Addr) (string, error) {
	mended, err := l.Link.Ensure(name, addresses)
	l.c.once.Do(func() { close(l.c.linked) })
	if err != nil {
		if _, missing := net.InterfaceByName(name); missing != nil {
			_ = l.c.faults.Count(nodecache.FaultInterfaceAdd, err) // and below, as node-cache does
		}
	}
	return mended, l.c.faults.Count(nodecache.FaultInterfaceCheck, err)
}

// foreignLink is somebody else's to keep (-setupinterface=false): where the addresses are missing, listening fails and says so.
type foreignLink struct{ node.Link }

func (foreignLink) Ensure(string, []netip.Addr) (string, error) { return "", nil }

type noFirewall struct{}

func (noFirewall) Ensure([]netip.Addr, bool) (string, error) { return "", nil }
