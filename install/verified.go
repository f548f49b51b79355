package main

import (
	"encoding/json"

	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
)

// sayVerified prints whether the agent has verified the fallback to kube-dns on this node. It is for information: a node without it gets
// the entry too, because no pod is steered before the fallback is verified (except with steer: always).
func (in install) sayVerified(entry []byte) {
	var e struct {
		Steer string `json:"steer"`
	}
	if err := json.Unmarshal(entry, &e); err != nil || e.Steer == conflist.SteerOff {
		return // no pod is steered on this node
	}
	proof, _, err := nodestate.ProofFile(in.persistDir).Read()
	switch {
	case err != nil:
		in.say("warning: %v", err)
	case len(proof.ClusterDNS) == 0 || proof.Outlived():
		in.say("fallback to kube-dns is not verified yet; the agent verifies it with queries of its own. Unless steer is always, no pod is " +
			"steered before. If that lasts, `neardns-agent status` shows why; if eBPF replaces kube-proxy, use arrangement: transparent " +
			"(install/overlays/transparent)")
	default:
		in.say("fallback to kube-dns is verified for %s", steer.JoinAddrs(proof.ClusterDNS, ", "))
	}
}
