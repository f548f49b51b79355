package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// Pods are the facts about the node's pods that the host's rules depend on.
type Pods interface {
	// FallbackOnly returns redirects that a pod still uses although the configuration no longer has them.
	FallbackOnly(configured []steer.Redirect) []steer.Redirect
	// Locals returns local addresses that a pod still uses although the configuration does not have them.
	Locals(configured []steer.Local, redirects []steer.Redirect) []steer.Local
	// HostInterfaces returns the host's links on which packets of steered pods arrive.
	HostInterfaces() []string
	// OptedOut returns the addresses of pods that must not be intercepted.
	OptedOut() []netip.Addr
}

// Uplinks returns the host's links that lead away from this node; the agent serves no client whose packets arrive there. It leaves out
// the links in podSide. rules.Uplinks implements it.
type Uplinks func(podSide ...string) ([]string, error)

// Host describes the host's packet rules for the plan and the node's pods; pods is nil if no pod is known yet.
func (p Plan) Host(pods Pods, uplinks Uplinks) (steer.Host, error) {
	h := steer.Host{
		Redirects: p.Redirects, Locals: p.Locals, InterceptNode: p.InterceptNode, Lifetime: p.Terms.Lifetime,
		// OwnLocals lets the node's own processes that use a local address reach kube-dns if the agent does not answer. In arrangement
		// Steered they use the cluster DNS address instead.
		OwnLocals: p.Arrangement != Steered, HealthPort: p.HealthPort,
	}
	if p.Arrangement == NodeCache {
		h.Ceded = p.LocalAddresses()
	}
	var podSide []string
	if pods != nil {
		podSide = pods.HostInterfaces()
		h.FallbackOnly, h.Exempt = pods.FallbackOnly(p.Redirects), pods.OptedOut()
		h.Locals = slices.Concat(h.Locals, pods.Locals(p.Locals, slices.Concat(p.Redirects, h.FallbackOnly)))
	}
	var err error
	h.Uplinks, err = uplinks(podSide...)
	return h, err
}

// InterceptsNode reports whether the host's rules may send a query of the node's own processes to the agent. An answer to such a query
// then shows nothing about kube-dns.
func (p Plan) InterceptsNode() bool { return p.InterceptNode || p.Arrangement != Steered }

// ForBackend returns the plan with the back end k and the lease lifetime that its rules can keep. It returns an error if its rules lack
// something that the plan needs.
func (p Plan) ForBackend(k rules.Kind) (Plan, error) {
	p.Backend = k.String()
	caps := k.Caps()
	if p.InterceptNode && !caps.Intercept {
		return p, fmt.Errorf("interceptNode: the %s back end, which the kernel or pods that are steered by it need, has no such rules: "+
			"take it out; to use nftables, run `neardns-agent cleanup` on the node while no agent runs", k)
	}
	p.Terms.Lifetime = caps.Lifetime(p.Terms.Lifetime)
	return p, nil
}
