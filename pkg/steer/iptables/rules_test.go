package iptables_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestRepair damages the rules in many ways; Verify must see each, and Apply must restore the rules and touch no other program's.
func TestRepair(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newRig(t, variant)
		must(t, r.rules.Verify(r.Host))
		whole := dump(r.Node.Host)
		must(t, r.rules.Apply(r.Host))
		testutil.Equal(t, "rules that were applied twice", whole, dump(r.Node.Host))
		program := func(args ...string) func() {
			return func() { r.Node.Host.Run(append([]string{string(variant), "-w"}, args...)...) }
		}
		for name, damage := range map[string]func(){
			"a chain flushed": program("-t", "raw", "-F", "NEARDNS-UDP"),
			"a base chain":    program("-t", "raw", "-F", "PREROUTING"),
			"a rule taken":    program("-t", "nat", "-D", "NODE-LOCAL-DNS", "1"),
			"a rule added":    program("-t", "nat", "-A", "NODE-LOCAL-DNS", "-j", "RETURN"),
			"a jump taken":    program("-t", "filter", "-D", "FORWARD", "-j", "NEARDNS-FORWARD"),
			"a jump twice":    program("-t", "raw", "-I", "OUTPUT", "1", "-j", "NEARDNS-RAW-OUTPUT"),
			"a whole table, by a restore that keeps nothing": func() {
				r.Node.Host.RunInput("*raw\nCOMMIT\n", string(variant)+"-restore", "-w")
			},
			"the fallback's jump": program("-t", "nat", "-D", "PREROUTING", "-j", "NODE-LOCAL-DNS"),
		} {
			damage()
			var drift *steer.DriftError
			if err := r.rules.Verify(r.Host); !errors.As(err, &drift) {
				t.Errorf("%s is not seen: %v", name, err)
			}
			must(t, r.rules.Apply(r.Host))
		}
		must(t, r.rules.Verify(r.Host))
		// Only the order may differ, because a restored jump comes first again.
		testutil.Equal(t, "repaired", sorted(whole), sorted(dump(r.Node.Host)))
	})
}

// TestRepairByAnother damages the rules while no agent runs, in a way that leaves the number of rules and their targets: the next
// agent repairs them, and starts no program as long as nothing changes after that, whatever others do in their chains.
func TestRepairByAnother(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newRig(t, variant)
		pod := r.Steered("pod")
		program := string(variant)
		r.Node.Host.Run(program, "-w", "-t", "nat", "-R", "NEARDNS-GIVE-BACK", "2", "-d", "169.254.20.11", "-p", "udp", "--dport", "53", "-j", "DNAT", "--to-destination", "10.96.0.99:53")
		stats := new(iptables.Stats)
		next, err := iptables.Open(r.Node.Host.FD(), variant, stats)
		must(t, err)
		defer next.Close()
		_, err = next.Repair(r.Host)
		must(t, err)
		r.Want("KUBEDNS", pod.NetNS, "mended", r.Servers()...)
		runs := stats.Runs.Load()
		if runs == 0 {
			t.Error("nothing is counted")
		}
		for range 3 {
			r.Want("KUBEDNS", pod.NetNS, "counters go on", r.Servers()...)
			r.Node.Host.Run(program, "-w", "-t", "nat", "-N", "KUBE-SVC-NEW")
			r.Node.Host.Run(program, "-w", "-t", "nat", "-X", "KUBE-SVC-NEW")
			drift, err := next.Repair(r.Host)
			if err != nil || len(drift) > 0 {
				t.Errorf("nothing of ours changed: %v, %v", drift, err)
			}
		}
		testutil.Equal(t, "programs that were started", runs, stats.Runs.Load())
		for damage, want := range map[string]string{"-F NEARDNS-UDP": "NEARDNS-UDP has other rules", "-R NEARDNS-UDP 3 -i neardns-odd -j DROP": "was replaced"} {
			r.Node.Host.Run(append([]string{program, "-w", "-t", "raw"}, strings.Fields(damage)...)...)
			testutil.Eventually(t, func() error { // a check soon after the last one is postponed
				drift, err := next.Repair(r.Host)
				if err == nil && !strings.Contains(strings.Join(drift, "; "), want) {
					err = fmt.Errorf("after %s found %q, not %q", damage, drift, want)
				}
				return err
			})
			if now := dump(r.Node.Host); strings.Contains(now, "neardns-odd") {
				t.Errorf("after %s:\n%s", damage, now)
			}
		}
	})
}

// TestWatch: each change of neardns's chains and of the jumps to them causes a tick, without the regular ones.
func TestWatch(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newRig(t, variant)
		program := string(variant)
		for _, damage := range [][]string{{"nat", "-D", "PREROUTING", "-j", "NODE-LOCAL-DNS"}, {"mangle", "-F"}} {
			ctx, cancel := context.WithCancel(t.Context())
			ticks, err := r.rules.Changes(ctx)
			must(t, err)
			r.Node.Host.Run(append([]string{program, "-w", "-t"}, damage...)...)
			testutil.Receive(t, ticks)
			cancel()
			for range ticks { //nolint:revive // until it is closed
			}
			must(t, r.rules.Apply(r.Host))
		}
	})
}

func sorted(text string) []string { return slices.Sorted(strings.Lines(text)) }

// TestRemove: afterwards, and after Supported, the node is as before.
func TestRemove(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		testutil.RequireRoot(t)
		ns := testutil.NewNS(t, "host")
		b := open(t, ns, variant)
		wantPresent(t, b, false, "on a new node")
		must(t, b.Remove())
		must(t, b.Supported())
		if left := dump(ns); strings.Contains(left, "NEARDNS") || strings.Contains(left, "NODE-LOCAL") {
			t.Errorf("left:\n%s", left)
		}
		ns.Run(string(variant), "-t", "nat", "-A", "PREROUTING", "-p", "udp", "-j", "ACCEPT")
		before := dump(ns)
		redirects, err := steer.Complete([]steer.Redirect{{ClusterDNS: addr("10.96.0.10")}, {ClusterDNS: addr("fd00:96::a")}})
		must(t, err)
		must(t, b.Apply(steer.Host{Redirects: redirects}))
		must(t, b.Apply(steer.Pod{Redirects: redirects}))
		wantPresent(t, b, true, "after Apply")
		must(t, b.Remove())
		after := dump(ns)
		if strings.Contains(after, "NEARDNS") || strings.Contains(after, "NODE-LOCAL-DNS") || !strings.Contains(after, "-A PREROUTING -p udp -j ACCEPT") {
			t.Errorf("removed:\n%s\nbefore:\n%s", after, before)
		}
		wantPresent(t, b, false, "after Remove")
	})
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }
