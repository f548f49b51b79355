package testutil

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

func TestNetNS(t *testing.T) {
	RequireRoot(t)
	a, b := NewNS(t, "a"), NewNS(t, "b")
	VethPair(t, a, "left", b, "right")
	for _, end := range []struct {
		ns     *NetNS
		link   string
		prefix string
	}{{a, "left", "10.0.0.1/24"}, {b, "right", "10.0.0.2/24"}, {a, "left", "fd00::1/64"}, {b, "right", "fd00::2/64"}} {
		end.ns.AddAddr(end.link, netip.MustParsePrefix(end.prefix))
	}
	for _, server := range []string{"10.0.0.2:7", "[fd00::2]:7"} {
		var pc net.PacketConn
		var err error
		b.Do(func() { pc, err = net.ListenPacket("udp", server) })
		Must(t, err)
		t.Cleanup(func() { _ = pc.Close() })
		a.Do(func() {
			c, err := net.Dial("udp", server)
			Must(t, err)
			defer c.Close()
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
		})
		_ = pc.SetReadDeadline(time.Now().Add(Patience()))
		if _, from, err := pc.ReadFrom(make([]byte, 10)); err != nil {
			t.Fatalf("%s: nothing heard: %v", server, err)
		} else {
			t.Logf("%s heard from %s", server, from)
		}
	}
	if out := a.Run("ip", "-o", "link"); !strings.Contains(out, "left") || strings.Contains(out, "right") {
		t.Errorf("unexpected links:\n%s", out)
	}
	if _, err := a.TryRun("", "sh", "-c", "echo why >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("TryRun hides the failure: %v", err)
	}
}

func TestNetNSLeavesNothing(t *testing.T) {
	RequireRoot(t)
	var path string
	t.Run("inner", func(t *testing.T) {
		ns := NewNS(t, "gone")
		path = ns.Path()
		if _, err := os.Stat(path); err != nil {
			t.Fatal(err)
		}
	})
	for _, suffix := range []string{"", ".lock", ".new", ".keep"} {
		if _, err := os.Stat(path + suffix); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s%s is still there (%v)", path, suffix, err)
		}
	}
}

func TestSweep(t *testing.T) {
	RequireRoot(t)
	ns := NewNS(t, "abandoned")
	_ = ns.lock.Close() // what the kernel does for a killed process
	NewNS(t, "next")
	Eventually(t, func() error { // another process's sweep may have been faster, and still be at it
		if _, err := os.Stat(ns.Path()); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("an abandoned namespace was not swept (%w)", err)
		}
		return nil
	})
	kept := NewNS(t, "kept")
	kept.Keep()
	kept.Close()
	NewNS(t, "another")
	if _, err := os.Stat(kept.Path()); err != nil {
		t.Errorf("a kept namespace was swept: %v", err)
	}
	removeNS(kept.Path())
}

func TestDoPassesPanicOn(t *testing.T) {
	RequireRoot(t)
	ns := NewNS(t, "panic")
	defer func() {
		if recover() != "boom" {
			t.Error("panic in Do did not reach the caller")
		}
	}()
	ns.Do(func() { panic("boom") })
}

func TestSysctlPath(t *testing.T) {
	if got := sysctlPath("net.ipv4.conf.eth0/1.forwarding"); got != "/proc/sys/net/ipv4/conf/eth0.1/forwarding" {
		t.Error(got)
	}
}
