package nodecache

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/testutil"
)

func fill() Fill {
	return Fill{Locals: addrs("169.254.20.10", "10.96.0.10"), Upstream: addrs("10.96.0.11")[0], External: "192.0.2.1:53 192.0.2.2:53",
		Prometheus: ":9253", Domain: "cluster.local"}
}

func TestCorefile(t *testing.T) {
	tcp := "forward . __PILLAR__UPSTREAM__SERVERS__ {\n  force_tcp\n}\n"
	for name, c := range map[string]struct {
		template string
		change   func(*Fill)
		want     string
		wantNote string
	}{
		"the cluster's server": {"forward . __PILLAR__CLUSTER__DNS__ {\n force_tcp\n}\n", nil, "forward . 10.96.0.11 {\n force_tcp\n}\n", ""},
		"all addresses":        {"bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__\n", nil, "bind 169.254.20.10 10.96.0.10 \n", ""},
		"one with a port":      {"health __PILLAR__LOCAL__DNS__:8080\n", nil, "health 169.254.20.10:8080\n", ""},
		"one with a port, IPv6": {"health __PILLAR__LOCAL__DNS__:8080\n", func(f *Fill) { f.Locals = addrs("fd00:90de:d95::a") },
			"health [fd00:90de:d95::a]:8080\n", ""},
		"the rest":                       {"forward . __PILLAR__UPSTREAM__SERVERS__\n", nil, "forward . 192.0.2.1:53 192.0.2.2:53\n", ""},
		"no servers for other names":     {"forward . __PILLAR__UPSTREAM__SERVERS__\n", func(f *Fill) { f.External = "" }, "forward . 10.96.0.11\n", ""},
		"the rest over TCP":              {tcp, nil, "forward . 192.0.2.1:53 192.0.2.2:53 {\n  force_tcp\n}\n", ""},
		"chosen ones, never over TCP":    {tcp, func(f *Fill) { f.Chosen = true }, "forward . 192.0.2.1:53 192.0.2.2:53 {\n}\n", ""},
		"whatever the indentation":       {strings.ReplaceAll(tcp, "  ", "\t\t "), func(f *Fill) { f.Chosen = true }, "forward . 192.0.2.1:53 192.0.2.2:53 {\n}\n", ""},
		"other options stay":             {strings.Replace(tcp, "{", "{\n  max_fails 2", 1), func(f *Fill) { f.Chosen = true }, "forward . 192.0.2.1:53 192.0.2.2:53 {\n  max_fails 2\n}\n", ""},
		"the cluster's stay over TCP":    {"forward . __PILLAR__CLUSTER__DNS__ {\n force_tcp\n}\n", func(f *Fill) { f.Chosen = true }, "forward . 10.96.0.11 {\n force_tcp\n}\n", ""},
		"the cluster's domain, left out": {"__PILLAR__DNS__DOMAIN__:53 {\n}\n", nil, "cluster.local:53 {\n}\n", "read as cluster.local"},
		"the metrics' address":           {"prometheus __PILLAR__PROMETHEUS__ENDPOINT__\n", nil, "prometheus :9253\n", ""},
		"the metrics' address, shorter":  {"prometheus __PROMETHEUS__ENDPOINT__\n", nil, "prometheus :9253\n", ""},
		"nothing to fill in":             {".:53 {\n errors\n}\n", nil, ".:53 {\n errors\n}\n", ""},
	} {
		f := fill()
		if c.change != nil {
			c.change(&f)
		}
		got, notes, err := f.Corefile(c.template)
		if err != nil || got != c.want {
			t.Errorf("%s: %v\n got %q\nwant %q", name, err, got, c.want)
		}
		if joined := strings.Join(notes, "; "); (joined == "") != (c.wantNote == "") || !strings.Contains(joined, c.wantNote) {
			t.Errorf("%s: notes %q, want %q", name, joined, c.wantNote)
		}
	}
	_, _, err := fill().Corefile("a\nbind __PILLAR__OTHER__\n")
	if err == nil || !strings.HasPrefix(err.Error(), "line 2: __PILLAR__OTHER__ is not a placeholder") {
		t.Errorf("an unknown placeholder: %v", err)
	}
}

