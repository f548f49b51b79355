package overlay

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/plainyaml"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/strict"
)

// Wish is what is wanted for one pod.
type Wish struct {
	OptOut           bool  // the pod's questions are not to be steered
	SearchCompletion *bool // what the pod's annotation says; nil for nothing
	KernelHits       *bool // likewise
	Ignored          []podfile.Ignored

	layers  []layer // the lowest first
	limits  resolvconf.Profile
	excess  resolvconf.Excess
	unknown Unknown
}

// layer is an overlay and where it stands.
type layer struct {
	what    string
	overlay resolvconf.Overlay
}

// For tells what is wanted for a pod of a namespace ("" where that is not known) with the annotations that the runtime told of.
// Above the pod's own settings stand what is for all pods, then what is for its namespace, then its annotation. field is what
// the rules are called where they stand.
func (r Rules) For(field, namespace string, annotations map[string]string) Wish {
	w := Wish{limits: r.Limits, excess: r.Excess, unknown: r.Unknown}
	heed := r.Annotations == nil || *r.Annotations
	w.add(field, r.Overlay)
	if l, ok := r.Namespaces[namespace]; ok {
		w.add(field+"."+keyNamespaces+"."+namespace, l.Overlay)
		if l.Annotations != nil {
			heed = *l.Annotations
		}
	}
	for _, a := range []struct {
		name string
		read func(*Wish, string) error
	}{{AnnotationSteer, (*Wish).steer}, {AnnotationCompletion, (*Wish).completion}, {AnnotationKernelHits, (*Wish).kernelHits},
		{AnnotationParams, (*Wish).params}} {
		value, ok := annotations[a.name]
		if !ok {
			continue
		}
		what := "annotation " + a.name
		if !heed {
			w.ignore(what, fmt.Errorf("%s is %s in the node's settings for this pod", keyAnnotations, ignore))
			continue
		}
		if err := a.read(&w, value); err != nil {
			w.ignore(what, err)
		}
	}
	return w
}

func (w *Wish) add(what string, o resolvconf.Overlay) {
	o.Nameservers = slices.DeleteFunc(slices.Clone(o.Nameservers), func(s string) bool {
		why := nobody(s)
		if why != "" {
			w.ignore("nameserver "+s+" of "+what, errors.New(why))
		}
		return why != ""
	})
	for _, option := range o.Options {
		if resolvconf.Knows(option) || w.unknown == "" || w.unknown == Keep {
			continue
		}
		if w.unknown == Refuse {
			w.ignore(what, fmt.Errorf("option %s is known to no resolver, and %s is %s", strict.Quote(option), keyUnknown, Refuse))
			return
		}
		w.ignore("option "+option+" of "+what, fmt.Errorf("option %s is known to no resolver, and %s is %s", strict.Quote(option),
			keyUnknown, Drop))
	}
	if w.unknown == Drop {
		o.Options = slices.DeleteFunc(slices.Clone(o.Options), func(option string) bool { return !resolvconf.Knows(option) })
	}
	if says(o) {
		w.layers = append(w.layers, layer{what, o})
	}
}

// nobody says why an address can be no nameserver's. Loopback and 169.254.0.0/16 can: a resolver in the pod, a cache on the node.
func nobody(s string) string {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return "" // read before
	case a.Unmap().IsUnspecified():
		return "it is nobody's address: write 127.0.0.1 or ::1 for a resolver in the pod"
	case a.Unmap().IsMulticast():
		return "it is a multicast address, whose answers come from another"
	case a.Unmap() == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "it is the broadcast address, whose answers come from another"
	case a.Is6() && a.IsLinkLocalUnicast():
		return "it is link-local, and cannot be asked without a zone: write another address of that server"
	}
	return ""
}

func (w *Wish) ignore(what string, why error) {
	// One line each: they go into logs and tables.
	w.Ignored = append(w.Ignored, podfile.Ignored{What: what, Why: strings.ReplaceAll(why.Error(), "\n", "; ")})
}

func (w *Wish) steer(value string) error {
	yes, err := truth(value)
	w.OptOut = err == nil && !yes
	return err
}

func (w *Wish) completion(value string) error {
	yes, err := truth(value)
	if err == nil {
		w.SearchCompletion = &yes
	}
	return err
}

func (w *Wish) kernelHits(value string) error {
	yes, err := truth(value)
	if err == nil {
		w.KernelHits = &yes
	}
	return err
}

func (w *Wish) params(value string) error {
	text, err := plainyaml.JSON(value)
	if err != nil {
		return err
	}
	o, err := resolvconf.DecodeOverlay("", text)
	if err != nil {
		return err
	}
	w.add("annotation "+AnnotationParams, *o)
	return nil
}

func truth(value string) (bool, error) {
	switch {
	case strings.EqualFold(value, "true"):
		return true, nil
	case strings.EqualFold(value, "false"):
		return false, nil
	}
	return false, fmt.Errorf("%q is neither true nor false", strict.Clip(value))
}

// Wants tells whether the pod's settings are to be changed at all.
func (w Wish) Wants() bool { return len(w.layers) > 0 }

// NamesLocal tells whether a level wants the node's local address in the place of the cluster DNS address.
func (w Wish) NamesLocal() bool {
	return slices.ContainsFunc(w.layers, func(l layer) bool { return l.overlay.NamesLocal() })
}

// NeedsNode tells whether Lay has to know the node's own resolv.conf.
func (w Wish) NeedsNode() bool {
	for _, l := range w.layers {
		if l.overlay.Policy != "" && l.overlay.Policy != resolvconf.None {
			return true
		}
	}
	return false
}

// Lay lays what is wanted over a pod's own settings, level by level: one that is refused falls out alone and is among what was
// ignored. It returns all levels that are left as one overlay that needs no node, nil for none, and what they give.
// nodeErr tells that the node's resolv.conf is not known: levels that start from it then fall out.
func (w Wish) Lay(node resolvconf.Node, nodeErr error, namespace string, own resolvconf.Settings) (*resolvconf.Overlay,
	resolvconf.Result, []podfile.Ignored) {
	var all *resolvconf.Overlay
	result := resolvconf.Result{Settings: own}
	ignored := Wish{Ignored: w.Ignored}
	for _, l := range w.layers {
		if p := l.overlay.Policy; p != "" && p != resolvconf.None && nodeErr != nil {
			ignored.ignore(l.what, fmt.Errorf("policy %s starts from the node's resolv.conf: %w", p, nodeErr))
			continue
		}
		next := l.overlay.Spell(node, namespace)
		if !says(next) {
			continue // local, and no local address can be had: the caller knows why
		}
		if all != nil {
			next = next.Over(*all)
		}
		r := Relay(&next, own, w.limits, w.excess)
		if r.Refused != nil {
			ignored.ignore(l.what, r.Refused)
			continue
		}
		all, result = &next, r
	}
	return all, result, ignored.Ignored
}

// Relay lays an overlay that Lay returned over the settings of the pod's resolv.conf, for whoever sees that file later.
func Relay(o *resolvconf.Overlay, own resolvconf.Settings, limits resolvconf.Profile, excess resolvconf.Excess) resolvconf.Result {
	return resolvconf.Form(resolvconf.Node{}, resolvconf.Pod{Policy: resolvconf.None, Config: &own}, o, limits.Limits(), excess)
}
