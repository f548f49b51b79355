package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/sandbox"
)

// Keys about pods' own DNS settings.
const (
	keyDNS             = "dns"
	keyResolvConf      = "resolvConf"
	keyResolvConfPaths = "resolvConfPaths"
	keyHostResolvConf  = "hostResolvConf"
	resolvConfAuto     = "auto"
	resolvConfOff      = "off"
	hostResolvConf     = "/etc/resolv.conf"
)

// podDNSKeys reads what is wanted of pods' DNS settings, and how they may be reached.
func (r *confReader) podDNSKeys(c *Conf) {
	r.text(keyResolvConf, &c.ResolvConf)
	r.oneOf(keyResolvConf, c.ResolvConf, resolvConfAuto, resolvConfOff)
	r.path(keyHostResolvConf, &c.HostResolvConf)
	if raw, ok := r.raw[keyResolvConfPaths]; ok {
		c.ResolvConfPaths = nil
		if json.Unmarshal(raw, &c.ResolvConfPaths) != nil || len(c.ResolvConfPaths) == 0 {
			r.fault(keyResolvConfPaths, `not a list of paths: write it like [%q], or take it out`, sandbox.Patterns()[0])
		}
		for i, p := range c.ResolvConfPaths {
			if err := sandbox.CheckPattern(p); err != nil {
				r.fault(fmt.Sprintf("%s[%d]", keyResolvConfPaths, i), "%v", err)
			}
		}
	}
	raw, ok := r.raw[keyDNS]
	if !ok {
		return
	}
	rules, err := overlay.Decode(keyDNS, raw)
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			field, msg, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			r.fault(field, "%s", msg)
		}
		return
	}
	for _, name := range append([]string{""}, slices.Sorted(maps.Keys(rules.Namespaces))...) {
		l, field := rules.Level, keyDNS
		if name != "" {
			l, field = rules.Namespaces[name], keyDNS+".namespaces."+name
		}
		if l.SearchCompletion != nil {
			r.fault(field+".searchCompletion", "belongs into podDNS of the agent's NodeConfig, where it holds for pods that run, too: take it out here")
		}
	}
	c.Rules = *rules
	// The CNI specification has a key dns of its own in every plugin's configuration, and libcni refuses a whole list in which it
	// is of another type (types.PluginConf), so that no plugin of it would be called.
	var words struct {
		Options []json.RawMessage `json:"options"`
	}
	_ = json.Unmarshal(raw, &words) // it was read just now
	for i, o := range words.Options {
		if bytes.HasPrefix(o, []byte("{")) {
			r.fault(fmt.Sprintf("%s.options[%d]", keyDNS, i), `an object: write it as "ndots:2" here, since runtimes read this key as well and refuse the list otherwise`)
		}
	}
}