func TestImports(t *testing.T) {
	text := `(mine) {
    errors
}
.:53 {
    import mine
    import custom/*.override
    import "more/a.conf" # here
    import /abs/b.conf
    import custom/*.override
    rewrite name import other
}
import generated/x.server
`
	want := strings.NewReplacer("custom/", "/etc/custom/", "more/", "/etc/more/", "generated/", "/etc/generated/").Replace(text)
	got, patterns := Imports(text, "/etc")
	testutil.Equal(t, "imports", want, got)
	testutil.Equal(t, "patterns", []string{"/etc/custom/*.override", "/etc/more/a.conf", "/abs/b.conf", "/etc/generated/x.server"}, patterns)
}

func servers(s ...string) []nameserver.Address {
	var out []nameserver.Address
	for _, a := range s {
		out = append(out, nameserver.Address{Addr: netip.MustParseAddrPort(a)})
	}
	return out
}

func TestStubs(t *testing.T) {
	text, notes := Stubs(map[string][]nameserver.Address{"b.example": servers("10.1.1.1:53"), "none.example": nil,
		"a.example": servers("10.2.2.2:53", "10.2.2.3:5353"), "served.example": servers("10.3.3.3:53")},
		[]string{".", "served.example"})
	want := `
a.example:53 {
    errors
    cache 30
    forward . 10.2.2.2:53 10.2.2.3:5353
}

b.example:53 {
    errors
    cache 30
    forward . 10.1.1.1:53
}
`
	testutil.Equal(t, "Corefile", want, text)
	if joined := strings.Join(notes, "; "); len(notes) != 2 || !strings.Contains(joined, "template's own block") || !strings.Contains(joined, "none.example of the kube-dns ConfigMap names no server") {
		t.Errorf("notes %q", joined)
	}
}

func TestDomain(t *testing.T) {
	for want, zones := range map[string][]string{"corp.internal": {".", "in-addr.arpa", "corp.internal", "other"}, "cluster.local": {".", "ip6.arpa"}} {
		testutil.Equal(t, fmt.Sprintf("%v", zones), want, Domain(zones))
	}
}

// FuzzCorefile: whatever the template, no placeholder is left, and filling in twice changes nothing more.
func FuzzCorefile(f *testing.F) {
	f.Add("__PILLAR__DNS__DOMAIN__:53 {\n bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__\n forward . __PILLAR__UPSTREAM__SERVERS__ {\n force_tcp\n}\n}\n", true)
	f.Add("health __PILLAR__LOCAL__DNS__:8080\nprometheus __PILLAR__PROMETHEUS__ENDPOINT__", false)
	f.Fuzz(func(t *testing.T, template string, chosen bool) {
		fl := fill()
		fl.Chosen = chosen
		text, _, err := fl.Corefile(template)
		if err != nil {
			return
		}
		if left := placeholder.FindString(text); left != "" {
			t.Errorf("%q is left of %q", left, template)
		}
		if again, _, err := fl.Corefile(text); err != nil || again != text {
			t.Errorf("a second time: %q, %v; want %q", again, err, text)
		}
	})
}

func TestFaults(t *testing.T) {
	f := NewFaults()
	testutil.Check(t, f.Count(FaultConfigmap, nil))
	bad := errors.New("bad")
	if err := f.Count(FaultIptables, bad); !errors.Is(err, bad) {
		t.Error(err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(f)
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "coredns_nodecache_setup_errors_total" {
		t.Fatalf("%v, %v", families, err)
	}
	got := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		got[m.GetLabel()[0].GetName()+"="+m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
	}
	want := map[string]float64{"errortype=iptables": 1, "errortype=iptables_lock": 0, "errortype=interface_add": 0, "errortype=interface_check": 0, "errortype=configmap": 0}
	testutil.Equal(t, "faults", want, got)
}
