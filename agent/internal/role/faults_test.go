package role

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/nodecache"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
)

// Parts of the loop that fail as they are told.
type (
	failingRules struct {
		node.Rules
		err error
	}
	failingLink struct {
		node.Link
		err error
	}
	failingFirewall struct{ err error }
)

func (f failingRules) Repair(steer.Ruleset) ([]string, error) { return nil, f.err }

func (f failingLink) Ensure(string, []netip.Addr) (string, error) { return "", f.err }

func (f failingFirewall) Ensure([]netip.Addr, bool) (string, error) { return "", f.err }

// What goes wrong is counted under the words that node-cache's alerts go by, and handed on.
func TestFaultsByNodeCachesNames(t *testing.T) {
	bad := errors.New("bad")
	byLock := fmt.Errorf("write rules: %w", iptables.ErrLocked)
	byWords := errors.New("running [/sbin/iptables -t filter -N X --wait 2]: exit status 4: Another app is currently holding the xtables lock")
	rules := func(err error) func(*nodecache.Faults) error {
		return func(f *nodecache.Faults) error {
			_, err := countedRules{failingRules{err: err}, f}.Repair(steer.Host{})
			return err
		}
	}
	firewall := func(err error) func(*nodecache.Faults) error {
		return func(f *nodecache.Faults) error {
			_, err := countedFirewall{failingFirewall{err}, f}.Ensure(nil, true)
			return err
		}
	}
	link := func(name string, err error) func(*nodecache.Faults) error {
		return func(f *nodecache.Faults) error {
			_, err := countedLink{failingLink{err: err}, &nodeCache{faults: f, linked: make(chan struct{})}}.Ensure(name, nil)
			return err
		}
	}
	for name, c := range map[string]struct {
		do   func(*nodecache.Faults) error
		err  error
		want []string
	}{
		"rules":                       {rules(nil), nil, nil},
		"rules refused":               {rules(bad), bad, []string{"iptables"}},
		"rules locked out":            {rules(byLock), iptables.ErrLocked, []string{"iptables_lock"}},
		"firewall":                    {firewall(nil), nil, nil},
		"firewall refused":            {firewall(bad), bad, []string{"iptables"}},
		"firewall locked out":         {firewall(byWords), byWords, []string{"iptables_lock"}},
		"link":                        {link("lo", nil), nil, nil},
		"link that is there":          {link("lo", bad), bad, []string{"interface_check"}},
		"link that could not be made": {link("neardns-none", bad), bad, []string{"interface_add", "interface_check"}},
	} {
		faults := nodecache.NewFaults()
		if err := c.do(faults); !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", name, err, c.err)
		}
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(faults.Collector())
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range families[0].GetMetric() {
			if m.GetCounter().GetValue() == 1 {
				got = append(got, m.GetLabel()[0].GetValue())
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
