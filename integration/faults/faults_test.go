package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/integration/cited"
	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) {
	// The load generator is this program, so here it is the test binary.
	if called, err := verbs(os.Args); called {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Geteuid() == 0 {
		if err := ownBPF(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func TestChosen(t *testing.T) {
	names := regexp.MustCompile(`^[a-z-]+$`)
	seen := map[string]bool{}
	for _, f := range allFaults() {
		if !names.MatchString(f.name) || seen[f.name] || f.title == "" || f.length <= 0 {
			t.Errorf("fault %+v", f)
		}
		seen[f.name] = true
		if lead+f.length > time.Minute {
			t.Errorf("%s is longer than a load may be", f.name)
		}
	}
	for only, want := range map[string]int{"": len(seen), "kill": 1, "kill,sigstop": 2, "nonsense": -1, "kill,": -1} {
		o := options{only: only}
		got, err := o.chosen()
		if (err != nil) != (want < 0) || err == nil && len(got) != want {
			t.Errorf("-only %q: %d faults, %v", only, len(got), err)
		}
	}
	o := options{short: true}
	if got, err := o.chosen(); err != nil || len(got) != 4 {
		t.Errorf("-short: %d faults, %v, want four", len(got), err)
	}
}

// TestEvidence: the tests that a fault names run without the tag of the timing tier, and the page names the same.
func TestEvidence(t *testing.T) {
	for _, f := range allFaults() {
		for _, test := range []cited.Test{f.state, f.bound} {
			if source, err := cited.Find("../..", test); err != nil || !source.Built(nil) {
				t.Errorf("%s: %s, in %q of another tier: %v", f.name, test, source.File, err)
			}
		}
	}
	text := testutil.ReadFile(t, "../../"+page)
	_, err := compat.Fill(text, "faults", "")
	testutil.Check(t, err)
	for _, want := range []string{evidence(), tableHead, "Taken by `" + drawnBy + "`"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s does not have this:\n%s", page, want)
		}
	}
}

// TestWithout: which faults are tried with which of the others.
func TestWithout(t *testing.T) {
	got := map[string][]string{}
	for _, f := range allFaults() {
		for _, name := range others() {
			if f.without(name) == "" {
				got[name] = append(got[name], f.name)
			}
		}
	}
	if want := []string{"upstream-dead", "upstream-slow", "flood"}; !slices.Equal(got[bare], want) {
		t.Errorf("a node without a cache has %q, want %q", got[bare], want)
	}
	if len(got[stock]) != len(allFaults())-4 || !slices.Equal(got[stock], got[unbound]) {
		t.Errorf("stock has %q, unbound %q", got[stock], got[unbound])
	}
	if roundsOf("ours") < 20 || roundsOf(stock) < 20 || roundsOf(unbound) != 3 || roundsOf(bare) != 3 {
		t.Error("ours and stock are in all rounds, unbound and bare in three")
	}
}

// TestPromises: what promised faults may cost with iptables' rules, of UDP and TCP together.
func TestPromises(t *testing.T) {
	var o options
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	o.flags(fs)
	testutil.Must(t, fs.Parse([]string{"-backend", "iptables"}))
	all, err := o.chosen()
	testutil.Must(t, err)
	promised := map[string]int{}
	for _, f := range all {
		if f.promised {
			promised[f.name] = f.limit.lost + f.limit.tcp
		}
	}
	if want := map[string]int{"sigterm-restart": 0, "kill": 50, "sigstop": 1500}; !maps.Equal(promised, want) {
		t.Errorf("promised are %v, want %v", promised, want)
	}
	testutil.Equal(t, "the command", "make faults BACKEND=iptables-nft", o.command())
}

// TestWaited has more to do at one time than there are CPUs.
func TestWaited(t *testing.T) {
	testutil.RequireRoot(t)
	ctx, cancel := context.WithCancel(t.Context())
	var busy []*exec.Cmd
	for range runtime.NumCPU() + 1 {
		cmd := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
		testutil.Must(t, cmd.Start())
		busy = append(busy, cmd)
	}
	testutil.Eventually(t, func() error {
		for _, cmd := range busy {
			if longest(nil, waited(cmd.Process.Pid)) > 0 {
				return nil
			}
		}
		return errors.New("no process waited for a CPU")
	})
	cancel()
	for _, cmd := range busy {
		_ = cmd.Wait()
		if len(waited(cmd.Process.Pid)) > 0 {
			t.Error("a process that is gone waits")
		}
	}
	before := map[string]time.Duration{"old": time.Minute, "gone": time.Hour}
	after := map[string]time.Duration{"old": time.Minute + time.Second, "new": 2 * time.Second}
	testutil.Equal(t, "waited between the two", 2*time.Second, longest(before, after))
}

// TestOverflowed fills the buffer of a socket that no program reads.
func TestOverflowed(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "overflow")
	var deaf, full net.Conn
	var err error
	ns.Do(func() {
		var l net.PacketConn
		if l, err = net.ListenPacket("udp", "127.0.0.1:0"); err == nil { //nolint:noctx // on this host
			deaf = l.(*net.UDPConn)
			full, err = net.Dial("udp", l.LocalAddr().String()) //nolint:noctx // on this host
		}
	})
	testutil.Must(t, err)
	defer deaf.Close()
	defer full.Close()
	if n, err := overflowed(ns); n != 0 || err != nil {
		t.Fatalf("before: %d, %v", n, err)
	}
	for range 10_000 {
		_, err := full.Write(make([]byte, 100))
		testutil.Must(t, err)
	}
	if n, err := overflowed(ns); n < 1000 || err != nil {
		t.Errorf("%d of 10,000, %v", n, err)
	}
	if _, err := rcvbufErrors("Tcp: RcvbufErrors\nTcp: 7\n"); err == nil {
		t.Error("a file without the figure gives one")
	}
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]options{
		"no rounds": {rounds: 0, duration: time.Minute}, "many rounds": {rounds: 1000, duration: time.Minute},
		"no fault": {rounds: 1, duration: time.Minute, only: "nonsense"}, "endless soak": {rounds: 1, duration: 1000 * time.Hour},
	} {
		if _, _, err := o.ready(&strings.Builder{}); err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	var out strings.Builder
	o := options{list: true}
	if _, listed, err := o.ready(&out); err != nil || !listed || strings.Count(out.String(), "\n") != len(allFaults()) {
		t.Errorf("-list: %v\n%s", err, out.String())
	}
}
