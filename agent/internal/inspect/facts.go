package inspect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/node/link"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// facts has everything that the doctor read from the node. The checks use nothing else.
type facts struct {
	basics
	surroundings
	now           time.Time
	kernelHitsOff bool     // kernelHits.mode is off or auto, with which arrangement: transparent has no kernel hits
	unknown       []string // unknown keys of the configuration, with their places
	holder        int      // PID of the process that holds the state folder's lock; 0 if unknown
	linkDrift     []string
	linkErr       error
	tableDrift    []string
	verified      []netip.Addr // cluster DNS addresses whose fallback was recorded as verified
	verifiedErr   error
	fallbacks     []*queryResult // results of queries from the host to the cluster DNS addresses
	upstreams     []*queryResult
	compared      []comparison
	attachments   []pods.Verified
	podErrs       []error
}

// surroundings has facts about other programs and settings of the host.
type surroundings struct {
	accepted, dropping []iptables.DropPolicy // DROP policies that rules of neardns exempt its addresses from, and those without such rules
	acceptErr          error
	chains             []nft.Chain // chains of other programs
	chainsErr          error
	kubeProxy          string // kube-proxy's mode as its rules show it
	kubeProxyWanted    string // kube-proxy's mode in the configuration
	resolv             []resolvConf
	network            network
	watch              *nodestate.Watch // nil if no watch has left a state
	hosts              Hosts
}

// gather reads the facts from the node.
func (in *Inspector) gather(ctx context.Context) *facts {
	f := &facts{basics: *in.collect(ctx), now: time.Now(), unknown: in.Conf.Unknown(),
		kernelHitsOff: in.Conf.KernelHits.Mode == config.KernelHitsOff || in.Conf.KernelHits.Mode == config.KernelHitsAuto, holder: in.holder()}
	defer f.close()
	f.resolv, f.hosts = in.resolvConf(f.up), in.hosts(f.now)
	if in.Fault != nil {
		f.faults = append([]error{in.Fault}, f.faults...)
	}
	if f.agent == nil {
		f.agent = new(node.Status)
	}
	if _, err := corefile.Render(f.want.Server.Config); err != nil {
		f.faults = append(f.faults, err)
	}
	if f.want.KernelOnly() {
		f.upstreams, _ = in.queryServers(ctx, f.want, f.up)
		return f
	}
	var queries sync.WaitGroup
	queries.Go(func() { f.upstreams, f.fallbacks = in.queryServers(ctx, f.want, f.up) })
	queries.Go(func() { f.compared = in.compare(ctx, f.want) })
	f.linkDrift, f.linkErr = link.Verify(link.Config{Name: f.want.Link.Name, Addresses: f.want.Addresses()})
	f.verifyTable()
	proof, _, err := nodestate.ProofFile(f.want.Folders.Persist).Read()
	f.verified, f.verifiedErr = proof.ClusterDNS, err
	f.accepted, f.dropping, f.acceptErr = iptables.VerifyAccepts(f.want.Addresses())
	f.chains, f.chainsErr = nft.Others(-1)
	f.kubeProxy, f.kubeProxyWanted = kubeProxyMode(f.chains), in.Conf.KubeProxyMode
	f.network, f.watch = in.network(f.want.Redirects), in.watch()
	f.attachments, f.podErrs = f.pods.Verify()
	queries.Wait()
	return f
}

// holder returns the PID that the lock file names, if a program of neardns runs with it, and 0 otherwise. It does not try to take the lock,
// because a starting agent may want it.
func (in *Inspector) holder() int {
	data, err := os.ReadFile(filepath.Join(in.Conf.StateDir, nodestate.AgentLockName))
	if err != nil {
		return 0
	}
	var pid int
	if _, err := fmt.Sscanf(string(data), "process %d", &pid); err != nil {
		return 0
	}
	if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); !strings.HasPrefix(string(name), "neardns") {
		return 0
	}
	return pid
}

// verifyTable compares the host's rules with those that the configuration wants.
func (f *facts) verifyTable() {
	if !f.present || f.tableErr != nil {
		return
	}
	want, err := f.want.Host(f.pods, rules.Uplinks)
	if err == nil {
		err = f.host.Verify(want)
	}
	var drift *steer.DriftError
	if errors.As(err, &drift) {
		f.tableDrift = drift.Items
	} else {
		f.tableErr = err
	}
}

// kubeProxyMode returns kube-proxy's mode, found by its chains, or for IPVS by its virtual servers.
func kubeProxyMode(others []nft.Chain) string {
	if services, err := os.ReadFile("/proc/thread-self/net/ip_vs"); err == nil && strings.Contains(string(services), "TCP ") {
		return config.KubeProxyIPVS
	}
	mode := config.KubeProxyNone
	for _, c := range others {
		switch {
		case c.Table == "kube-proxy":
			mode = config.KubeProxyNftables
		case c.Table == "nat" && c.Name == "KUBE-SERVICES":
			mode = config.KubeProxyIptables
		}
	}
	return mode
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
