package iptables

import (
	"net/netip"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// TestGolden compares the whole input of iptables-restore, for nodes and pods.
func TestGolden(t *testing.T) {
	redirects := []steer.Redirect{
		{ClusterDNS: addr("10.96.0.10"), Steering: addr("169.254.20.11")},
		{ClusterDNS: addr("fd00:96::a"), Steering: addr("fd00:90de:d95::b")},
	}
	locals := []steer.Local{
		{Address: addr("169.254.20.10"), ClusterDNS: addr("10.96.0.10")}, {Address: addr("fd00:90de:d95::a"), ClusterDNS: addr("fd00:96::a")},
	}
	for name, rs := range map[string]steer.Ruleset{
		"host":  steer.Host{Redirects: redirects[:1], Locals: locals[:1], Uplinks: []string{"eth1", "eth0"}},
		"host6": steer.Host{Redirects: redirects[1:], Locals: locals[1:], Lifetime: 2100 * time.Millisecond},
		"gone":  steer.Host{Redirects: redirects[:1], FallbackOnly: []steer.Redirect{{ClusterDNS: addr("10.96.0.11"), Steering: addr("169.254.20.12")}}},
		"pod":   steer.Pod{Redirects: redirects},
		"none":  steer.Host{},
		"on-link": steer.Host{Uplinks: []string{"eth0"}, Exempt: []netip.Addr{addr("10.244.1.7")}, Locals: []steer.Local{
			{Address: addr("10.96.0.10"), ClusterDNS: addr("10.96.0.10"), Service: true},
			{Address: addr("169.254.20.10"), ClusterDNS: addr("10.96.0.50")},
		}},
		"nodecache": steer.Host{Uplinks: []string{"eth0"}, OwnLocals: true, HealthPort: 8080, Ceded: []netip.Addr{addr("169.254.20.10"), addr("10.96.0.10")}, Locals: []steer.Local{
			{Address: addr("10.96.0.10"), ClusterDNS: addr("10.96.0.11"), Service: true},
			{Address: addr("169.254.20.10"), ClusterDNS: addr("10.96.0.11")},
		}},
		"nodecache6": steer.Host{OwnLocals: true, HealthPort: 8080, Ceded: []netip.Addr{addr("fd00:90de:d95::a"), addr("fd00:96::a")}, Locals: []steer.Local{
			{Address: addr("fd00:96::a"), ClusterDNS: addr("fd00:96::a"), Service: true},
			{Address: addr("fd00:90de:d95::a"), ClusterDNS: addr("fd00:96::a")},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			scripts, err := render(rs, name != "host6")
			testutil.Must(t, err)
			got := ""
			for _, s := range scripts {
				got += "# " + s.family() + "\n" + s.restore(s.tables(), func(chain, jump) placing { return absent })
			}
			golden.Check(t, name+".restore", got)
		})
	}
}
