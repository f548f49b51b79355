package corefile

import (
	_ "embed"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coredns/caddy/caddyfile"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

func addrs(s ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func servers(texts ...string) []nameserver.Address {
	var out []nameserver.Address
	for _, s := range texts {
		a, err := nameserver.Parse(s)
		if err != nil {
			panic(err)
		}
		out = append(out, a)
	}
	return out
}

func node() Config {
	return Config{
		Addresses:     addrs("169.254.20.10", "169.254.20.11"),
		Port:          53,
		ClusterDomain: "cluster.local",
		Cluster:       servers("10.96.0.10"),
		External:      servers("192.0.2.53"),
		Cache:         Cache{Entries: 10000, NegativeTTL: 5 * time.Second},
		Misses:        1024,
		InstanceID:    "node-a.1",
	}
}

func with(change func(*Config)) Config {
	c := node()
	change(&c)
	return c
}

func TestRender(t *testing.T) {
	for name, cfg := range map[string]Config{
		"least": node(),
		"dual stack, several upstreams, stub domains": with(func(c *Config) {
			c.Addresses = append(c.Addresses, addrs("fd00:90de:d95::a", "fd00:90de:d95::b")...)
			c.Cluster = servers("10.96.0.10:53", "fd00:10:96::a")
			c.StubDomains = map[string][]nameserver.Address{"corp.example": servers("10.1.2.3", "10.1.2.4:5353"), "other.example": servers("[fd00::1]:53")}
			c.External = servers("tls://9.9.9.9%dns.quad9.net", "tls://[2620:fe::fe%dns.quad9.net]:8853", "tls://1.1.1.1", "1.1.1.1")
			c.Cache = Cache{Entries: 2000, NegativeTTL: 30 * time.Second, ServeStale: time.Hour}
		}),
		"no external, queries logged": with(func(c *Config) {
			c.External, c.Queries, c.InstanceID = nil, QueriesAll, ""
		}),
		"errors logged": with(func(c *Config) { c.Queries, c.Port = QueriesErrors, 5353 }),
		"snippets": with(func(c *Config) {
			c.Snippets = map[string]string{
				".":             "template IN A example.org {\n  answer \"{{ .Name }} 60 IN A 192.0.2.1\" # a comment\n}\ncache 30",
				"cluster.local": "rewrite name a.cluster.local b.cluster.local\nrewrite name c.cluster.local d.cluster.local",
				"extra.example": "forward . 192.0.2.99",
				"in-addr.arpa":  "log . {\n class error\n}",
			}
		}),
		"shared zones": {Addresses: addrs("192.0.2.53", "2001:db8::53"), Port: 53, Shared: true},
		"override": with(func(c *Config) {
			c.Override = nodeLocalCorefile
		}),
		"override with imports and odd words": with(func(c *Config) {
			c.Override = `(common) {
    errors {
        consolidate 5m ".* i/o timeout$" warning
    }
}
example.org, 10.0.0.0/24 {
    import common
    bufsize 1000
    template ANY TXT {
        match "^#(.*)[.]example[.]org[.]$"
        answer "{{ .Name }} 60 IN TXT \"a # b\""
    }
}
`
		}),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Render(cfg)
			testutil.Must(t, err)
			golden.Check(t, strings.ReplaceAll(strings.ReplaceAll(name, ",", ""), " ", "-")+".corefile", got)
			again, err := Render(cfg)
			if err != nil || again != got {
				t.Error("two renderings of one configuration differ")
			}
		})
	}
}

// nodeLocalCorefile is the one of NodeLocal DNSCache, its placeholders filled in.
//
//go:embed testdata/nodelocal.corefile.in
var nodeLocalCorefile string

