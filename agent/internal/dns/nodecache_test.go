package dns_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	mdns "github.com/miekg/dns"

	"github.com/neardns/neardns/agent/internal/dns"
)

// Each plugin that node-cache links (its plugin.cfg), with what it does; those that the agent sees to itself do no harm.
func TestNodeCachePlugins(t *testing.T) {
	up := newUpstream(t, address("10.0.0.5"))
	cfg := config(t, up)
	cfg.Binds = "nodelocaldns"
	cfg.Addresses = append(cfg.Addresses, netip.MustParseAddr("127.0.0.2"))
	cfg.Port = freePort(t, "127.0.0.1", "127.0.0.2")
	profiles := freePort(t, "127.0.0.1")
	cfg.Override = strings.NewReplacer("UP", up.addr, "PPROF", fmt.Sprint(profiles)).Replace(`cluster.local {
    errors {
        consolidate 1m .* warning
    }
    cache {
        success 9984 30
        denial 9984 5
        prefetch 3 1m 20%
        serve_stale 1h
    }
    reload 10s
    loop
    bind 127.0.0.1 127.0.0.2
    forward . UP {
        force_tcp
        max_fails 2
        policy sequential
        health_check 1s
    }
    prometheus :9253
    health 127.0.0.1:8080 {
        lameduck 5s
    }
}
. {
    timeouts {
        read 5s
    }
    trace zipkin 127.0.0.1:9411
    bufsize 4096
    debug
    pprof 127.0.0.1:PPROF
    errors
    log . {
        class error
    }
    dns64 64:ff9b::/96
    loadbalance round_robin
    rewrite name exact old.example.org new.example.org
    template IN A made.example.org {
        answer "{{ .Name }} 60 IN A 10.0.0.9"
    }
    hosts {
        10.0.0.6 six.example.org
        fallthrough
    }
    bind nodelocaldns {
        except 127.0.0.2
    }
    forward . UP
}
who.example {
    whoami
}`)
	start(t, cfg)
	first, second := at(cfg, 0), at(cfg, 1)
	for name, want := range map[string]string{"a.svc.cluster.local.": "10.0.0.5", "made.example.org.": "10.0.0.9", "six.example.org.": "10.0.0.6", "old.example.org.": "10.0.0.5"} {
		wantA(t, ask(t, "udp", first, question(name, mdns.TypeA)), want)
	}
	wantA(t, ask(t, "tcp", second, question("a.svc.cluster.local.", mdns.TypeA)), "10.0.0.5")
	if m := ask(t, "udp", second, question("made.example.org.", mdns.TypeA)); m.Rcode != mdns.RcodeRefused {
		t.Errorf("the second address, which the root block leaves out: %v", m)
	}
	if m := ask(t, "udp", second, question("x.who.example.", mdns.TypeA)); len(m.Extra) == 0 {
		t.Errorf("whoami, at every address: %v", m)
	}
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", profiles))
	if err != nil {
		t.Errorf("pprof: %v", err)
	} else {
		conn.Close()
	}
	for _, address := range []string{first, second} {
		if m := ask(t, "udp", address, question("n.probe.neardns.invalid.", mdns.TypeTXT)); len(m.Answer) != 1 {
			t.Errorf("the probe at %s: %v", address, m)
		}
	}
}

func at(cfg dns.Config, i int) string {
	return netip.AddrPortFrom(cfg.Addresses[i], cfg.Port).String()
}

func nodeCache(text string) dns.Config {
	return dns.Config{Addresses: []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("10.96.0.10")}, Binds: "nodelocaldns",
		Override: text, OverrideName: "base", Misses: 1024, Connections: 1024}
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
		text, err := dns.Render(nodeCache(". {\n errors\n " + bind + "\n forward . 192.0.2.53\n}"))
		if err != nil {
			text = err.Error()
		}
		if !strings.Contains(text, want) || strings.HasPrefix(want, "bind ") && err == nil && !strings.Contains(text, "    "+want+"\n") {
			t.Errorf("%q: want %q in\n%s", bind, want, text)
		}
	}
	// Misses are bounded where nothing else bounds them, and answers over UDP in any case.
	text, err := dns.Render(nodeCache(". {\n bufsize 4096\n forward . 192.0.2.53\n}\na. {\n cancel 1s\n forward . 192.0.2.53\n}\nb. {\n whoami\n}"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(text, "cancel 4s") != 1 || strings.Count(text, "cancel 1s") != 1 || strings.Count(text, "bufsize 1232") != 3 || !strings.Contains(text, "# Made smaller: bufsize") {
		t.Errorf("rendered:\n%s", text)
	}
}

func TestLook(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:90de:d95::a")}
	got, err := dns.Look("base", `cluster.local:53 in-addr.arpa:53 {
    prometheus :9253
    health 169.254.20.10:8080 {
        lameduck 5s
    }
    forward . 10.96.0.11
}
.:53 {
    prometheus :9253
    health fd00:90de:d95::a:8081
    ready
    forward . 192.0.2.1 169.254.20.10:5353
}
other {
    prometheus
    health
    forward a. 192.0.2.1 {
        except 169.254.20.10
    }
}
`, own)
	if err != nil {
		t.Fatal(err)
	}
	want := dns.Survey{Zones: []string{"cluster.local", "in-addr.arpa", ".", "other"}, Prometheus: []string{":9253", "localhost:9153"},
		Health: []string{"169.254.20.10:8080", "[fd00:90de:d95::a]:8081", ":8080"}, Ready: []string{":8181"},
		Forward: map[string]netip.Addr{"cluster.local": netip.MustParseAddr("10.96.0.11"), "in-addr.arpa": netip.MustParseAddr("10.96.0.11"), ".": netip.MustParseAddr("192.0.2.1"), "other": netip.MustParseAddr("192.0.2.1")}}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for says, text := range map[string]string{
		"line 2: forward to 169.254.20.10, an address of the agent itself": ". {\n forward . 169.254.20.10\n}",
		"forward to [fd00:90de:d95::a]:53":                                 ". {\n forward . 192.0.2.1 [fd00:90de:d95::a]:53\n}",
		"take out the port":                                                ".:5353 {\n whoami\n}",
		"Unknown directive 'kubernetes'":                                   ". {\n kubernetes\n}",
	} {
		if _, err := dns.Look("base", text, own); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
}

func TestDirectives(t *testing.T) {
	got := dns.Directives()
	for _, d := range strings.Fields("bind bufsize cache debug dns64 errors forward health hosts loadbalance log loop prometheus pprof reload rewrite template timeouts trace whoami ready ask") {
		if !slices.Contains(got, d) {
			t.Errorf("%s is missing from %v", d, got)
		}
	}
	if slices.Contains(got, "probe") || slices.Contains(got, "metrics") || !slices.IsSorted(got) {
		t.Errorf("%v", got)
	}
}
