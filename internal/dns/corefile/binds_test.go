package corefile

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

func nodeCache(text string) Config {
	return Config{Addresses: []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("10.96.0.10")}, Binds: "nodelocaldns",
		Port: 53, Override: text, OverrideName: "base", Misses: 1024}
}

func TestNodeCacheBinds(t *testing.T) {
	const both = "bind 169.254.20.10 10.96.0.10"
	for bind, want := range map[string]string{
		"":                           both,
		"bind 169.254.20.10":         "bind 169.254.20.10",
		"bind 10.96.0.10 192.0.2.1":  "bind 10.96.0.10",
		"bind 0.0.0.0":               both,
		"bind nodelocaldns":          both,
		"bind ::1 ::ffff:10.96.0.10": "bind 10.96.0.10",
		"bind nodelocaldns {\n except 10.96.0.10\n}":   "bind 169.254.20.10",
		"bind 169.254.20.10\n bind 10.96.0.10":         both,
		"bind eth0":                                    "base: line 3: bind eth0: neither an address nor the agent's link",
		"bind 192.0.2.1":                               "base: line 3: bind names none of the agent's addresses (169.254.20.10, 10.96.0.10)",
		"bind nodelocaldns {\n except nodelocaldns\n}": "bind names none",
	} {
		text, err := Render(nodeCache(". {\n errors\n " + bind + "\n forward . 192.0.2.53\n}"))
		if err != nil {
			text = err.Error()
		}
		if !strings.Contains(text, want) || strings.HasPrefix(want, "bind ") && err == nil && !strings.Contains(text, "    "+want+"\n") {
			t.Errorf("%q: want %q in\n%s", bind, want, text)
		}
	}
	// Misses are bounded where nothing else bounds them, and answers over UDP in any case.
	text, err := Render(nodeCache(". {\n bufsize 4096\n forward . 192.0.2.53\n}\na. {\n cancel 1s\n forward . 192.0.2.53\n}\nb. {\n whoami\n}"))
	testutil.Must(t, err)
	if strings.Count(text, "cancel 4s") != 1 || strings.Count(text, "cancel 1s") != 1 || strings.Count(text, "bufsize 1232") != 3 ||
		!strings.Contains(text, "# Made smaller: bufsize") {
		t.Errorf("rendered:\n%s", text)
	}
}

func TestDirectives(t *testing.T) {
	got := Directives()
	for _, d := range strings.Fields("bind bufsize cache debug dns64 errors forward health hosts loadbalance log loop prometheus pprof reload " +
		"rewrite template timeouts trace whoami ready ask") {
		if !slices.Contains(got, d) {
			t.Errorf("%s is missing from %v", d, got)
		}
	}
	if slices.Contains(got, "probe") || slices.Contains(got, "metrics") || !slices.IsSorted(got) {
		t.Errorf("%v", got)
	}
}
