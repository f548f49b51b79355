package edgeconfig

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/neardns/neardns/fleet/edge/geo"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/testutil"
)

func loadEdge(text string, env map[string]string) (*Config, error) {
	return Load("edge.yaml", Env{LookupEnv: func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}, ReadFile: func(path string) ([]byte, error) {
		if path == "edge.yaml" {
			return []byte(text), nil
		}
		return nil, fs.ErrNotExist
	}})
}

const leastEdge = `apiVersion: neardns.io/v1alpha1
kind: EdgeConfig
listen: {dns: ["${POD_IPS}"]}
zones:
- {name: Shared.Example., primary: 192.0.2.53}
`

func TestLoadEdge(t *testing.T) {
	least, err := loadEdge(leastEdge, map[string]string{"POD_IPS": "10.0.0.7,fd00::7"})
	testutil.Must(t, err)
	want := Default()
	want.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")}
	want.Zones = []Zone{{Name: "shared.example", Primary: nameserver.At(netip.MustParseAddr("192.0.2.53"))}}
	same := []cmp.Option{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{}), cmpopts.EquateEmpty()}
	testutil.Equal(t, "least", &want, least, same...)
	full, err := loadEdge(leastEdge+`  
- name: b.example
  primary: "[2001:db8::53]:5353"
  key: /etc/neardns/keys/b
  targets: [203.0.113.0/24, 2001:db8::1]
  notify: [192.0.2.54]
geo:
  region: [GEO-EU, IE]
  ranges: [{network: 10.0.0.0/8, codes: [US-CA, US]}]
  database: /var/lib/geo/db.mmdb
  resolvers: [192.0.2.0/24]
rate: {answers: 50, slip: 3, exempt: [10.0.0.0/8]}
healthChecks: {caFile: /etc/ca.pem}
limits: {tcpConnections: 7, records: 9}
stateDir: /data
log: {level: debug, format: json}
`, map[string]string{"POD_IPS": "10.0.0.7"})
	testutil.Must(t, err)
	z := full.Zones[1]
	if z.Primary.Addr.String() != "[2001:db8::53]:5353" || z.Key != "/etc/neardns/keys/b" || z.Targets[1].String() != "2001:db8::1/128" || len(z.Notify) != 1 {
		t.Errorf("%+v", z)
	}
	testutil.Equal(t, "geo", Geo{Region: geo.Place{"geo-eu", "ie"}, Ranges: []Range{{netip.MustParsePrefix("10.0.0.0/8"), geo.Place{"us-ca", "us"}}},
		Database: "/var/lib/geo/db.mmdb", Resolvers: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, full.Geo, same...)
	if full.Rate.Answers != 50 || full.Rate.Slip != 3 || len(full.Rate.Exempt) != 1 || full.Roots != "/etc/ca.pem" || full.Limits != (Limits{7, 9}) ||
		full.StateDir != "/data" || !full.JSON {
		t.Errorf("%+v", full)
	}
}

