package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/translate"
)

// errNotTranslated is what install refuses a node for, unless it is told not to.
var errNotTranslated = errors.New("pods could not fall back to kube-dns, so none would ever be steered here")

// lookEvery is how often this host's rules are looked at again while waiting for kube-proxy: they may be many.
const lookEvery = 2 * time.Second

// translated refuses a node on which nothing would bring a pod that falls back to kube-dns. The agent proves the fallback by
// real questions and steers nobody before; this is for whoever installs, who would otherwise wait for pods to be steered. So
// what cannot be told refuses nobody, and a node that has the entry keeps it.
func (in install) translated(c change, entry []byte) error {
	if in.look == nil {
		return nil
	}
	addresses, err := steeredTo(entry)
	if err != nil {
		return err
	}
	var none []string
	for _, f := range in.look(addresses...) {
		switch f.State {
		case translate.Translated:
			in.once("%s is translated by %s", f.Address, f.Why)
		case translate.Unknown:
			in.once("whether this host translates %s cannot be told: %s; the agent finds out, and steers nobody before", f.Address, f.Why)
		case translate.None:
			none = append(none, fmt.Sprintf("%s (%s)", f.Address, f.Why))
		}
	}
	if len(none) == 0 {
		return nil
	}
	err = fmt.Errorf("nothing in this host's netfilter or IPVS translates %s: %w. Run kube-proxy, or what stands for it, so that it does; or take "+
		"the address out of redirects; or, where eBPF translates, write arrangement: transparent and turn kernelHits on (install/overlays/transparent). "+
		"With kubeProxyMode: none nothing is steered and this is not asked; --force installs all the same",
		strings.Join(none, ", "), errNotTranslated)
	before, readErr := conflist.Read(c.before)
	if in.force || readErr == nil && before.Position() > 0 {
		in.once("warning: %v", err)
		return nil
	}
	return err
}

// once says what is the same in each turn of a wait.
func (in install) once(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !in.told[text] {
		in.told[text] = true
		in.say("%s", text)
	}
}

// steeredTo reads from an entry which cluster DNS addresses it steers; none where it steers nobody.
func steeredTo(entry []byte) ([]netip.Addr, error) {
	var e struct {
		Steer     string            `json:"steer"`
		Redirects []json.RawMessage `json:"redirects"`
	}
	if err := json.Unmarshal(entry, &e); err != nil {
		return nil, fmt.Errorf("%w: read entry: %w", errConfig, err)
	}
	if e.Steer == conflist.SteerOff {
		return nil, nil
	}
	var out []netip.Addr
	for i, raw := range e.Redirects {
		var r steer.Redirect
		if err := json.Unmarshal(raw, &r); err != nil {
			return nil, fmt.Errorf("%w: entry: redirects[%d]: %w", errConfig, i, err)
		}
		if !r.ClusterDNS.IsValid() {
			return nil, fmt.Errorf("%w: entry: redirects[%d] names no cluster DNS address", errConfig, i)
		}
		out = append(out, r.ClusterDNS)
	}
	return out, nil
}
