package iptables

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestHairpinMissingFamily lists the routing rules of a family that the kernel does not route, as IPv6 after a boot with
// ipv6.disable=1.
func TestHairpinMissingFamily(t *testing.T) {
	testutil.RequireRoot(t)
	tn, err := OpenHairpin(testutil.NewNS(t, "host").FD())
	testutil.Must(t, err)
	defer tn.Close()
	if _, err := tn.nl.RuleList(unix.AF_X25); err == nil {
		t.Error("this kernel has rules for X.25: take another family")
	}
	if rules, err := tn.listRules(unix.AF_X25); err != nil || len(rules) > 0 {
		t.Errorf("%v, %v", rules, err)
	}
}
