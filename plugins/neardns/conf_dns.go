package main

import (
	"slices"

	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/sandbox"
	"github.com/neardns/neardns/pkg/strict"
)

// Keys about pods' own DNS settings, their values and one default.
const (
	keyDNS             = "dns"
	keyResolvConf      = "resolvConf"
	keyResolvConfPaths = "resolvConfPaths"
	keyHostResolvConf  = "hostResolvConf"
	resolvConfAuto     = "auto"
	resolvConfOff      = "off"
	hostResolvConf     = "/etc/resolv.conf"
)

// podDNSKeys reads the keys about pods' DNS settings: which settings pods get, and where the resolv.conf files are.
func (r *confReader) podDNSKeys(c *Conf) {
	r.oneOf(keyResolvConf, &c.ResolvConf, resolvConfAuto, resolvConfOff)
	r.path(keyHostResolvConf, &c.HostResolvConf)
	if v, ok := r.top[keyResolvConfPaths]; ok {
		items := v.Items()
		c.ResolvConfPaths = nil
		if len(items) == 0 || slices.ContainsFunc(items, func(p strict.Value) bool { return p.Kind != strict.String }) {
			r.Fault(v, `not a list of paths, or empty: write it like [%q], or take it out`, sandbox.Patterns()[0])
			items = nil
		}
		for _, p := range items {
			c.ResolvConfPaths = append(c.ResolvConfPaths, p.Text)
			if err := sandbox.CheckPattern(p.Text); err != nil {
				r.Fault(p, "%v", err)
			}
		}
	}
	v, ok := r.top[keyDNS]
	if !ok {
		return
	}
	own := strict.Reader{Wrong: r.Wrong}
	c.Rules = overlay.Read(&own, v)
	for _, f := range own.Faults() {
		if f.Unknown {
			c.Unknown = append(c.Unknown, f) // such as a key of an earlier release: a list kept by hand may still have it
			continue
		}
		r.Add(f)
		c.Rules = overlay.Rules{}
	}
	// The CNI specification defines dns in every plugin's configuration, too (types.PluginConf). If the types differ from
	// CNI's, libcni refuses the whole conflist and calls none of its plugins.
	if n := v.Map()["nameservers"]; n.Kind == strict.String {
		r.Fault(n, `a string: write it as ["local"] here, since runtimes read this key as well and refuse the list otherwise`)
	}
	for _, option := range v.Map()["options"].Items() {
		if option.Kind == strict.Object {
			r.Fault(option, `an object: write it as "ndots:2" here, since runtimes read this key as well and refuse the list otherwise`)
		}
	}
}
