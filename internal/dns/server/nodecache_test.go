package server_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/server"
	"github.com/neardns/neardns/pkg/testutil"
)

// Each plugin that node-cache links (its plugin.cfg) has its effect, except for those that the agent replaces.
func TestNodeCachePlugins(t *testing.T) {
	up := newUpstream(t, address("10.0.0.5"))
	cfg := config(t, up)
	cfg.Binds = "nodelocaldns"
	cfg.Addresses = append(cfg.Addresses, netip.MustParseAddr("127.0.0.2"))
	cfg.Port = testutil.FreePort(t, "127.0.0.1", "127.0.0.2")
	profiles := testutil.FreePort(t, "127.0.0.1")
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
	for name, want := range map[string]string{"a.svc.cluster.local.": "10.0.0.5", "made.example.org.": "10.0.0.9",
		"six.example.org.": "10.0.0.6", "old.example.org.": "10.0.0.5"} {
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

func at(cfg server.Config, i int) string {
	return netip.AddrPortFrom(cfg.Addresses[i], cfg.Port).String()
}
