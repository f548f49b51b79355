package nft_test

import (
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

var addr = netip.MustParseAddr

// The addresses that the tests of this package use.
var (
	redirect4  = steer.Redirect{ClusterDNS: addr("10.96.0.10"), Steering: addr("169.254.20.11")}
	redirect4b = steer.Redirect{ClusterDNS: addr("10.96.0.11"), Steering: addr("169.254.20.12")}
	redirect6  = steer.Redirect{ClusterDNS: addr("fd00:10:96::a"), Steering: addr("fd00:90de:d95::b")}
	local4     = steer.Local{Address: addr("169.254.20.10"), ClusterDNS: redirect4.ClusterDNS}
	local6     = steer.Local{Address: addr("fd00:90de:d95::a"), ClusterDNS: redirect6.ClusterDNS}
)

// rulesets are the descriptions that rendering, parity, idempotence and support are tried with, by golden file.
func rulesets() map[string]steer.Ruleset {
	return map[string]steer.Ruleset{
		"pod-v4":     steer.Pod{Redirects: []steer.Redirect{redirect4}},
		"pod-v6":     steer.Pod{Redirects: []steer.Redirect{redirect6}},
		"pod-dual":   steer.Pod{Redirects: []steer.Redirect{redirect4, redirect6}},
		"pod-two":    steer.Pod{Redirects: []steer.Redirect{redirect4, redirect4b}},
		"pod-none":   steer.Pod{},
		"pod-always": steer.Pod{Redirects: []steer.Redirect{redirect4, redirect6}, Always: true},
		"host-v4":    steer.Host{Redirects: []steer.Redirect{redirect4}, Locals: []steer.Local{local4}, Uplinks: []string{"eth0"}},
		"host-v6":    steer.Host{Redirects: []steer.Redirect{redirect6}, Locals: []steer.Local{local6}, Uplinks: []string{"eth0"}},
		"host-dual": steer.Host{Redirects: []steer.Redirect{redirect4, redirect6}, Locals: []steer.Local{local4, local6}, Uplinks: []string{"eth0", "eth1.5"},
			Detours: []string{"cilium_host", "cilium_net"}, Secret: testSecret},
		"host-intercept": steer.Host{Redirects: []steer.Redirect{redirect4, redirect6}, Locals: []steer.Local{local4},
			Uplinks: []string{"eth0"}, InterceptNode: true, Lifetime: 1500 * time.Millisecond},
		"host-fallback-only": steer.Host{Redirects: []steer.Redirect{redirect4}, FallbackOnly: []steer.Redirect{redirect4b}, InterceptNode: true},
		"host-none":          steer.Host{},
		"host-nodecache": steer.Host{Locals: []steer.Local{local4, {Address: redirect4.ClusterDNS, ClusterDNS: redirect4b.ClusterDNS, Service: true}, local6}, OwnLocals: true, HealthPort: 8080,
			Uplinks: []string{"eth0"}},
		"host-nodecache-ceded": steer.Host{Locals: []steer.Local{local4, local6}, OwnLocals: true, Ceded: []netip.Addr{local6.Address, local4.Address}},
	}
}

// The goldens are what nft prints for what the kernel holds, and errors name a rule by the same text. Rules of different texts have
// different digests: Apply and Verify read nothing else of the kernel's rules.
func TestRenderGolden(t *testing.T) {
	testutil.RequireRoot(t)
	texts := map[string]string{}
	for name, rs := range rulesets() {
		t.Run(name, func(t *testing.T) {
			ns := testutil.NewNS(t, "golden")
			testutil.Must(t, open(t, ns).Apply(rs))
			listing := normalize(ns.Run("nft", "-s", "list", "table", "inet", steer.TableName))
			golden.Check(t, name+".nft", listing)
			var want []string
			testutil.Must(t, nft.Rules(rs, func(chain, text, digest string) {
				want = append(want, chain+": "+text)
				if other, ok := texts[digest]; ok && other != text {
					t.Errorf("%q and %q have one digest", text, other)
				}
				texts[digest] = text
			}))
			testutil.Equal(t, "our texts, and nft's", want, rulesOf(listing))
		})
	}
	files, _ := filepath.Glob("testdata/*.nft")
	for _, f := range files {
		if _, ok := rulesets()[strings.TrimSuffix(filepath.Base(f), ".nft")]; !ok {
			t.Errorf("%s belongs to no case", f)
		}
	}
}

// rulesOf returns the rules of a listing, each with its chain.
func rulesOf(listing string) (out []string) {
	kind, name := "", ""
	for line := range strings.Lines(listing) {
		text, inBlock := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "\t\t")
		if !inBlock {
			kind, name, _ = strings.Cut(strings.TrimSuffix(strings.TrimSpace(line), " {"), " ")
		} else if kind == "chain" && !strings.HasPrefix(text, "type ") {
			out = append(out, name+": "+text)
		}
	}
	return out
}

var elements = regexp.MustCompile(`(?s)elements = \{ (.*?) \}`)

// normalize puts elements on one line, sorted: nft wraps them, and lists some in the order of their hashes. Spellings that
// newer versions of nft changed are brought to the older one.
func normalize(listing string) string {
	listing = elements.ReplaceAllStringFunc(listing, func(m string) string {
		list := strings.Split(elements.FindStringSubmatch(m)[1], ",")
		for i := range list {
			list[i] = strings.TrimSpace(list[i])
		}
		slices.Sort(list)
		return "elements = { " + strings.Join(list, ", ") + " }"
	})
	return strings.NewReplacer("tcp flags & (syn | ack) == syn", "tcp flags syn / syn,ack",
		"tcp flags & (syn | ack) != syn", "tcp flags != syn / syn,ack").Replace(listing)
}

// open opens the back end in a netns, and closes it when the test ends.
func open(t testing.TB, ns *testutil.NetNS) *nft.Nftables {
	t.Helper()
	n, err := nft.Open(ns.FD())
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Check(t, n.Close(), "close") })
	return n
}
