//go:build timing

package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestTimingShortFaults is the short form of `make faults`: one round on ours, and one fault on the stock CoreDNS, which shows that
// what is lost is seen. What ours may lose is its promise and what the control lost in the same seconds, which queries kube-dns directly.
//
// State: TestKubeDNSRestarts (integration/steering), TestEndAndStart (integration/steering), TestLinkFaults (integration/environment).
// Bound: TestVerdict, TestEvidence.
func TestTimingShortFaults(t *testing.T) {
	testutil.RequireRoot(t)
	o := testOptions(t)
	o.short = true
	faults, err := o.chosen()
	testutil.Must(t, err)
	dir := scratch(t)
	ours, stock := newOurs(t, o.bin, dir, o.lease), newStock(t, o.bin, dir)
	for _, f := range faults {
		got := tried(t, ours, f)
		if want := int((lead + f.length).Seconds() * 1000); got.UDP.Sent != want {
			t.Errorf("%s: %d queries of %d sent", f.name, got.UDP.Sent, want)
		}
		if f.name != "kill" {
			continue
		}
		if got.UDP.Direct == 0 {
			t.Error("kube-dns answered nothing while the agent was down for 3 s")
		}
		if got.InKernel < got.UDP.Sent/10 {
			t.Errorf("the kernel answered %d of %d", got.InKernel, got.UDP.Sent)
		}
		stock.restore(false)
		theirs := try(stock, f, lead)
		t.Logf("%s, stock: %s", f.name, theirs.progress())
		if theirs.UDP.Missed() <= got.UDP.Missed() || theirs.tcpMissed() <= got.tcpMissed() {
			t.Errorf("a dead stock CoreDNS lost no more than ours: %s; ours: %s", theirs.progress(), got.progress())
		}
	}
}

// tried tries a fault once, and fails where it costs more than its limit and what the control lost meanwhile. The machine may also have
// kept the server alone from a CPU: queries of that time may be lost, too.
func tried(t *testing.T, s *stand, f fault) outcome {
	t.Helper()
	f.control = true
	s.restore(false)
	before := s.inKernel()
	got := try(s, f, max(f.lead, lead))
	got.InKernel = s.inKernel() - before
	t.Logf("%s: %s; the control lost %d of %d, gap %v; waited for a CPU %v, load late by %v", f.name, got.progress(), got.Control.Missed(), got.Control.Sent, got.Control.Gap, got.Waited, got.Late)
	if got.Control.Sent == 0 || got.Control.Direct == 0 {
		t.Errorf("%s: the control shows nothing: %+v", f.name, got.Control)
	}
	room, waited := f.limit, got.Waited+got.Late+got.Died
	room.kept = 0 // printed
	room.lost += got.Control.Missed() + int(1000*waited.Seconds())
	room.tcp += got.Control.Missed() + int(200*waited.Seconds())
	if room.gap > 0 {
		room.gap += got.Control.Gap + waited
	}
	if beyond, _ := room.verdict([]outcome{got}); len(beyond) > 0 {
		t.Errorf("%s: %s\n%s\n%v", f.name, strings.Join(beyond, "; "), got.Line, got.Reasons)
	}
	return got
}

// TestTimingWithoutKernelHits: without hits in the kernel, which answers on while the agent is dead, a kill costs no more than with them.
//
// State: TestEndAndStart (integration/steering). Bound: TestTrace (pkg/steer/nft): the dead agent's queries go to kube-dns.
func TestTimingWithoutKernelHits(t *testing.T) {
	testutil.RequireRoot(t)
	o := testOptions(t)
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	o.flags(fs)
	testutil.Must(t, fs.Parse([]string{"-kernel", "off", "-only", "kill"}))
	testutil.Equal(t, "the command", "make faults ONLY=kill KERNEL=off", o.command())
	faults, err := o.chosen()
	testutil.Must(t, err)
	if got := tried(t, newOurs(t, o.bin, scratch(t), o.lease), faults[0]); got.InKernel > 0 {
		t.Errorf("the kernel answered %d", got.InKernel)
	}
}

func testOptions(t *testing.T) *options {
	t.Helper()
	root, err := filepath.Abs("../..")
	testutil.Must(t, err)
	o := &options{root: root, rounds: 1}
	for _, name := range binaries {
		if _, err := os.Stat(o.bin(name)); err != nil {
			testutil.Skip(t, "no bin/"+name+": `make build tools` makes it")
		}
	}
	return o
}

// TestTimingOOM: the kernel ends the server in its cgroup, not the process next to it. The stand before and after is the fault
// table's, whose cache is filled at a rate.
//
// State: TestEndAndStart (integration/steering). Bound: TestTrace (pkg/steer/nft), as after any other end.
func TestTimingOOM(t *testing.T) {
	testutil.RequireRoot(t)
	o := testOptions(t)
	if why := memoryCgroup(t, nil); why != "" {
		t.Fatal(why)
	}
	s := newOurs(t, o.bin, scratch(t), o.lease)
	r := &run{s: s, begun: time.Now()}
	r.oom()
	if !s.gone() {
		t.Error("the server lives")
	}
	s.restore(false) // and it comes back
}

// A footprint sees what is left behind on purpose, and goes back when that is gone: the heap is read under a load of seconds.
//
// State: TestLeaks, TestElements. Bound: none, it measures memory, not time.
func TestTimingFootprint(t *testing.T) {
	testutil.RequireRoot(t)
	o := testOptions(t)
	s := newOurs(t, o.bin, scratch(t), o.lease)
	before := s.settled(footprint{})
	if before.Heap < 0.1 || before.Heap > 200 { // an empty cache leaves less than 1
		t.Errorf("%v MiB of heap are alive", before.Heap)
	}
	if before.Goroutines < 5 || before.Descriptors < 5 || before.Resident < 5 || before.Rules < 50 || before.Elements["ours4"] < 2 || before.Passing < 2 || before.Links < 4 || len(before.Files) < 3 {
		t.Errorf("implausible: %+v", before)
	}
	s.node.Host.Run("ip", "link", "add", "left0", "type", "bridge")
	s.node.Host.Run("nft", "add", "table", "inet", "left")
	testutil.Must(t, os.WriteFile(s.path("state/left"), nil, 0o600))
	if got := strings.Join(before.leaks(s.footprint()), "; "); !strings.Contains(got, "links") || !strings.Contains(got, "rules") || !strings.Contains(got, "/state/left") {
		t.Errorf("not seen: %q", got)
	}
	s.node.Host.Run("ip", "link", "del", "left0")
	s.node.Host.Run("nft", "delete", "table", "inet", "left")
	testutil.Must(t, os.Remove(s.path("state/left")))
	if got := before.leaks(s.settled(before)); len(got) > 0 {
		t.Errorf("still there: %q", got)
	}
}
