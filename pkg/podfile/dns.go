package podfile

import (
	"fmt"

	"github.com/neardns/neardns/pkg/resolvconf"
)

// DNSState tells what became of the overlay on a pod's DNS settings.
type DNSState string

// The states. Only the agent changes one: a waiting pod becomes overlaid, failed or without a lever.
const (
	AsGiven  DNSState = "as-given"  // no overlay was wanted, or nothing of it could be had
	Overlaid DNSState = "overlaid"  // the pod's resolv.conf has it
	HandedOn DNSState = "handed-on" // it was given to the runtime in the CNI result
	Waiting  DNSState = "waiting"   // the runtime makes the pod's resolv.conf after ADD: the agent is to lay it
	NoLever  DNSState = "no-lever"  // neither ADD nor the agent can reach the pod's resolv.conf on this runtime
	Failed   DNSState = "failed"    // the resolv.conf was there and could not be changed
)

// Lever is how an overlay reaches a pod.
type Lever string

// The levers; "" for none.
const (
	LeverResult Lever = "result" // dns in the CNI result
	LeverFile   Lever = "file"   // the sandbox's resolv.conf, changed in place by the plugin
	LeverNRI    Lever = "nri"    // the same file, changed by the agent when the runtime has made it
)

// DNS says which DNS settings an attachment's pod has and how it came to them.
type DNS struct {
	State  DNSState `json:"state"`
	Lever  Lever    `json:"lever,omitempty"`
	Reason string   `json:"reason,omitempty"` // why the state is not overlaid, where an overlay was wanted
	// Settings are what the pod's processes resolve with, as far as that is known: with the overlay in the states overlaid and
	// handed-on, without it in the others. All three lists are empty where nothing is known.
	Settings resolvconf.Settings `json:"settings"`
	// Overlay is what is wanted, of all levels together; nil for nothing. Its policy is empty, or None where it says
	// everything by itself, so that whoever lays it needs to know nothing of the node or the pod.
	Overlay *resolvconf.Overlay `json:"overlay,omitempty"`
	// Limits and Refuse are how Overlay is to be laid: Refuse means resolvconf.Refuse, else resolvconf.Truncate.
	Limits resolvconf.Profile `json:"limits,omitempty"`
	Refuse bool               `json:"refuse,omitempty"`
	// Path is the pod's resolv.conf on the host, where it was found.
	Path  string            `json:"path,omitempty"`
	Notes []resolvconf.Note `json:"notes,omitempty"` // about Settings
}

// Ignored is something that was asked for a pod and is not done: an annotation that cannot be read, an overlay that is refused.
type Ignored struct {
	What string `json:"what"` // where it stands: "annotation neardns.io/dns-params", "dns.namespaces.shop"
	Why  string `json:"why"`
}

// Resolver returns the settings that the pod's processes resolve with, as far as they are known: with an overlay that was
// laid, else as the runtime gave them. known is false where the runtime told nothing.
func (f File) Resolver() (s resolvconf.Settings, known bool) {
	s = resolvconf.Settings{Nameservers: f.Nameservers, Searches: f.Searches, Options: f.Options}
	if f.DNS != nil {
		s = f.DNS.Settings
	}
	return s, len(s.Nameservers)+len(s.Searches)+len(s.Options) > 0
}

// check tells whether a file's values are ones that this reader knows. A newer writer with a new state raises the version.
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
