package overlay

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer"
)

func TestAsksOthers(t *testing.T) {
	redirects := []steer.Redirect{{ClusterDNS: netip.MustParseAddr("10.96.0.10")}, {ClusterDNS: netip.MustParseAddr("fd00:96::a")}}
	for nameservers, others := range map[string]bool{
		"": false, "10.96.0.10": false, "9.9.9.9 10.96.0.10": false, "fd00:96::a%eth0": false, "::ffff:10.96.0.10": false,
		"9.9.9.9": true, "not-an-address": true, "10.96.0.11 fd00:96::b": true,
	} {
		got := AsksOthers(strings.Fields(nameservers), redirects)
		if (got != "") != others || others && !strings.Contains(got, strings.Fields(nameservers)[0]) {
			t.Errorf("%q: %q", nameservers, got)
		}
	}
}
