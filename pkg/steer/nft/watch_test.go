package nft_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

// verdicts runs changes and reports for each whether Watch ticks for it. Both changes and a marker that follows each of them go through
// the same socket in order, so that a change that Watch ignores needs no waiting time.
type verdicts struct {
	ns      *testutil.NetNS
	batches chan batch
	markers int
}

// batch is what one read of the socket brought.
type batch struct {
	matters bool
	text    string
}

func watchVerdicts(t *testing.T, ns *testutil.NetNS) *verdicts {
	t.Helper()
	v := &verdicts{ns: ns, batches: make(chan batch, 100000)}
	ctx, cancel := context.WithCancel(t.Context())
	ticks, err := hostnet.Watch(ctx, ns.FD(), unix.NETLINK_NETFILTER, func(msgs []netlink.Message) bool {
		b := batch{matters: nft.Touches(msgs)}
		for _, m := range msgs {
			b.text += string(m.Data)
		}
		v.batches <- b
		return b.matters
	}, unix.NFNLGRP_NFTABLES)
	must(t, err)
	t.Cleanup(func() {
		cancel()
		for range ticks { //nolint:revive // until it is closed
		}
	})
	return v
}

// ticks reports whether what happened since the last call makes Watch tick.
func (v *verdicts) ticks(t *testing.T) (matters bool) {
	t.Helper()
	v.markers++
	marker := fmt.Sprintf("marker%d-", v.markers)
	v.ns.Run("nft", "add", "table", "ip", marker)
	for {
		b := testutil.Receive(t, v.batches)
		matters = matters || b.matters
		if strings.Contains(b.text, marker) {
			return matters
		}
	}
}

// Watch ticks for changes of our table and of the base chains that may drop queries, and for nothing else.
func TestWatch(t *testing.T) {
	testutil.RequireRoot(t)
	h := host()
	h.Lifetime = 50 * time.Millisecond
	ns, backend := node(t, h)
	lease := openLease(t, ns)
	v := watchVerdicts(t, ns)
	tick := func(what string) {
		t.Helper()
		testutil.Equal(t, what+": ticks", true, v.ticks(t))
	}
	quiet := func(what string) {
		t.Helper()
		testutil.Equal(t, what+": ticks", false, v.ticks(t))
	}
	quiet("nothing happened")
	for _, c := range []string{
		"delete element inet neardns ours4 { 169.254.20.11 }",
		"add rule inet neardns switch4 accept",
		"flush chain inet neardns switch4",
		"add chain inet neardns stranger",
		"add set inet neardns strange { type ipv4_addr; }",
		"add table inet neardns { flags dormant; }",
		"flush table inet neardns",
		"flush ruleset",
		"add table inet neardns",
	} {
		ns.Run("nft", c)
		tick(c)
	}
	must(t, backend.Apply(h))
	tick("apply")
	must(t, backend.Apply(h))
	quiet("apply of the same")
	for _, c := range []string{"add table inet other", "add table ip neardns", "add chain inet other neardns", "add table inet neardns2", "delete table inet other"} {
		ns.Run("nft", c)
		quiet(c)
	}
	ns.Run("iptables-nft", "-A", "INPUT", "-j", "ACCEPT")
	tick("iptables makes its base chain, which may drop by policy")
	for _, args := range []string{"-A INPUT -j ACCEPT", "-N KUBE-SERVICES", "-A KUBE-SERVICES -j ACCEPT", "-F KUBE-SERVICES", "-t nat -A OUTPUT -j ACCEPT"} {
		ns.Run(append([]string{"iptables-nft"}, strings.Fields(args)...)...)
		quiet("iptables " + args)
	}
	for _, args := range []string{"-P INPUT DROP", "-F", "-N NEARDNS-INPUT", "-X NEARDNS-INPUT"} {
		ns.Run(append([]string{"iptables-nft"}, strings.Fields(args)...)...)
		tick("iptables " + args)
	}
	must(t, lease.Renew(redirect4.Steering, steer.UDP))
	must(t, lease.Withdraw(redirect6.Steering, steer.TCP))
	quiet("packets that fill sets, and what lapses")
	must(t, backend.Remove())
	tick("remove")
}

// Touches never panics: a newer kernel may report more than this one.
func FuzzTouches(f *testing.F) {
	f.Add(uint16(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE), []byte{})
	f.Add(uint16(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE), []byte{1, 0, 0, 0, 4, 0, 4, 0x80})
	f.Fuzz(func(_ *testing.T, kind uint16, data []byte) {
		nft.Touches([]netlink.Message{{Header: netlink.Header{Type: netlink.HeaderType(kind)}, Data: data}})
	})
}
