package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTable(t *testing.T) {
	good := check{what: "first", want: "a", got: "a", ok: true}
	bad := check{what: "the second one", want: "b", got: "none", ok: false}
	for _, tc := range []struct {
		name   string
		checks []check
		want   string
		code   int
	}{
		{"all good", []check{good, good}, "   1  first  a  ok\n   2  first  a  ok\n\n2 of 2 as they should be\n", 0},
		{"one bad", []check{good, bad}, "   1  first           a     ok\n   2  the second one  none  FAILED, expected: b\n\n1 of 2 as they should be\n", 1},
		{"ended before the first", nil, "\n0 of 0 as they should be\n", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			err := writeTable(&out, style{}, tc.checks)
			if d := cmp.Diff(tc.want, out.String()); d != "" {
				t.Error(d)
			}
			if code := exitCode(err); code != tc.code {
				t.Errorf("exit code %d for %v, want %d", code, err, tc.code)
			}
		})
	}
}

func TestTableColour(t *testing.T) {
	var out bytes.Buffer
	_ = writeTable(&out, style{colour: true}, []check{{what: "x", want: "a", got: "b"}})
	if line, _, _ := strings.Cut(out.String(), "\n"); line != "\x1b[31m   1  x  b  FAILED, expected: a\x1b[0m" {
		t.Errorf("got %q", line)
	}
}

func TestExitCode(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("no node"), 1},
		{signalError(syscall.SIGINT), 130},
		{fmt.Errorf("show: %w", signalError(syscall.SIGTERM)), 143},
	} {
		if got := exitCode(tc.err); got != tc.want {
			t.Errorf("%v: %d, want %d", tc.err, got, tc.want)
		}
	}
}

func TestParseLog(t *testing.T) {
	const text = `.:53
CoreDNS-1.15.0
[INFO] 10.244.1.3:43319 - 50283 "A IN web.shop.svc.cluster.local. udp 67 false 1232" NOERROR qr,aa,rd 100 0.000123s
[INFO] [fd00:244:1::3]:4331 - 7 "AAAA IN WEB.shop.svc.cluster.local. tcp 67 false 1232" NOERROR qr,aa,rd 100 0.000123s
[INFO] 10.244.1.3:43319 - 50284 "A IN other.cluster.local. udp 67 false 1232" NXDOMAIN qr,aa,rd 100 0.000123s
[INFO] nonsense:1 - 1 "A IN web.shop.svc.cluster.local. udp" NOERROR
[INFO] 10.244.1.3:43319 - 50285 "A IN web.shop.svc.clu`
	got := parseLog(text, clusterName)
	want := []asked{
		{netip.MustParseAddr("10.244.1.3"), "web.shop.svc.cluster.local."},
		{netip.MustParseAddr("fd00:244:1::3"), "WEB.shop.svc.cluster.local."},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(asked{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Error(d)
	}
}

func TestParseDig(t *testing.T) {
	for _, tc := range []struct {
		name, text, answer, server string
	}{
		{"answered", "web.shop.svc.cluster.local. 30\tIN\tA\t10.96.7.7\n;; Query time: 0 msec\n;; SERVER: 10.96.0.10#53(10.96.0.10) (UDP)\n", "10.96.7.7", "10.96.0.10"},
		{"over IPv6", "web. 30 IN AAAA fd00:96::77\n;; SERVER: fd00:96::a#53(fd00:96::a) (TCP)\n", "fd00:96::77", "fd00:96::a"},
		{"an alias first", "www. 30 IN CNAME web.\nweb. 30 IN A 10.96.7.7\n;; SERVER: 10.96.0.10#53(10.96.0.10) (UDP)\n", "10.96.7.7", "10.96.0.10"},
		{"no such name", ";; Query time: 0 msec\n;; SERVER: 10.96.0.10#53(10.96.0.10) (UDP)\n", "none", "10.96.0.10"},
		{"no answer", ";; communications error to 10.96.0.10#53: timed out\n;; no servers could be reached\n", "none", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := parseDig(tc.text); got.answer != tc.answer || got.server != tc.server {
				t.Errorf("got %q from %q, want %q from %q", got.answer, got.server, tc.answer, tc.server)
			}
		})
	}
}

// Each way that a query may have gone is distinguished from all the others.
func TestWay(t *testing.T) {
	self, node := netip.MustParseAddr("10.244.1.3"), netip.MustParseAddr("10.244.2.1")
	p := &pod{addrs: []netip.Addr{self, netip.MustParseAddr("fd00:244:1::3")}}
	by := func(addrs ...netip.Addr) (out []asked) {
		for _, a := range addrs {
			out = append(out, asked{a, clusterName})
		}
		return out
	}
	for _, tc := range []struct {
		name string
		seen seen
		want string
	}{
		{"hit", seen{answer: "1.2.3.4", delivered: true}, hit("1.2.3.4")},
		{"hit in the kernel", seen{answer: "1.2.3.4"}, hit("1.2.3.4")},
		{"miss", seen{answer: "1.2.3.4", delivered: true, kubeDNS: by(node)}, miss("1.2.3.4")},
		{"fallback", seen{answer: "1.2.3.4", kubeDNS: by(self)}, fallback("1.2.3.4")},
		{"fallback over IPv6", seen{answer: "1.2.3.4", kubeDNS: by(p.addrs[1])}, fallback("1.2.3.4")},
		{"no answer", seen{answer: "none", delivered: true}, "no answer"},
	} {
		if got := tc.seen.way(p); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
	for _, s := range []seen{
		{answer: "1.2.3.4", kubeDNS: by(node)},                  // another sent a query in the pod's name
		{answer: "1.2.3.4", kubeDNS: by(self, self)},            // the pod had to send it twice
		{answer: "1.2.3.4", delivered: true, kubeDNS: by(self)}, // both
	} {
		got := s.way(p)
		if got == hit("1.2.3.4") || got == fallback("1.2.3.4") {
			t.Errorf("%+v passes for %q", s, got)
		}
	}
}

func TestEntriesOf(t *testing.T) {
	lines := []string{
		"udp 10.244.1.3:34035 > 10.96.0.10:53, reply 10.244.2.2:53 > 10.244.1.3:34035",
		"udp 10.244.1.33:34035 > 10.96.0.10:53, reply 10.244.2.2:53 > 10.244.1.33:34035",
		"tcp fd00:244:1::3:54188 > fd00:96::a:53, reply fd00:244:2::2:53 > fd00:244:1::3:54188",
		"udp 192.0.2.10:1 > 10.96.0.10:53, reply 10.244.2.2:53 > 192.0.2.10:1",
	}
	got := entriesOf(lines, []netip.Addr{netip.MustParseAddr("10.244.1.3"), netip.MustParseAddr("fd00:244:1::3")})
	if d := cmp.Diff([]string{lines[0], lines[2]}, got); d != "" {
		t.Error(d)
	}
}

func TestLasting(t *testing.T) {
	const rules = `table inet neardns {
	set exempt4 {
		type ipv4_addr
		elements = { 10.244.1.5, 10.244.1.50 }
	}
	set fb4 {
		elements = { 10.244.1.3 . 43319 timeout 2m expires 1m58s,
			     10.244.1.6 . 40000 timeout 2m expires 1m58s }
	}
}`
	for address, want := range map[string]bool{"10.244.1.5": true, "10.244.1.50": true, "10.244.1.3": false, "10.244.1.6": false, "10.244.1.1": false} {
		if got := lasting(rules, netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
}
