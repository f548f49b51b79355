package overlay

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/strict"
)

// PodRules has the DNS settings that the operator's rules and the pod's annotations want for one pod.
type PodRules struct {
	podfile.Annotations

	layers []layer // in order of precedence, the lowest first
}

// layer is an overlay and its source.
type layer struct {
	what    string // the source's name for messages, for example "annotation neardns.io/dns-params"
	overlay resolvconf.Overlay
}

// For returns the settings that are wanted for a pod with the given namespace ("" if unknown) and annotations. The level for all
// pods overrides the pod's own settings, the level of the pod's namespace overrides that level, and the pod's annotation overrides
// both. field is the rules' path in the configuration, for messages, for example "dns".
func (r Rules) For(field, namespace string, annotations map[string]string) PodRules {
	var w PodRules
	w.add(field, r.Overlay)
	if l, ok := r.Namespaces[namespace]; ok {
		w.add(field+"."+keyNamespaces+"."+namespace, l.Overlay)
	}
	ignored := cmp.Or(r.Namespaces[namespace].Annotations, r.Annotations) == Ignore
	for _, name := range []string{AnnotationSteer, AnnotationKernelHits, AnnotationParams} {
		value, ok := annotations[name]
		if !ok {
			continue
		}
		what := "annotation " + name
		if ignored {
			w.ignore(what, fmt.Errorf("%s is %s in the node's settings for this pod", keyAnnotations, Ignore))
			continue
		}
		if err := w.read(name, value); err != nil {
			w.ignore(what, err)
		}
	}
	return w
}

func (w *PodRules) add(what string, o resolvconf.Overlay) {
	o.Nameservers = slices.DeleteFunc(slices.Clone(o.Nameservers), func(s string) bool {
		why := unusable(s)
		if why != "" {
			w.ignore("nameserver "+s+" of "+what, errors.New(why))
		}
		return why != ""
	})
	if !isEmpty(o) {
		w.layers = append(w.layers, layer{what, o})
	}
}

// unusable returns the reason why an address cannot be a nameserver, or "" if it can. Loopback and 169.254.0.0/16 can: a resolver
// in the pod or a cache on the node may listen there.
func unusable(s string) string {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return "" // not an IP address, which resolvconf reports; or the word "local"
	case a.Unmap().IsUnspecified():
		return "it is the unspecified address: write 127.0.0.1 or ::1 for a resolver in the pod"
	case a.Unmap().IsMulticast():
		return "it is a multicast address, whose answers come from another address"
	case a.Unmap() == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "it is the broadcast address, whose answers come from another address"
	case a.Is6() && a.IsLinkLocalUnicast():
		return "it is link-local, which needs a zone: write another address of that server"
	}
	return ""
}

func (w *PodRules) ignore(what string, why error) {
	// A reason must be one line, because logs and tables show it.
	w.Ignored = append(w.Ignored, podfile.Ignored{What: what, Why: strings.ReplaceAll(why.Error(), "\n", "; ")})
}

// read reads one of the pod's annotations.
func (w *PodRules) read(name, value string) error {
	if name == AnnotationParams {
		return w.params(value)
	}
	yes, err := truth(value)
	switch {
	case err != nil:
	case name == AnnotationSteer:
		w.OptOut, w.OptIn = !yes, yes
	case name == AnnotationKernelHits:
		w.KernelHits = &yes
	}
	return err
}

// maxParams is the largest text of AnnotationParams in bytes, and maxFaults the maximum number of its faults that are reported.
// Annotations of a pod may have 256 KiB, and the pod file has what the text means.
const (
	maxParams = 64 << 10
	maxFaults = 8
)

func (w *PodRules) params(value string) error {
	text := []byte(value)
	switch {
	case len(value) > maxParams:
		return fmt.Errorf("longer than %d bytes: write less", maxParams)
	case json.Valid(text):
	case strings.ContainsAny(value, "&*"): // the library limits the number of aliases, not the size of what they stand for
		return errors.New("anchors and aliases (& and *) are not read: write their values out")
	case strings.Contains(value, "\n---") || strings.Contains(value, "\n..."): // the library reads the first document alone
		return errors.New("more than one YAML document: write one")
	default:
		var err error
		if text, err = yaml.YAMLToJSONStrict(text); err != nil {
			return err
		}
	}
	v, err := strict.JSON("", "", text)
	if err != nil {
		return err
	}
	var r strict.Reader
	o := resolvconf.ReadOverlay(&r, r.Members(v))
	if err := r.Err(maxFaults); err != nil {
		return err
	}
	w.add("annotation "+AnnotationParams, o)
	return nil
}

func truth(value string) (bool, error) {
	switch {
	case strings.EqualFold(value, "true"):
		return true, nil
	case strings.EqualFold(value, "false"):
		return false, nil
	}
	return false, fmt.Errorf("%s is neither true nor false", strict.Quote(value))
}

// Wants reports whether the rules or the annotation change any DNS setting of the pod.
func (w PodRules) Wants() bool { return len(w.layers) > 0 }

// NamesLocal reports whether the rules or the annotation want the node's local address as nameserver in place of the cluster DNS
// address.
func (w PodRules) NamesLocal() bool {
	return slices.ContainsFunc(w.layers, func(l layer) bool { return l.overlay.NamesLocal() })
}

// NeedsNode reports whether Apply needs the node's resolv.conf, because a wanted overlay has a policy other than None.
func (w PodRules) NeedsNode() bool {
	return slices.ContainsFunc(w.layers, func(l layer) bool { return l.overlay.Policy != "" && l.overlay.Policy != resolvconf.None })
}

// Apply applies the overlays that are wanted for a pod (for all pods, for its namespace, by annotation) to the pod's own settings. A
// refused overlay is left out, and the others apply. Apply returns the applied overlays as one that does not depend on the node (nil
// if none was applied), the resulting settings, and what was left out. If nodeErr is set, the node's resolv.conf could
// not be read, and overlays whose policy needs it are left out.
func (w PodRules) Apply(node resolvconf.Node, nodeErr error, namespace string, own resolvconf.Settings) (*resolvconf.Overlay,
	resolvconf.Result, []podfile.Ignored) {
	var all *resolvconf.Overlay
	result := resolvconf.Result{Settings: own}
	ignored := PodRules{Annotations: podfile.Annotations{Ignored: w.Ignored}}
	for _, l := range w.layers {
		if p := l.overlay.Policy; p != "" && p != resolvconf.None && nodeErr != nil {
			ignored.ignore(l.what, fmt.Errorf("policy %s starts from the node's resolv.conf: %w", p, nodeErr))
			continue
		}
		next := l.overlay.Spell(node, namespace)
		if isEmpty(next) {
			continue // the overlay has only "nameservers: local", and this pod may not use the local address; the caller reports that
		}
		if all != nil {
			next = next.Over(*all)
		}
		r, err := next.Apply(own)
		if err != nil {
			ignored.ignore(l.what, err)
			continue
		}
		all, result = &next, r
	}
	return all, result, ignored.Ignored
}
