package main

import (
	"encoding/json"

	"github.com/neardns/neardns/pkg/resolvconf"
)

// ownSettings returns the DNS settings that the pod has before neardns changes any, and whether they are from its resolv.conf.
// They are empty if unknown.
func ownSettings(c *Conf, in call, f settingsFacts) (resolvconf.Settings, bool) {
	switch {
	case f.SandboxErr == nil:
		// the error is a nameserver line without an address, which resolvers ignore
		own, _ := resolvconf.Parse(f.Sandbox.Text).Settings()
		return own, true
	case c.DNS != nil:
		return resolvconf.Settings{Nameservers: c.DNS.Servers, Searches: c.DNS.Searches, Options: c.DNS.Options}, false
	case in.byCRI():
		return resolvconf.Settings{}, false
	}
	var prev struct {
		DNS struct {
			Nameservers, Search, Options []string
		}
	}
	_ = json.Unmarshal(c.PrevResult, &prev) // makePlan returns the error
	return resolvconf.Settings{Nameservers: prev.DNS.Nameservers, Searches: prev.DNS.Search, Options: prev.DNS.Options}, false
}

// withDNS replaces the DNS settings in a CNI result. An earlier plugin's key dns.domain stays: it is the older form of a search
// list.
func withDNS(result []byte, s resolvconf.Settings) ([]byte, error) {
	var prev struct {
		DNS map[string]json.RawMessage `json:"dns"` // keys that neardns does not know stay as they are
	}
	if err := json.Unmarshal(result, &prev); err != nil {
		return nil, err
	}
	dns := map[string]any{}
	for key, value := range prev.DNS {
		dns[key] = value
	}
	for key, words := range map[string][]string{"nameservers": s.Nameservers, "search": s.Searches, "options": s.Options} {
		if delete(dns, key); len(words) > 0 {
			dns[key] = words
		}
	}
	return withKey(result, "dns", dns)
}