func TestRenderRefuses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Config)
		want   string // in the error: the field, and what is wrong
	}{
		{"snippet directive", func(c *Config) { c.Snippets = map[string]string{".": "log\nkubernetes cluster.local"} },
			`snippets["."]:2 - Error during parsing: Unknown directive 'kubernetes'`},
		{"snippet bind", func(c *Config) { c.Snippets = map[string]string{".": "bind 0.0.0.0"} },
			"bind cannot stand here: the agent listens on its own addresses"},
		{"snippet probe", func(c *Config) { c.Snippets = map[string]string{".": "probe x"} }, "Unknown directive 'probe'"},
		{"snippet breaks out", func(c *Config) { c.Snippets = map[string]string{".": "log\n}\n. {\nerrors"} }, "braces do not match"},
		{"snippet open", func(c *Config) { c.Snippets = map[string]string{".": "errors {"} }, `snippets["."]`},
		{"override syntax", func(c *Config) { c.Override = ". {\n  nonsense\n}" }, "corefile:2 - Error during parsing: Unknown directive 'nonsense'"},
		{"override empty", func(c *Config) { c.Override = "# nothing" }, "corefile: no server block"},
		{"override open", func(c *Config) { c.Override = ". {\n errors {\n" }, "corefile:"},
		{"override port", func(c *Config) { c.Override = ".:5300 {\n forward . 9.9.9.9\n}" },
			"server block .:5300: the agent serves port 53: take out the port"},
		{"override transport", func(c *Config) { c.Override = "tls://. {\n forward . 9.9.9.9\n}" }, "take out tls://"},
		{"override bufsize", func(c *Config) { c.Override = ". {\n bufsize 4096\n}" }, "corefile: line 2: bufsize 4096: answers over UDP may have 1232"},
		{"override probe zone", func(c *Config) { c.Override = "probe.neardns.invalid {\n log\n}" }, "this zone is the agent's prober's"},
		{"override probe", func(c *Config) { c.Override = ". {\n probe x\n}" }, "Unknown directive 'probe'"},
	} {
		text, err := Render(with(tc.change))
		testutil.WantError(t, err, tc.want, tc.name, text)
	}
}

// FuzzOverride: a Corefile that is accepted binds only to the agent's addresses, and its directives are parsed as in the original.
func FuzzOverride(f *testing.F) {
	f.Add(nodeLocalCorefile)
	f.Add(". {\n template ANY TXT {\n answer \"a \\\" b # c\"\n }\n}")
	f.Add("a b, c { log }")
	f.Add(". {\n errors \"x\n y\" z\n}")
	f.Add("(x) {\n log\n}\n. {\n import x\n}")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "import") && strings.ContainsAny(text, "/.*") {
			t.Skip("would read files")
		}
		cfg := with(func(c *Config) { c.Override = text })
		if cfg.Override == "" {
			t.Skip()
		}
		got, err := Render(cfg)
		if err != nil {
			return
		}
		blocks, err := caddyfile.Parse("rendered", strings.NewReader(got), directives())
		if err != nil {
			t.Fatalf("the rendered text does not parse: %v\n%s", err, got)
		}
		original, err := caddyfile.Parse("corefile", strings.NewReader(text), nil)
		testutil.Must(t, err)
		if len(blocks) != len(original)+1 {
			t.Fatalf("%d blocks became %d", len(original), len(blocks))
		}
		for i, b := range blocks {
			var bind []string
			for _, tok := range b.Tokens[dirBind] {
				bind = append(bind, tok.Text)
			}
			if want := []string{"bind", "169.254.20.10", "169.254.20.11"}; !slices.Equal(bind, want) {
				t.Fatalf("block %v binds to %v\n%s", b.Keys, bind, got)
			}
			if i == len(original) {
				continue
			}
			for name := range maps.Keys(taken()) {
				delete(b.Tokens, name)
				delete(original[i].Tokens, name)
			}
			for _, name := range []string{dirBufsize, dirLimit} {
				if original[i].Tokens[name] == nil {
					delete(b.Tokens, name)
				}
			}
			for name, tokens := range original[i].Tokens {
				if !sameTokens(tokens, b.Tokens[name]) {
					t.Fatalf("%s changed: %v became %v", name, tokens, b.Tokens[name])
				}
			}
			if len(b.Tokens) != len(original[i].Tokens) {
				t.Fatalf("directives %v became %v", slices.Collect(maps.Keys(original[i].Tokens)), slices.Collect(maps.Keys(b.Tokens)))
			}
		}
	})
}
