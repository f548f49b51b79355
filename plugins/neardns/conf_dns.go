package main

import (
	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/sandbox"
	"github.com/neardns/neardns/pkg/strict"
)

// Keys about pods' own DNS settings.
const (
	keyDNS             = "dns"
	keyResolvConf      = "resolvConf"
	keyResolvConfPaths = "resolvConfPaths"
	keyHostResolvConf  = "hostResolvConf"
)

// podDNSKeys reads the keys about pods' DNS settings: which settings pods get, and where the resolv.conf files are.
func (r *confReader) podDNSKeys(c *Conf) {
	r.oneOf(keyResolvConf, &c.ResolvConf, conflist.ResolvConfAuto, conflist.ResolvConfOff)
	r.path(keyHostResolvConf, &c.HostResolvConf)
	if v, ok := r.top[keyResolvConfPaths]; ok {
		c.ResolvConfPaths = r.Texts(v, func(p strict.Value, path string) string {
			if err := sandbox.CheckPattern(path); err != nil {
				r.Fault(p, "%v", err)
			}
			return path
		})
		if v.Kind == strict.List && len(v.Items()) == 0 {
			r.Fault(v, `names no path: write it like [%q], or take it out`, sandbox.Patterns()[0])
		}
	}
	v, ok := r.top[keyDNS]
	if !ok {
		return
	}
	var own strict.Reader
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
