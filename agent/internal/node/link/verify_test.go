package link

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestVerify breaks each thing that Ensure repairs: Verify names it, changes nothing, and finds no fault after the repair.
func TestVerify(t *testing.T) {
	testutil.RequireRoot(t)
	ns, cfg := host(t)
	verify := func() string {
		t.Helper()
		drift, err := Verify(cfg)
		testutil.Must(t, err)
		return strings.Join(drift, "; ")
	}
	testutil.Equal(t, "without a link", "there is no such link", verify())
	first := cfg.Addresses[0].String()
	for _, tc := range []struct{ name, command, want string }{
		{"down", "ip link set neardns0 down", "it is down"},
		{"multicast on", "ip link set neardns0 multicast on", "multicast is on"},
		{"IPv6 off", "sysctl -qw net.ipv6.conf.neardns0.disable_ipv6=1", "address fd00:90de:d95::a is missing"},
		{"address gone", "ip address del " + first + "/32 dev neardns0", "address " + first + " is missing"},
		{"foreign", "ip address add 192.0.2.7/32 dev neardns0", "it has the address 192.0.2.7/32, which the configuration does not have"},
		{"properties", "ip address del " + first + "/32 dev neardns0 && ip address add " + first + "/32 dev neardns0", "other properties"},
	} {
		mustEnsure(t, cfg)
		if got := verify(); got != "" {
			t.Fatalf("before %s: %s", tc.name, got)
		}
		ns.Run("sh", "-c", strings.ReplaceAll(tc.command, "neardns0", cfg.Name))
		for range 2 {
			if got := verify(); !strings.Contains(got, tc.want) {
				t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
			}
		}
	}
}