// TestLoadEdgeFaults: each fault names its line, its field and what to do; several are reported at once.
func TestLoadEdgeFaults(t *testing.T) {
	env := map[string]string{"POD_IPS": "10.0.0.7"}
	for name, row := range map[string]struct {
		text string
		want []string
	}{
		"empty":              {"", []string{"edge.yaml", "empty", "kind: EdgeConfig"}},
		"not YAML":           {"a: [", []string{"not valid YAML"}},
		"a list":             {"- a", []string{"is a list: write an object"}},
		"another kind":       {strings.Replace(leastEdge, "EdgeConfig", "NodeConfig", 1), []string{"edge.yaml:2", "write EdgeConfig"}},
		"nothing required":   {"apiVersion: neardns.io/v1alpha1", []string{"kind: missing", "listen: missing", "zones: missing"}},
		"an unknown key":     {leastEdge + "rates: {}\n", []string{"edge.yaml:6", `rates: unknown key: write "rate"`}},
		"no value":           {leastEdge + "rate:\n", []string{"has no value"}},
		"no zones":           {strings.Replace(leastEdge, "- {name: Shared.Example., primary: 192.0.2.53}", "  []", 1), []string{"names no zone"}},
		"a zone twice":       {leastEdge + "- {name: shared.example, primary: 192.0.2.53}\n", []string{"zones[1].name", "twice"}},
		"no primary":         {leastEdge + "- {name: b.example}\n", []string{"zones[1].primary", "missing"}},
		"a primary by name":  {leastEdge + "- {name: b.example, primary: ns.example}\n", []string{"zones[1].primary", "names are not resolved"}},
		"a zone's name":      {leastEdge + "- {name: 'b example', primary: 192.0.2.53}\n", []string{"zones[1].name", "not a domain"}},
		"a key's path":       {leastEdge + "- {name: b.example, primary: 192.0.2.53, key: keys}\n", []string{"zones[1].key", "not a whole path"}},
		"a target's network": {leastEdge + "- {name: b.example, primary: 192.0.2.53, targets: [203.0.113.1/24]}\n", []string{"zones[1].targets[0]", "write 203.0.113.0/24"}},
		"no network":         {leastEdge + "rate: {exempt: [here]}\n", []string{"rate.exempt[0]", "not a network"}},
		"the wildcard":       {strings.Replace(leastEdge, "${POD_IPS}", "0.0.0.0", 1), []string{"listen.dns[0]", "unicast"}},
		"no address":         {strings.Replace(leastEdge, `["${POD_IPS}"]`, "[]", 1), []string{"listen.dns", "names no address"}},
		"an address twice":   {strings.Replace(leastEdge, "${POD_IPS}", "10.0.0.1,10.0.0.1", 1), []string{"listen.dns[0]", "twice"}},
		"a variable":         {strings.Replace(leastEdge, "POD_IPS", "NOBODY", 1), []string{"NOBODY is not set"}},
		"a code":             {leastEdge + "geo: {region: [EUROPE]}\n", []string{"geo.region[0]", "GEO-EU"}},
		"a range twice":      {leastEdge + "geo: {ranges: [{network: 10.0.0.0/8, codes: [IE]}, {network: 10.0.0.0/8, codes: [DE]}]}\n", []string{"geo.ranges[1].network", "twice"}},
		"a range's codes":    {leastEdge + "geo: {ranges: [{network: 10.0.0.0/8}]}\n", []string{"geo.ranges[0].codes", "missing"}},
		"a number":           {leastEdge + "rate: {answers: many}\n", []string{"rate.answers", "whole number"}},
		"a great number":     {leastEdge + "rate: {answers: 9999999}\n", []string{"rate.answers", "not within"}},
		"a negative number":  {leastEdge + "rate: {slip: -1}\n", []string{"rate.slip", "not within"}},
		"a level":            {leastEdge + "log: {level: loud}\n", []string{"log.level", "debug, info, warn, error"}},
		"three at once":      {leastEdge + "rate: {slip: -1, answers: x}\nlog: {format: xml}\n", []string{"rate.slip", "rate.answers", "log.format"}},
		"by position":        {leastEdge + "- {name: 'b example'}\n", []string{"zones[1].primary", "zones[1].name"}},
	} {
		e, err := loadEdge(row.text, env)
		if err == nil {
			t.Errorf("%s: taken as %+v", name, e)
			continue
		}
		rest := err.Error()
		for _, want := range row.want {
			var found bool
			if _, rest, found = strings.Cut(rest, want); !found {
				t.Errorf("%s: %v\ndoes not have %q, or not in this order", name, err, row.want)
				break
			}
		}
	}
	if _, err := Load("none.yaml", Env{ReadFile: func(string) ([]byte, error) { return nil, fs.ErrNotExist }}); !errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(err.Error(), "--config") {
		t.Errorf("no file: %v", err)
	}
}

// TestEdgeRestart: each change is taken over by a running edge or named as one that only a start takes over.
func TestEdgeRestart(t *testing.T) {
	env := map[string]string{"POD_IPS": "10.0.0.7"}
	base := strings.Replace(leastEdge, "listen: {", "listen: {port: 54, metrics: 'off', health: 'off', ", 1)
	for change, want := range map[string][]string{
		"":                    nil,
		"geo: {region: [IE]}": nil,
		"rate: {answers: 5}":  nil,
		"- {name: b.example, primary: 192.0.2.1}": nil,
		"healthChecks: {caFile: /ca}":             nil,
		"log: {level: debug}":                     nil,
		"log: {format: json}":                     {"log.format"},
		"stateDir: /elsewhere":                    {"stateDir"},
		"limits: {tcpConnections: 7}":             {"limits"},
	} {
		before, err := loadEdge(base, env)
		testutil.Must(t, err)
		after, err := loadEdge(base+change+"\n", env)
		testutil.Must(t, err)
		if got := before.Restart(after); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", change, got, want)
		}
	}
	least, err := loadEdge(leastEdge, env)
	testutil.Must(t, err)
	changed, err := loadEdge(base, map[string]string{"POD_IPS": "10.0.0.9"})
	testutil.Must(t, err)
	if got, want := least.Restart(changed), []string{"listen.dns", "listen.port", "listen.metrics", "listen.health"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// FuzzLoadEdge: any text is refused with a reason, or gives a configuration that can be served.
func FuzzLoadEdge(f *testing.F) {
	f.Add(leastEdge)
	f.Fuzz(func(t *testing.T, text string) {
		e, err := loadEdge(text, map[string]string{"POD_IPS": "10.0.0.7"})
		if err == nil && (len(e.Addresses) == 0 || len(e.Zones) == 0 || e.Port == 0) {
			t.Fatalf("%+v", e)
		}
	})
}
