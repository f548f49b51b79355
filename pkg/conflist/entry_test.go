package conflist

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestEntry(t *testing.T) {
	redirects := []steer.Redirect{{ClusterDNS: netip.MustParseAddr("10.96.0.10")}}
	const least = `{
  "type": "neardns",
  "redirects": [
    {
      "clusterDNS": "10.96.0.10",
      "steering": "169.254.20.11"
    }
  ],
  "capabilities": {
    "dns": true,
    "io.kubernetes.cri.pod-annotations": true
  }
}`
	for name, tc := range map[string]struct {
		settings Settings
		want     string
	}{
		"least": {Settings{Redirects: redirects}, least},
		// Default values are not written, so that the entry stays the same if a setting spells out its default.
		"defaults": {Settings{Redirects: redirects, Backend: "auto", Steer: SteerProven, StateDir: "/run/neardns", PersistDir: "/var/lib/neardns"}, least},
		"all": {Settings{
			Redirects:      append(redirects, steer.Redirect{ClusterDNS: netip.MustParseAddr("fd00:10:96::a"), Steering: netip.MustParseAddr("fd00::1")}),
			ClusterDomain:  "example.internal",
			LocalAddresses: []netip.Addr{netip.MustParseAddr("169.254.20.10")},
			Backend:        "nftables", Steer: SteerOff, StateDir: "/run/a", PersistDir: "/var/a",
		}, `{
  "type": "neardns",
  "redirects": [
    {
      "clusterDNS": "10.96.0.10",
      "steering": "169.254.20.11"
    },
    {
      "clusterDNS": "fd00:10:96::a",
      "steering": "fd00::1"
    }
  ],
  "clusterDomain": "example.internal",
  "localAddresses": [
    "169.254.20.10"
  ],
  "backend": "nftables",
  "steer": "off",
  "stateDir": "/run/a",
  "persistDir": "/var/a",
  "capabilities": {
    "dns": true,
    "io.kubernetes.cri.pod-annotations": true
  }
}`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Entry(tc.settings)
			testutil.Must(t, err)
			testutil.Equal(t, "entry", tc.want, string(got))
			again, err := Entry(tc.settings)
			if err != nil || !bytes.Equal(got, again) {
				t.Errorf("not the same twice: %v", err)
			}
		})
	}
}

func TestEntryFaults(t *testing.T) {
	for want, redirects := range map[string][]steer.Redirect{
		"no redirects: name at least one": nil,
		"redirects[0].clusterDNS: ":       {{}},
	} {
		_, err := Entry(Settings{Redirects: redirects})
		testutil.WantError(t, err, want)
	}
}
