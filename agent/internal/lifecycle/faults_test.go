package lifecycle

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/agent/internal/config/nodecache"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// The -conf file is written again at the next reload, also if the template is still the same.
func TestCorefileIsWrittenAgain(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "coredns")
	c := &nodeCache{log: slog.New(slog.DiscardHandler), opts: nodecache.Options{Corefile: filepath.Join(folder, "Corefile")}}
	testutil.Must(t, os.WriteFile(folder, nil, 0o600)) // a file instead of the folder
	c.write("template")
	testutil.Must(t, os.Remove(folder))
	c.write("template")
	if text, err := os.ReadFile(c.opts.Corefile); string(text) != "template" {
		t.Errorf("the file has %q, %v", text, err)
	}
}

// In node-cache mode the agent does not look for a runtime's NRI socket.
func TestNodeCacheWithoutNRI(t *testing.T) {
	testutil.Equal(t, "socket of the NRI plugin", "", new(nodeCache).defaults().ResolvConf.NRI)
}

// Faults are counted under the label values that node-cache's alerts use.
func TestFaultsByNodeCachesNames(t *testing.T) {
	bad := errors.New("bad")
	byLock := fmt.Errorf("write rules: %w", iptables.ErrLocked)
	byWords := errors.New("running [/sbin/iptables -t filter -N X --wait 2]: exit status 4: Another app is currently holding the xtables lock")
	for name, c := range map[string]struct {
		part, link string
		err        error
		want       []string
	}{
		"rules":                       {"rules", "", nil, nil},
		"rules refused":               {"rules", "", bad, []string{"iptables"}},
		"rules locked out":            {"rules", "", byLock, []string{"iptables_lock"}},
		"firewall":                    {"firewall", "", nil, nil},
		"firewall refused":            {"firewall", "", bad, []string{"iptables"}},
		"firewall locked out":         {"firewall", "", byWords, []string{"iptables_lock"}},
		"link":                        {"link", "lo", nil, nil},
		"link that is there":          {"link", "lo", bad, []string{"interface_check"}},
		"link that could not be made": {"link", "neardns-none", bad, []string{"interface_add", "interface_check"}},
	} {
		faults := nodecache.NewFaults()
		place := &nodeCache{faults: faults, linked: make(chan struct{}), opts: nodecache.Options{Link: nodecache.Link{Interface: c.link}}}
		place.partChecked(c.part, c.err)
		select {
		case <-place.linked:
		default:
			if c.part == "link" {
				t.Errorf("%s: the endpoints still wait for the link", name)
			}
		}
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(faults)
		families, err := registry.Gather()
		testutil.Must(t, err)
		var got []string
		for _, m := range families[0].GetMetric() {
			if m.GetCounter().GetValue() == 1 {
				got = append(got, m.GetLabel()[0].GetValue())
			}
		}
		testutil.Equal(t, name, c.want, got)
	}
}
