package overlay

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer"
)

func TestNotClusterDNS(t *testing.T) {
	redirects := []steer.Redirect{{ClusterDNS: netip.MustParseAddr("10.96.0.10")}, {ClusterDNS: netip.MustParseAddr("fd00:96::a")}}
	locals := []steer.Local{{Address: netip.MustParseAddr("169.254.20.10"), ClusterDNS: redirects[0].ClusterDNS}}
	for nameservers, others := range map[string]bool{
		"": false, "10.96.0.10": false, "9.9.9.9 10.96.0.10": false, "fd00:96::a%eth0": false, "::ffff:10.96.0.10": false,
		"9.9.9.9": true, "169.254.20.10": false, "9.9.9.9 ::ffff:169.254.20.10": false, "169.254.20.11": true, "not-an-address": true, "10.96.0.11 fd00:96::b": true,
	} {
		got := NotClusterDNS(strings.Fields(nameservers), redirects, locals)
		if (got != "") != others || others && !strings.Contains(got, strings.Fields(nameservers)[0]) {
			t.Errorf("%q: %q", nameservers, got)
		}
	}
}

func TestLocalOf(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")
	locals := []steer.Local{{Address: netip.MustParseAddr("169.254.20.10"), ClusterDNS: v4}, {Address: netip.MustParseAddr("fd00::a"), ClusterDNS: v6}}
	for nameservers, want := range map[string][2]string{
		"": {}, "10.96.0.10": {}, "169.254.20.10": {"169.254.20.10"}, "9.9.9.9 fd00:0::a": {"", "fd00::a"}, "bad 169.254.20.10 fd00::a": {"169.254.20.10", "fd00::a"},
	} {
		for i, clusterDNS := range []netip.Addr{v4, v6} {
			got := LocalOf(strings.Fields(nameservers), locals, clusterDNS)
			if got.IsValid() != (want[i] != "") || got.IsValid() && got.String() != want[i] {
				t.Errorf("%q for %s: %s, want %q", nameservers, clusterDNS, got, want[i])
			}
		}
	}
}
