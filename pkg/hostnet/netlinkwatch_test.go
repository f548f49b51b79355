package hostnet

import (
	"context"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// If the kernel drops messages because the watch reads too slowly, the watch must still tick.
func TestWatchOverrun(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "host")
	conn, err := listen(ns.FD(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	testutil.Must(t, err)
	// The smallest queue that the kernel gives holds one event at most.
	testutil.Must(t, conn.SetReadBuffer(1))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// No message matters to this watch, so each tick means that messages were dropped. reads stops the reader while the links change.
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
	testutil.Must(t, os.WriteFile(file, []byte(batch.String()), 0o600))
	overrun := func() {
		t.Helper()
		reads.Lock()
		ns.Run("ip", "-batch", file)
		reads.Unlock()
		testutil.Receive(t, ticks)
	}
	overrun()
	// When a later change is received, the queue is empty, and the first overrun causes no more ticks.
	testutil.Eventually(t, func() error {
		before := seen.Load()
		ns.Run("ip", "link", "set", "lo", "mtu", "1500")
		ns.Run("ip", "link", "set", "lo", "mtu", "65536")
		return testutil.ErrorIf(seen.Load() == before, "nothing is read")
	})
	select {
	case <-ticks:
	default:
	}
	overrun() // the watch still works
	cancel()
	for range ticks {
	}
}

// Without a filter, Watch reports every change in the given netns, and it ends with its context.
func TestWatch(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "host")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ticks, err := Watch(ctx, ns.FD(), unix.NETLINK_ROUTE, nil, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR)
	testutil.Must(t, err)
	for _, change := range []string{"addr add 192.0.2.1/32 dev lo", "link set lo mtu 1500"} {
		ns.Run(append([]string{"ip"}, strings.Fields(change)...)...)
		testutil.Receive(t, ticks)
	}
	cancel()
	for range ticks {
	}
}

// A watch does not receive a change in another netns.
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
	testutil.Must(t, err)
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
