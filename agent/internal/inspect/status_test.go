package inspect

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/hostsfile"
	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

// TestStatusText holds what people read to a golden text.
func TestStatusText(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	red := steer.Redirect{ClusterDNS: addr("10.96.0.10"), Steering: addr("169.254.20.11")}
	serving := &Status{
		Switch:      true,
		ConfigFault: "the file has a fault, and the agent serves by the one before: node.yaml:3:1: redirects: has no value",
		Agent: &node.Status{Instance: "abc", PID: 7, Version: "v1", Started: since,
			LastFault: &node.Fault{Time: since, Part: "lease 169.254.20.11/udp", What: "no answer"},
			Process:   node.Process{Unknown: []string{`node.yaml:4:1: cash: unknown key: write "cache"`}},
			External:  "kube-dns, because its Corefile has the zone corp.example",
			Cache:     &node.CacheStatus{Bytes: 2 << 20, Limit: 32 << 20, Hits: 9, Misses: 3},
			Repair:    "2026-01-02T03:04:06Z link: set up", Repairs: map[string]int{"link": 1, "rules": 2}, Serving: true, Ready: true,
			Redirects: []steer.Redirect{red},
			Proven:    addrs("10.96.0.10"), Leases: []node.LeaseStatus{{Address: addr("169.254.20.11"), Protocol: "udp", Held: true, Since: since}}},
		Counters: map[string]steer.Counter{steer.CounterDeliveredUDP: {Packets: 7}},
		Pods: []podReport{{Name: "default/web", Container: "0123456789abcdef", Interface: "eth0",
			Decisions: []podfile.Decision{{Redirect: red, State: podfile.Steered}}}},
		Hosts: &Hosts{Present: true, Services: []HostsLine{
			{nodestate.HostsService{Name: "shop/registry", Addresses: []string{"10.96.0.5", "fd00::5"}, Answered: since}, hostsfile.Current},
			{nodestate.HostsService{Name: "shop/theirs", Left: []string{"theirs.shop.svc"}}, hostsfile.Foreign}}},
	}
	golden.Check(t, "status.txt", serving.Text(false))
	if text := serving.Text(true); !strings.Contains(text, "0123456789abcdef") {
		t.Errorf("-o wide shortens the container's ID:\n%s", text)
	}
	dead := Status{NoAgent: "no agent runs on this node (connect: no such file or directory)"}
	if text := dead.Text(false); !strings.HasPrefix(text, "NOT SERVING: "+dead.NoAgent+"\n") ||
		!strings.Contains(text, "the switch is not installed") {
		t.Errorf("without an agent:\n%s", text)
	}
	dead.Switch = true
	if text := dead.Text(false); text != "NOT SERVING: "+dead.NoAgent+"; pods are answered by kube-dns\n" {
		t.Errorf("without an agent, but with the switch:\n%s", text)
	}
	dead.NoAgent, dead.Leases = "read the agent's /status: unexpected end of JSON input", []kernelLease{{"169.254.20.11", "udp", "500ms"}}
	if text := dead.Text(false); !strings.HasPrefix(text, "UNKNOWN: "+dead.NoAgent+"; ") || strings.Contains(text, "kube-dns") {
		t.Errorf("an agent that serves, but shows no status:\n%s", text)
	}
}

// A user without access to the agent's socket gets an error that names it, even if there are no rules to read: the agent may well serve.
func TestStatusNeedsRoot(t *testing.T) {
	testutil.RequireRoot(t)
	dir := t.TempDir()
	testutil.Must(t, errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755)))
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(dir, nodestate.AgentSocketName))
	testutil.Must(t, err)
	defer l.Close()
	testutil.Must(t, errors.Join(os.Chmod(l.Addr().String(), 0o600), syscall.Seteuid(65534)))
	defer func() { testutil.Must(t, syscall.Seteuid(0)) }()
	conf := config.Default()
	conf.Arrangement, conf.StateDir = config.ArrangementTransparent, dir
	in := &Inspector{Conf: &conf, ReadFile: os.ReadFile}
	if s, err := in.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "no access to the agent's socket") {
		t.Errorf("%v; %+v", err, s)
	}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func addrs(s ...string) (out []netip.Addr) {
	for _, a := range s {
		out = append(out, addr(a))
	}
	return out
}
