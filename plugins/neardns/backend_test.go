package main

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestChooseBackend: a call uses the back end of the host's recorded rules, else the configured one, else that of the fallback check.
func TestChooseBackend(t *testing.T) {
	const nft, legacy = "iptables-nft", "iptables-legacy"
	for name, c := range map[string]struct {
		conf, recorded, proven, want string
	}{
		"a new node":             {conf: "auto"},
		"nftables recorded":      {conf: "iptables-nft", recorded: "nftables"},
		"iptables recorded":      {conf: "nftables", recorded: legacy, want: legacy},
		"as the file says":       {conf: "auto", recorded: nft, proven: legacy, want: nft},
		"after a reboot":         {conf: "auto", proven: legacy, want: legacy},
		"told":                   {conf: legacy, want: legacy},
		"told otherwise":         {conf: "nftables", proven: legacy},
		"a name of a later time": {conf: "auto", recorded: "ebpf"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if c.recorded != "" {
				testutil.Must(t, nodestate.HostRulesFile(dir).Write(nodestate.HostRules{Backend: c.recorded}))
			}
			if c.proven != "" {
				testutil.Must(t, nodestate.ProofFile(dir).Write(nodestate.Proof{Time: time.Unix(1_700_000_000, 0), Backend: c.proven}))
			}
			v := &verb{log: slog.New(slog.DiscardHandler), conf: &Conf{Backend: c.conf, StateDir: dir, PersistDir: dir}}
			v.chooseBackend()
			testutil.Equal(t, "back end", c.want, v.backend.Recorded())
		})
	}
}

// TestLacks: a pod is pending if the host's iptables chains, which can be replaced only as a whole, lack its addresses.
func TestLacks(t *testing.T) {
	a, b := netip.MustParseAddr("169.254.20.11"), netip.MustParseAddr("169.254.20.12")
	v := &verb{backend: rules.OfVariant(iptables.NFT, nil), recorded: nodestate.HostRules{Backend: "iptables-nft", Addresses: []netip.Addr{a}}}
	testutil.Check(t, v.missingRules(a))
	lack := v.missingRules(a, b)
	testutil.WantError(t, lack, b.String())
	testutil.Check(t, (&verb{backend: rules.OfVariant(iptables.NFT, nil)}).missingRules(a, b), "where no rules are, the plugin makes them")
	c := &Conf{Steer: conflist.SteerAlways, Redirects: []steer.Redirect{redirect4}}
	if d := decide(c, redirect4, hostnet.Found{}, facts{Unsupported: lack}); d.State != podfile.Pending || d.Reason == "" {
		t.Errorf("decided %+v, want it to wait", d)
	}
}
