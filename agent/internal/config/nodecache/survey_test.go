package nodecache

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestReadCorefile(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:90de:d95::a")}
	text, err := os.ReadFile("testdata/survey.Corefile")
	testutil.Must(t, err)
	got, err := ReadCorefile("base", string(text), own)
	testutil.Must(t, err)
	want := Survey{Zones: []string{"cluster.local", "in-addr.arpa", ".", "other"}, Prometheus: []string{":9253", "localhost:9153"},
		Health: []string{"169.254.20.10:8080", "[fd00:90de:d95::a]:8081", ":8080"}, Ready: []string{":8181"},
		Forward: map[string]netip.Addr{"cluster.local": netip.MustParseAddr("10.96.0.11"), "in-addr.arpa": netip.MustParseAddr("10.96.0.11"),
			".": netip.MustParseAddr("192.0.2.1"), "other": netip.MustParseAddr("192.0.2.1")}}
	testutil.Equal(t, "read", want, got, cmpopts.EquateComparable(netip.Addr{}))
	for want, text := range map[string]string{
		"line 2: forward to 169.254.20.10, an address of the agent": ". {\n forward . 169.254.20.10\n}",
		"forward to [fd00:90de:d95::a]:53":                          ". {\n forward . 192.0.2.1 [fd00:90de:d95::a]:53\n}",
		"take out the port":                                         ".:5353 {\n whoami\n}",
		"Unknown directive 'kubernetes'":                            ". {\n kubernetes\n}",
	} {
		_, err = ReadCorefile("base", text, own)
		testutil.WantError(t, err, want, fmt.Sprintf("%q", text))
	}
}
