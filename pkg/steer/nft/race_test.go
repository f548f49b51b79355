package nft_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

// withCounters makes a host table that has only two counters, which are not zero.
const withCounters = `
table inet neardns {
	counter delivered_udp { packets 1000 bytes 64000 }
	counter fallback_udp { packets 7 bytes 700 }
}
`

func wantCounters(t *testing.T, backend *nft.Nftables) {
	t.Helper()
	counters, err := backend.Counters()
	must(t, err)
	if got := counters[steer.CounterDeliveredUDP]; got != (steer.Counter{Packets: 1000, Bytes: 64000}) {
		t.Errorf("counter %v, not what it was", got)
	}
	if got := counters[steer.CounterFallbackUDP]; got != (steer.Counter{Packets: 7, Bytes: 700}) {
		t.Errorf("counter %v, not what it was", got)
	}
}

// 40 ADDs at once, each with a back end of its own for the host and for its pod, while an agent repairs and another
// program damages the rules: at the end each rule is there once, and each counter has its value.
func TestEnsuresBesideRepair(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "race")
	ns.RunInput(withCounters, "nft", "-f", "-")
	pods := make([]*testutil.NetNS, 4)
	for i := range pods {
		pods[i] = testutil.NewNS(t, fmt.Sprintf("pod%d", i))
	}
	stop := make(chan struct{})
	var beside sync.WaitGroup
	loop := func(f func() error) {
		beside.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := f(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	agent := open(t, ns)
	loop(func() error { return agent.Apply(host()) })
	chains := []string{"switch4", "prerouting", "tcp6", "output"}
	var turn int
	loop(func() error {
		turn++
		_, err := ns.TryRun("", "nft", "flush chain inet neardns "+chains[turn%len(chains)])
		if err != nil && strings.Contains(err.Error(), "No such file") {
			err = nil // the table does not exist yet
		}
		return err
	})
	var adds errgroup.Group
	for i := range 40 {
		adds.Go(func() error {
			onHost, err := nft.Open(ns.FD())
			if err != nil {
				return err
			}
			inPod, err := nft.Open(pods[i%len(pods)].FD())
			if err != nil {
				return err
			}
			pod := steer.Pod{Redirects: []steer.Redirect{redirect4, redirect6}}
			return errors.Join(onHost.Ensure(host()), inPod.Apply(pod), inPod.Verify(pod), onHost.Close(), inPod.Close())
		})
	}
	if err := adds.Wait(); err != nil {
		t.Error(err)
	}
	close(stop)
	beside.Wait()
	must(t, agent.Apply(host()))
	must(t, agent.Verify(host()))
	for _, p := range pods {
		must(t, open(t, p).Verify(steer.Pod{Redirects: []steer.Redirect{redirect4, redirect6}}))
	}
	wantCounters(t, agent)
}

// helperNS, in the environment, is the path of a netns. If it is set, this test binary is a process that calls Ensure,
// Exempt, Apply and Verify there three times, as several plugin and agent processes do at once.
const helperNS = "STEER_TEST_HELPER_NETNS"

func TestMain(m *testing.M) {
	if path := os.Getenv(helperNS); path != "" {
		os.Exit(helper(path))
	}
	os.Exit(m.Run())
}

func helper(path string) int {
	f, err := os.Open(path) //nolint:gosec // the test's own path
	if err == nil {
		var table *nft.Nftables
		if table, err = nft.Open(int(f.Fd())); err == nil {
			for range 3 {
				err = errors.Join(err, table.Ensure(host()), table.Exempt([]netip.Addr{addr("10.244.0.1")}, nil), table.Apply(host()), table.Verify(host()), table.Exempt(nil, []netip.Addr{addr("10.244.0.1")}))
			}
		}
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// The same with processes, which share only the kernel.
func TestProcessesRace(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "race")
	ns.RunInput(withCounters, "nft", "-f", "-")
	var group errgroup.Group
	for range 8 {
		group.Go(func() error {
			cmd := exec.Command(os.Args[0]) //nolint:gosec // this very binary
			cmd.Env = append(os.Environ(), helperNS+"="+ns.Path())
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
	must(t, group.Wait())
	backend := open(t, ns)
	must(t, backend.Verify(host()))
	wantCounters(t, backend)
	if got := ns.Run("nft", "list", "set", "inet", "neardns", "exempt4"); strings.Contains(got, "elements") {
		t.Errorf("left exempt:\n%s", got)
	}
}
