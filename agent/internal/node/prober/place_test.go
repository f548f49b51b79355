package prober

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// childVariable makes this test binary a process that holds a prober in its own netns until it is killed.
const childVariable = "NEARDNS_TEST_PROBER_CHILD"

func child() {
	redirects, err := steer.Complete([]steer.Redirect{{ClusterDNS: steer.ProbeSource4.Next().Next()}, {ClusterDNS: steer.ProbeSource6.Next().Next()}})
	if err == nil {
		var p *Prober
		if p, err = New(Config{Redirects: redirects, Log: slog.New(slog.DiscardHandler)}); err == nil {
			fmt.Println("ready")
			// A connection in the making must not keep the netns alive either.
			_, _ = open(&p.sockets, unix.SOCK_STREAM, steer.ProbeSource4)
			for { // not select: the runtime ends a program without cgo whose goroutines all wait
				_, _ = unix.Poll(nil, -1)
			}
		}
	}
	panic(err)
}

func startChild(t *testing.T, ns *testutil.NetNS) *testutil.Process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childVariable+"=1")
	process := ns.StartCmd(cmd)
	testutil.Eventually(t, func() error {
		out := process.Output()
		return testutil.ErrorIf(!strings.Contains(out, "ready"), "not ready: %s", out)
	})
	return process
}

func hasLink(ns *testutil.NetNS) bool {
	return strings.Contains(ns.Run("ip", "-o", "link"), steer.ProberInterface)
}

// One prober a netns: the error of a second one names the first; a killed one leaves nothing, and its lock is free at once.
func TestKilledProberLeavesNothing(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.Dual})
	process := startChild(t, n.Host)
	if !hasLink(n.Host) {
		t.Fatal("the child has no link")
	}
	_, err := New(n.config())
	if !errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", process.PID())) {
		t.Fatalf("a second prober: %v, want ErrHeld with process %d", err, process.PID())
	}
	if !hasLink(n.Host) {
		t.Fatal("the refused prober took the first one's link away")
	}
	process.Kill()
	testutil.Eventually(t, func() error { return testutil.ErrorIf(hasLink(n.Host), "the link is still there") })
	second := startChild(t, n.Host)
	second.Kill()
	// At once: the dead one's link may still be on its way out.
	p := n.prober(t)
	wantOK(t, probe(t, p, n.ClusterDNS()[0], steer.UDP))
	// The kernel takes the dead netns apart in the background; that must not take ours with it.
	testutil.Eventually(t, func() error {
		_, err := p.Repair()
		return err
	})
	wantOK(t, probe(t, p, n.ClusterDNS()[0], steer.TCP))
}

func TestPredecessorsLinkIsReplaced(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.Dual})
	other := testutil.NewNS(t, "predecessor")
	testutil.VethPair(t, n.Host, steer.ProberInterface, other, ownInterface)
	other.SetMAC(ownInterface, ownMAC().String())
	p := n.prober(t)
	wantOK(t, probe(t, p, n.ClusterDNS()[0], steer.UDP))
}

func TestForeignLinkOfProbersName(t *testing.T) {
	n := newNode(t, testutil.Options{})
	n.Host.Bridge(steer.ProberInterface)
	_, err := New(n.config())
	testutil.WantError(t, err, "is a bridge of another program")
	if !hasLink(n.Host) {
		t.Error("the foreign link was deleted")
	}
}

func TestProberWhereIPv6StartsOff(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.Dual})
	n.Host.Sysctl("net.ipv6.conf.default.disable_ipv6", "1")
	p := n.prober(t)
	for _, a := range n.ClusterDNS() {
		wantOK(t, probe(t, p, a, steer.UDP))
	}
}

// With strict reverse path filtering the prober's packets must pass as pods' do.
func TestProberUnderReversePathFilter(t *testing.T) {
	n := newNode(t, testutil.Options{Proxy: testutil.IPTables})
	n.Host.Sysctl("net.ipv4.conf.all.rp_filter", "1")
	n.Host.Sysctl("net.ipv4.conf.default.rp_filter", "1")
	p := n.prober(t)
	wantOK(t, probe(t, p, n.ClusterDNS()[0], steer.UDP))
	testutil.Check(t, p.CheckFallback(t.Context(), n.ClusterDNS()[0], serviceName))
}
