package lifecycle

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/agent/internal/node/link"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// nodeLink implements node.Link with package link.
type nodeLink struct{}

func (nodeLink) Ensure(name string, addresses []netip.Addr) (string, error) {
	return link.Ensure(link.Config{Name: name, Addresses: addresses})
}

func (nodeLink) Watch(ctx context.Context) (<-chan struct{}, error) {
	return link.Watch(ctx, link.Config{})
}

// missingFeatures describes what the agent cannot do without the missing iptables programs. The slim image has none of them. It returns nil
// if none is missing.
func missingFeatures(missing []string) []string {
	if len(missing) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: the agent cannot add rules where the policy of their filter table is DROP "+
		"(kube-dns answers there unless you accept "+
		"udp and tcp port 53 for our addresses), and backend: iptables cannot use them", strings.Join(missing, ", "))}
}

// verifiedFallbacks stores which fallbacks were verified, in a folder that survives a reboot. It is read at the start of node.Run, and then
// used only by the goroutine of the fallback check.
type verifiedFallbacks struct {
	dir     string
	backend rules.Kind // the record counts only for the back end with which it was verified
}

func (p *verifiedFallbacks) Read() ([]netip.Addr, error) {
	proof, _, err := nodestate.ProofFile(p.dir).Read()
	if err != nil || proof.Backend != p.backend.Recorded() || proof.Outlived() || len(proof.ClusterDNS) == 0 {
		return nil, err
	}
	return proof.ClusterDNS, nil
}

func (p *verifiedFallbacks) Write(proven []netip.Addr) error {
	if len(proven) == 0 {
		return nodestate.ProofFile(p.dir).Remove()
	}
	return nodestate.ProofFile(p.dir).Write(nodestate.Proof{ClusterDNS: proven,
		Time: time.Now(), Backend: p.backend.Recorded(), Boot: nodestate.ThisBoot()})
}

// fallbackLost finds out whether a failed fallback check is due to the fallback or to kube-dns being down, by querying kube-dns as the
// host's own processes do.
func fallbackLost(ctx context.Context, clusterDNS netip.Addr, name string) string {
	if err := inspect.Answers(ctx, clusterDNS, name); err != nil {
		return "" // kube-dns may be down, so the fallback may not be at fault
	}
	return fmt.Sprintf("%s answers this host, but not the packets that fall back", clusterDNS)
}
