package iptables_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestOddLinks: the names of uplinks have characters with a meaning for iptables or for the parser of its rules. Their rules match these
// links and no others.
func TestOddLinks(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		odd := []string{`wan"0`, `wan\0`, `'wan'`, "#wan", "-j", "!", "wan,0"}
		r := newRig(t, variant, func(h *steer.Host) { h.Uplinks = append(h.Uplinks, append(odd, "+", "host+")...) })
		must(t, r.rules.Verify(r.Host))
		for _, name := range append(odd, "+", "host+", "wan", "hostile") {
			if is, err := r.rules.IsUplink(name); err != nil || is != slices.Contains(odd, name) {
				t.Errorf("%s is an uplink: %v, %v", name, is, err)
			}
		}
		pod := r.Steered("pod")
		r.Listen()
		r.Renew()
		r.Want("AGENT", pod.NetNS, "beside odd links", r.Servers()...)
		must(t, r.rules.Remove())
	})
}

// TestWithoutIPv6: the node's kernel or packages have iptables for IPv4 alone, which is enough if there are only IPv4 addresses.
func TestWithoutIPv6(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		testutil.RequireRoot(t)
		dir := t.TempDir()
		for _, kind := range []string{"nft", "legacy"} {
			for _, verb := range []string{"", "-restore"} {
				fails := "#!/bin/sh\necho \"can't initialize ip6tables table: Address family not supported by protocol\" >&2\nexit 3\n"
				must(t, os.WriteFile(filepath.Join(dir, "ip6tables-"+kind+verb), []byte(fails), 0o755))
			}
		}
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		b := open(t, testutil.NewNS(t, "host"), variant)
		four, six := addr("169.254.20.11"), addr("fd00:90de:d95::b")
		must(t, b.Supported(four))
		for _, addrs := range [][]netip.Addr{nil, {six}, {four, six}} {
			if err := b.Supported(addrs...); !errors.Is(err, steer.ErrNotSupported) {
				t.Errorf("%v are supported: %v", addrs, err)
			}
		}
		host := steer.Host{Redirects: []steer.Redirect{{ClusterDNS: addr("10.96.0.10"), Steering: four}}}
		must(t, b.Apply(host))
		must(t, b.Verify(host))
		if _, err := b.Counters(); err != nil {
			t.Error(err)
		}
		must(t, b.RemoveOthers())
		must(t, b.Remove())
	})
}
