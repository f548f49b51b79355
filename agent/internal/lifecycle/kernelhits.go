package lifecycle

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/node/evidence"
	"github.com/neardns/neardns/agent/internal/pods/podindex"
	"github.com/neardns/neardns/internal/offload"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
)

// hitsOptions returns the node's options of kernel hits. Their functions use o.server and o.registry, which are opened later.
func (a *agent) hitsOptions(o *opened) offload.Options {
	out := offload.Options{
		Log: a.log, Folder: nodestate.BPFFolder(o.plan.Folders.State), Store: a.answers.Store, Mode: a.hitsMode, Excluded: a.hitsExcluded,
		Served:   func() []netip.AddrPort { return withDNSPort(o.server.Addresses()) },
		Veth:     func(f podfile.File) (int, string, error) { return o.registry.Veth(f) },
		Answered: a.clients.AnsweredInKernel,
	}
	if o.plan.KernelOnly() {
		out.Served = func() []netip.AddrPort { return withDNSPort(a.config().ClusterDNS()) }
		out.Fetch = func(message []byte) error {
			_, err := o.server.Fetch(message, agentClient{})
			return err
		}
	}
	return out
}

// hitsMode returns the mode in effect. With kernelHits.mode: auto, kernel hits are optional.
func (a *agent) hitsMode() offload.Mode {
	conf := a.config()
	mode := conf.KernelHits.Mode
	return offload.Mode{Name: mode, Off: mode == config.KernelHitsOff, Optional: mode == config.KernelHitsAuto, Config: conf}
}

// hitsExcluded returns the reason why kernelHits.mode: auto does not enable kernel hits on this node. It returns nil if that mode does
// enable them, and in any other mode.
func (a *agent) hitsExcluded() error {
	conf := a.config()
	if conf.KernelHits.Mode != config.KernelHitsAuto {
		return nil
	}
	if why := autoExcludes(conf, readNodeSigns("/proc")); why != "" {
		return errors.New(why)
	}
	return nil
}

// podsInKernel lists the pods for which kernel hits are enabled. Why is set for a pod that cannot have them.
func podsInKernel(pods []podfile.File, conf *config.Node, bypassed []evidence.Bypassed) []offload.Pod {
	var out []offload.Pod
	for _, f := range pods {
		want, why := podindex.InKernel(f, conf)
		if !want {
			continue
		}
		if why == "" && slices.ContainsFunc(bypassed, func(b evidence.Bypassed) bool { return slices.Contains(f.Addresses, b.Source) }) {
			why = "it is bypassed, kube-dns answers it: a network policy or firewall drops its queries to the agent"
		}
		out = append(out, offload.Pod{File: f, Why: why})
	}
	return out
}
