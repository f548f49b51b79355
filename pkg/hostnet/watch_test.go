package hostnet

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// A watcher that does not read must not lose the news that something changed, whatever the kernel's queue drops.
func TestWatchOverrun(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "host")
	conn, err := listen(ns.FD(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		t.Fatal(err)
	}
	// The smallest queue that the kernel gives holds one event at most.
	if err := conn.SetReadBuffer(1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// None of what arrives matters, so a tick tells of what did not. The reader stands still while there is news.
	var reads sync.Mutex
	ticks := follow(ctx, conn, func([]netlink.Message) bool {
		reads.Lock()
		defer reads.Unlock()
		return false
	})
	var batch strings.Builder
	for range 500 {
		batch.WriteString("link set lo mtu 1500\nlink set lo mtu 65536\n")
	}
	file := t.TempDir() + "/batch"
	if err := os.WriteFile(file, []byte(batch.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	overrun := func() {
		t.Helper()
		reads.Lock()
		ns.Run("ip", "-batch", file)
		reads.Unlock()
		select {
		case _, ok := <-ticks:
			if !ok {
				t.Fatal("the subscription ended")
			}
		case <-time.After(5 * time.Second):
			t.Fatal("no tick after the queue ran over")
		}
	}
	overrun()
	testutil.Eventually(t, func() error {
		select {
		case <-ticks:
			return errors.New("still ticking")
		case <-time.After(50 * time.Millisecond):
			return nil
		}
	})
	overrun() // it lives on
	cancel()
	for range ticks {
	}
}

// Watch tells of all that comes where nobody says what matters, in the netns that it was given, and ends with its context.
func TestWatch(t *testing.T) {
	testutil.RequireRoot(t)
	ns, other := testutil.NewNS(t, "host"), testutil.NewNS(t, "other")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ticks, err := Watch(ctx, ns.FD(), unix.NETLINK_ROUTE, nil, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR)
	if err != nil {
		t.Fatal(err)
	}
	other.Run("ip", "addr", "add", "192.0.2.1/32", "dev", "lo")
	select {
	case <-ticks:
		t.Error("a tick for another netns")
	case <-time.After(50 * time.Millisecond):
	}
	for _, change := range []string{"addr add 192.0.2.1/32 dev lo", "link set lo mtu 1500"} {
		ns.Run(append([]string{"ip"}, strings.Fields(change)...)...)
		select {
		case <-ticks:
		case <-time.After(5 * time.Second):
			t.Fatalf("no tick after %s", change)
		}
	}
	cancel()
	for range ticks {
	}
}
