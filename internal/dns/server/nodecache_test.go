package server_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
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
	text, err := os.ReadFile("testdata/nodecache.corefile")
	testutil.Must(t, err)
	cfg.Override = strings.NewReplacer("UP", up.addr, "PPROF", fmt.Sprint(profiles)).Replace(string(text))
	start(t, cfg)
	first, second := at(cfg, 0), at(cfg, 1)
	for name, want := range map[string]string{"a.svc.cluster.local.": "10.0.0.5", "made.example.org.": "10.0.0.9",
		"six.example.org.": "10.0.0.6", "old.example.org.": "10.0.0.5"} {
		wantA(t, testutil.Exchange(t, "udp", first, question(name, mdns.TypeA)), want)
	}
	wantA(t, testutil.Exchange(t, "tcp", second, question("a.svc.cluster.local.", mdns.TypeA)), "10.0.0.5")
	if m := testutil.Exchange(t, "udp", second, question("made.example.org.", mdns.TypeA)); m.Rcode != mdns.RcodeRefused {
		t.Errorf("the second address, which the root block leaves out: %v", m)
	}
	if m := testutil.Exchange(t, "udp", second, question("x.who.example.", mdns.TypeA)); len(m.Extra) == 0 {
		t.Errorf("whoami, at every address: %v", m)
	}
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", profiles))
	if err != nil {
		t.Errorf("pprof: %v", err)
	} else {
		conn.Close()
	}
	for _, address := range []string{first, second} {
		if m := testutil.Exchange(t, "udp", address, question("n.probe.neardns.invalid.", mdns.TypeTXT)); len(m.Answer) != 1 {
			t.Errorf("the probe at %s: %v", address, m)
		}
	}
}

func at(cfg server.Config, i int) string {
	return netip.AddrPortFrom(cfg.Addresses[i], cfg.Port).String()
}
