package podfile

import (
	"fmt"

	"github.com/neardns/neardns/pkg/resolvconf"
)

// DNSState is the state of an overlay, the wanted changes to a pod's DNS settings.
type DNSState string

// The states. The plugin sets a pod's state in ADD, and the agent sets AsGiven for a pod that it adopts. Afterwards only the agent changes
// the state: from Waiting or NoMethod to Overlaid, Failed or NoMethod.
const (
	AsGiven  DNSState = "as-given"  // no overlay is wanted, or none is applied to this pod; Reason then has the cause
	Overlaid DNSState = "overlaid"  // the pod's resolv.conf has the overlay
	HandedOn DNSState = "handed-on" // the plugin returned the settings to the runtime in the CNI result
	Waiting  DNSState = "waiting"   // the runtime makes the pod's resolv.conf after ADD; the agent applies the overlay then
	NoMethod DNSState = "no-lever"  // as Waiting, but the agent does not find the pod's resolv.conf or has no connection to NRI
	Failed   DNSState = "failed"    // the pod's resolv.conf exists but could not be read or changed, or the overlay was refused
)

// Method is the way by which an overlay gets into a pod's resolv.conf.
type Method string

// The methods; "" means that there is none.
const (
	MethodResult Method = "result" // the plugin returns the settings to the runtime, as dns in the CNI result
	MethodFile   Method = "file"   // the plugin changes the sandbox's resolv.conf in place
	MethodNRI    Method = "nri"    // the agent changes the sandbox's resolv.conf, which the runtime makes only after ADD
)

// DNS records a pod's DNS settings and how they were applied.
type DNS struct {
	State  DNSState `json:"state"`
	Method Method   `json:"lever,omitempty"`
	Reason string   `json:"reason,omitempty"` // why a wanted overlay is not (or not yet) in the resolv.conf
	// Settings are the DNS settings of the pod's processes, as far as known: with the overlay in the states Overlaid and HandedOn,
	// otherwise without it. All three lists are empty if nothing is known.
	Settings resolvconf.Settings `json:"settings"`
	// Overlay is the wanted overlay, merged from the configuration and the pod's annotations; nil in the state AsGiven. Its policy is
	// empty, or None if the overlay replaces all settings. In both cases it can be applied without facts about the node or the pod.
	Overlay *resolvconf.Overlay `json:"overlay,omitempty"`
	// Path is the path of the pod's resolv.conf on the host; "" if it is not known.
	Path  string            `json:"path,omitempty"`
	Notes []resolvconf.Note `json:"notes,omitempty"` // remarks about Settings, for example that a list was cut
}

// Ignored is a wanted setting that has no effect on a pod, for example an unreadable annotation or an overlay with too long a list.
type Ignored struct {
	What string `json:"what"` // the setting or where it was set: "annotation neardns.io/dns-params", "dns.namespaces.shop"
	Why  string `json:"why"`
}

// Resolver returns the DNS settings of the pod's processes, as far as known: with the overlay if it was applied, otherwise as the runtime
// gave them. known is false if all three lists are empty.
func (f File) Resolver() (s resolvconf.Settings, known bool) {
	s = resolvconf.Settings{Nameservers: f.Nameservers, Searches: f.Searches, Options: f.Options}
	if f.DNS != nil {
		s = f.DNS.Settings
	}
	return s, len(s.Nameservers)+len(s.Searches)+len(s.Options) > 0
}

// check returns an error for a state or method that this version of neardns does not know. A version that adds one must raise the file
// format's version.
func (d *DNS) check() error {
	switch d.State {
	case AsGiven, Overlaid, HandedOn, Waiting, NoMethod, Failed:
	default:
		return fmt.Errorf("dns: unknown state %q", d.State)
	}
	switch d.Method {
	case "", MethodResult, MethodFile, MethodNRI:
	default:
		return fmt.Errorf("dns: unknown lever %q", d.Method)
	}
	return nil
}
