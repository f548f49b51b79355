package hostnet

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

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
	// None of what arrives matters, so a tick reports what did not. The reader stands still while there is news.
	var reads sync.Mutex
	var seen atomic.Int64
	ticks := follow(ctx, conn, func([]netlink.Message) bool {
		reads.Lock()
		defer reads.Unlock()
		seen.Add(1)
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
		testutil.Receive(t, ticks)
	}
	overrun()
	// Once a change comes through again, the queue is empty and nothing more of the first overrun ticks.
	testutil.Eventually(t, func() error {
		before := seen.Load()
		ns.Run("ip", "link", "set", "lo", "mtu", "1500")
		ns.Run("ip", "link", "set", "lo", "mtu", "65536")
		if seen.Load() == before {
			return errors.New("nothing is read")
		}
		return nil
	})
	select {
	case <-ticks:
	default:
	}
	overrun() // the watch goes on
	cancel()
	for range ticks {
	}
}

// Watch reports all that comes where no filter is set, in the netns that it was given, and ends with its context.
func TestWatch(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "host")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ticks, err := Watch(ctx, ns.FD(), unix.NETLINK_ROUTE, nil, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []string{"addr add 192.0.2.1/32 dev lo", "link set lo mtu 1500"} {
		ns.Run(append([]string{"ip"}, strings.Fields(change)...)...)
		testutil.Receive(t, ticks)
	}
	cancel()
	for range ticks {
	}
}

// A change in another netns is not among the messages that come before a later one in ours.
func TestWatchIsOfOneNetns(t *testing.T) {
	testutil.RequireRoot(t)
	ns, other := testutil.NewNS(t, "host"), testutil.NewNS(t, "other")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := make(chan string, 100)
	ticks, err := Watch(ctx, ns.FD(), unix.NETLINK_ROUTE, func(msgs []netlink.Message) bool {
		for _, m := range msgs {
			seen <- string(m.Data)
		}
		return false
	}, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR)
	if err != nil {
		t.Fatal(err)
	}
	theirs, ours := string([]byte{192, 0, 2, 1}), string([]byte{192, 0, 2, 2})
	other.Run("ip", "addr", "add", "192.0.2.1/32", "dev", "lo")
	ns.Run("ip", "addr", "add", "192.0.2.2/32", "dev", "lo")
	for text := ""; !strings.Contains(text, ours); {
		if text = testutil.Receive(t, seen); strings.Contains(text, theirs) {
			t.Error("a message of another netns")
		}
	}
	cancel()
	for range ticks {
	}
}
