package nft_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestWatch(t *testing.T) {
	testutil.RequireRoot(t)
	h := host()
	h.Lifetime = 50 * time.Millisecond
	ns, backend := node(t, h)
	lease := openLease(t, ns)
	ctx, cancel := context.WithCancel(t.Context())
	ticks, err := backend.Watch(ctx)
	must(t, err)
	tick := func(what string) {
		t.Helper()
		select {
		case _, ok := <-ticks:
			if !ok {
				t.Fatalf("%s: the watch ended", what)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("%s: no tick", what)
		}
		rest(ticks)
	}
	quiet := func(what string) {
		t.Helper()
		select {
		case <-ticks:
			t.Fatalf("%s: a tick", what)
		case <-time.After(100 * time.Millisecond):
		}
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

	cancel()
	select {
	case _, ok := <-ticks:
		if ok {
			t.Error("a tick after the end")
		}
	case <-time.After(5 * time.Second):
		t.Error("the watch goes on after its context ended")
	}
}

// rest takes what else comes of a change: it may be told in more than one message, and a busy machine may bring the last ones late.
func rest(ticks <-chan struct{}) {
	for {
		select {
		case _, ok := <-ticks:
			if !ok {
				return
			}
		case <-time.After(200 * time.Millisecond):
			return
		}
	}
}

// A change of ours that comes with more events than the socket holds is noticed all the same.
func TestWatchOverrun(t *testing.T) {
	testutil.RequireRoot(t)
	ns, backend := node(t, host())
	ticks, err := backend.Watch(t.Context())
	must(t, err)
	var load strings.Builder
	load.WriteString("add table inet big\nadd chain inet big c\n")
	for i := range 30000 {
		fmt.Fprintf(&load, "add rule inet big c ip daddr 10.%d.%d.1 tcp dport 80 counter accept comment \"one of very many rules of another program\"\n", i>>8, i&255)
	}
	load.WriteString("flush chain inet neardns switch4\n")
	ns.RunInput(load.String(), "nft", "-f", "-")
	select {
	case _, ok := <-ticks:
		if !ok {
			t.Fatal("the watch ended")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no tick")
	}
	must(t, backend.Apply(host()))
	rest(ticks)
	ns.Run("nft", "flush chain inet neardns switch6")
	select {
	case <-ticks:
	case <-time.After(5 * time.Second):
		t.Fatal("no tick after an overrun")
	}
}
