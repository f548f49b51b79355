package steering

import (
	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/testutil"
)

// wantReady waits until `neardns-agent ready` reports so to the kubelet, with a reason where it is not ready.
func (n *node) wantReady(when string, ready bool, why string) {
	n.t.Helper()
	// A start of the program for each look costs fifty times the CPU.
	n.awaitStatus(func(a *agentStatus) error {
		return testutil.ErrorIf(a.Ready != ready, "%s: ready is %t", when, a.Ready)
	})
	n.prints(map[bool]int{true: cli.Good, false: cli.Degraded}[ready], "ready", why)
}
