package podfile

import (
	"fmt"

	"github.com/neardns/neardns/pkg/resolvconf"
)

// DNSState is the state of the overlay on a pod's DNS settings.
type DNSState string

// The states. Only the agent changes one: a waiting pod becomes overlaid, failed or without a lever.
const (
	AsGiven  DNSState = "as-given"  // no overlay is wanted, or none of it can be applied
	Overlaid DNSState = "overlaid"  // the pod's resolv.conf has it
	HandedOn DNSState = "handed-on" // the plugin returned it to the runtime in the CNI result
	Waiting  DNSState = "waiting"   // the runtime makes the pod's resolv.conf after ADD, so the agent applies the overlay
	NoLever  DNSState = "no-lever"  // neither ADD nor the agent can reach the pod's resolv.conf on this runtime
	Failed   DNSState = "failed"    // the resolv.conf exists but could not be changed
)

// Lever is how an overlay reaches a pod.
type Lever string

// The levers; "" for none.
const (
	LeverResult Lever = "result" // dns in the CNI result
	LeverFile   Lever = "file"   // the sandbox's resolv.conf, changed in place by the plugin
	LeverNRI    Lever = "nri"    // the same file, changed by the agent after the runtime made it
)

// DNS has the DNS settings of an attachment's pod, and how they were applied.
type DNS struct {
	State  DNSState `json:"state"`
	Lever  Lever    `json:"lever,omitempty"`
	Reason string   `json:"reason,omitempty"` // why the state is not overlaid although an overlay is wanted
	// Settings are those that the pod's processes use, as far as they are known: with the overlay in the states overlaid and handed-on, else
	// without it. All three lists are empty if nothing is known.
	Settings resolvconf.Settings `json:"settings"`
	// Overlay is the wanted overlay, merged from all levels; nil for none. Its policy is empty, or None if the overlay is complete by
	// itself, so that applying it needs no facts about the node or the pod.
	Overlay *resolvconf.Overlay `json:"overlay,omitempty"`
	// Limits and Refuse control how Overlay is applied: Refuse means resolvconf.Refuse, else resolvconf.Truncate.
	Limits resolvconf.Profile `json:"limits,omitempty"`
	Refuse bool               `json:"refuse,omitempty"`
	// Path is the pod's resolv.conf on the host; "" if it was not found.
	Path  string            `json:"path,omitempty"`
	Notes []resolvconf.Note `json:"notes,omitempty"` // about Settings
}

// Ignored is a setting for a pod that has no effect: an unreadable annotation, or a refused overlay.
type Ignored struct {
	What string `json:"what"` // its place: "annotation neardns.io/dns-params", "dns.namespaces.shop"
	Why  string `json:"why"`
}

// Resolver returns the settings that the pod's processes use, as far as they are known: with an applied overlay, else as the runtime gave
// them. known is false if the runtime gave none.
func (f File) Resolver() (s resolvconf.Settings, known bool) {
	s = resolvconf.Settings{Nameservers: f.Nameservers, Searches: f.Searches, Options: f.Options}
	if f.DNS != nil {
		s = f.DNS.Settings
	}
	return s, len(s.Nameservers)+len(s.Searches)+len(s.Options) > 0
}

// check returns an error for values that this reader does not know. A writer with a new state raises the version.
func (d *DNS) check() error {
	switch d.State {
	case AsGiven, Overlaid, HandedOn, Waiting, NoLever, Failed:
	default:
		return fmt.Errorf("dns: unknown state %q", d.State)
	}
	switch d.Lever {
	case "", LeverResult, LeverFile, LeverNRI:
	default:
		return fmt.Errorf("dns: unknown lever %q", d.Lever)
	}
	return nil
}
