package kernelhits

import (
	"net/netip"
	"strings"
	"testing"
)

// TestSelfTest: the self-test passes, leaves nothing behind, and tells of a program that answers otherwise.
func TestSelfTest(t *testing.T) {
	l := open(t, 4)
	if err := l.Test(); err != nil {
		t.Error(err)
	}
	var group uint32
	if l.Len() != 0 || l.objects.Served.Lookup(servedAt(netip.AddrPortFrom(trialServer4, dnsPort)), &group) == nil {
		t.Error("something was left behind")
	}
	if all, err := l.Counts(); err != nil || all[0] != (Count{}) || len(all) != SeriesMost {
		t.Errorf("counted as somebody's: %v %v", all[0], err)
	}
	// A control of another generation stands for any fault: the program then has no answers.
	broken := l.control
	broken.Generation++
	if err := l.objects.Controls.Put(uint32(0), &broken); err != nil {
		t.Fatal(err)
	}
	if err := l.Test(); err == nil || !strings.Contains(err.Error(), "does not answer at 192.0.2.53") {
		t.Error(err)
	}
}

// TestTry: a question of any kind has the answer of the program, or none.
func TestTry(t *testing.T) {
	l := open(t, 4)
	a, frame := numbered(t, 1)
	put(t, l, a)
	for _, server := range []netip.Addr{server4, server6} {
		if got, ok, err := l.Try(server, payloadOf(frame)); err != nil || !ok || len(got) != a.Entry.Size() {
			t.Errorf("%s: %x %t %v", server, got, ok, err)
		}
		if _, ok, err := l.Try(server, payloadOf(frame)[:14]); err != nil || ok {
			t.Errorf("%s: %t %v", server, ok, err)
		}
	}
}
