package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

// watch runs the command until the test ends, or stop is called, which returns its exit code.
func (n *node) watch(more ...string) (out *testutil.Output, stop func() int) {
	n.t.Helper()
	testutil.RequireRoot(n.t)        // it watches real files
	others := goleak.IgnoreCurrent() // another watch of the same test
	out = new(testutil.Output)
	ctx, cancel := context.WithCancel(context.Background())
	code := make(chan int, 1)
	go func() { code <- run(ctx, n.command("watch", more...), out, out) }()
	stop = sync.OnceValue(func() int { cancel(); return <-code })
	n.t.Cleanup(func() {
		stop()
		testutil.Eventually(n.t, func() error { return goleak.Find(others) })
	})
	return out, stop
}

func (n *node) eventuallyTypes(name string, types ...string) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		text, err := os.ReadFile(filepath.Join(n.conf, name))
		if err != nil {
			return err
		}
		got, err := conflist.Read(text)
		return errors.Join(err, testutil.ErrorIf(!slices.Equal(got.Types, types), "plugins %q, want %q", got.Types, types))
	})
}

func eventuallySays(t *testing.T, out *testutil.Output, parts ...string) {
	t.Helper()
	testutil.Eventually(t, func() error {
		for _, p := range parts {
			if !strings.Contains(out.String(), p) {
				return fmt.Errorf("no %q in:\n%s", p, out)
			}
		}
		return nil
	})
}

// The main network's file appears late, and is then no longer the first. Each time, the watch adds the entry at once, and it writes the
// binary again after a removal.
func TestWatch(t *testing.T) {
	n := newNode(t)
	out, stop := n.watch("--poll", "1h")
	eventuallySays(t, out, "no network is configured in "+n.conf+" yet")
	n.network("10-a.conflist", mainList)
	n.eventuallyTypes("10-a.conflist", "flannel", "neardns")
	n.network("05-b.conflist", mainList)
	n.eventuallyTypes("05-b.conflist", "flannel", "neardns")
	n.restoresPlugin()
	if code := stop(); code != 0 {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	n.wantTypes("05-b.conflist", "flannel", "neardns") // the end of the watch removes nothing
}

// restoresPlugin removes the plugin, and waits until the watch has written it again.
func (n *node) restoresPlugin() {
	n.t.Helper()
	plugin := filepath.Join(n.bin, "neardns")
	testutil.Must(n.t, os.Remove(plugin))
	testutil.Eventually(n.t, func() error {
		_, err := os.Stat(plugin)
		return err
	})
}

// If nothing is to do, the watch writes nothing and logs nothing, even if other files in the folder change.
func TestWatchIsQuiet(t *testing.T) {
	n := flannelNode(t)
	out, _ := n.watch("--poll", "1s")
	eventuallySays(t, out, "wrote "+n.conf+"/10-a.conflist")
	said := out.String()
	for i := range 3 {
		n.network(fmt.Sprintf("90-%d.conflist", i), mainList)
	}
	// Another plugin after ours is no reason to write: two programs that both want the last position would write forever.
	behind := strings.Replace(n.read("10-a.conflist"), "\n  ]", ",\n    {\"type\": \"mesh\"}\n  ]", 1)
	testutil.Must(t, n.owner("10-a.conflist", behind)) // by a rename: half a list would be logged
	before := n.stat("10-a.conflist")
	n.network("20-marker.conflist", "{")
	testutil.Must(t, os.Remove(filepath.Join(n.bin, "neardns"))) // when it is restored, the earlier changes have been noticed
	eventuallySays(t, out, said+"wrote "+n.bin+"/neardns")
	n.wantTypes("10-a.conflist", "flannel", "neardns", "mesh")
	if n.read("10-a.conflist") != behind || !os.SameFile(before, n.stat("10-a.conflist")) {
		t.Error("a list that needs nothing was written")
	}
}

func (n *node) stat(name string) os.FileInfo {
	n.t.Helper()
	info, err := os.Stat(filepath.Join(n.conf, name))
	testutil.Must(n.t, err)
	return info
}

// Two releases watch one node during a rollout: the entry and binary of the one that started last stay, and the two do not undo each
// other's work.
func TestWatchBesideANewerOne(t *testing.T) {
	n := flannelNode(t)
	older, _ := n.watch("--poll", "1s")
	n.eventuallyTypes("10-a.conflist", "flannel", "neardns")
	newer := newNode(t)
	newer.bin, newer.conf = n.bin, n.conf
	plugin := testPlugin + "# newer\n"
	newer.write(newer.plugin, plugin, 0o755)
	newer.write(newer.entry, strings.Replace(testEntry, "10.96.0.10", "10.96.0.99", 1), 0o644)
	out, _ := newer.watch("--poll", "1s")
	eventuallySays(t, out, "wrote "+n.conf+"/10-a.conflist", "wrote "+n.bin+"/neardns")
	said := older.String()
	list := n.read("10-a.conflist")
	// Both make passes, by event and by poll. Each may add a missing entry, but must not replace the other's.
	for range 3 {
		n.network("10-a.conflist", mainList)
		n.eventuallyTypes("10-a.conflist", "flannel", "neardns")
	}
	n.restoresPlugin()
	if blows := strings.Count(older.String()+out.String(), "wrote "+n.conf); blows > 2+3+1 {
		t.Errorf("the list was written %d times:\n%s\n%s", blows, older, out)
	}
	if !strings.Contains(list, "10.96.0.99") || strings.Contains(said, "10.96.0.99") {
		t.Errorf("the newer one did not have its way:\n%s", list)
	}
}

// The watch records in its state file, for the agent, whether the last pass failed, and when it ended. If the file cannot be written, the
// watch logs that once and goes on.
func TestWatchTells(t *testing.T) {
	n := newNode(t)
	state := t.TempDir()
	eventuallySaw := func(what string, right func(nodestate.Watch) bool) {
		t.Helper()
		testutil.Eventually(t, func() error {
			s, ok, err := nodestate.WatchFile(state).Read()
			if err != nil || !ok || !right(s) {
				return fmt.Errorf("%s: the agent is told %+v (%v, %w)", what, s, ok, err)
			}
			return nil
		})
	}
	n.watch("--poll", "1s", "--state-dir", state)
	eventuallySaw("no network", func(s nodestate.Watch) bool {
		return !s.OK && strings.Contains(s.Fault, "no network is configured") && !s.Since.After(s.Looked)
	})
	n.network("10-a.conflist", mainList)
	eventuallySaw("a network", func(s nodestate.Watch) bool {
		return s.OK && s.Fault == "" && s.Network == "cbr0" && s.Repairs == 0 && !s.Fighting
	})
	before, _, err := nodestate.WatchFile(state).Read()
	testutil.Must(t, err)
	eventuallySaw("a later look", func(s nodestate.Watch) bool { return s.Looked.After(before.Looked) })

	other := flannelNode(t)
	out, _ := other.watch("--poll", "1s", "--state-dir", "/proc/none")
	eventuallySays(t, out, "metrics lack this watch")
	other.network("10-a.conflist", mainList)
	other.eventuallyTypes("10-a.conflist", "flannel", "neardns")
	if n := strings.Count(out.String(), "metrics lack"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, out)
	}
}

// Repeated changes of the configuration cause no pause, and a configuration that becomes bad leaves the last good entry.
func TestWatchFollowsTheConfiguration(t *testing.T) {
	n := flannelNode(t)
	out, _ := n.watch("--poll", "1h")
	n.eventuallyTypes("10-a.conflist", "flannel", "neardns")
	for i := range 6 {
		address := fmt.Sprintf("10.96.0.%d", 20+i)
		n.write(n.entry, strings.Replace(testEntry, "10.96.0.10", address, 1), 0o644)
		testutil.Eventually(t, func() error {
			return testutil.ErrorIf(!strings.Contains(n.read("10-a.conflist"), address), "the list has the old entry")
		})
	}
	good := n.read("10-a.conflist")
	n.write(n.entry, "{", 0o644)
	eventuallySays(t, out, "cannot install plugin and entry", "entry.json")
	testutil.Equal(t, "the list after a bad entry", good, n.read("10-a.conflist"))
	if strings.Contains(out.String(), "the next try is in") {
		t.Errorf("taken for a fight:\n%s", out)
	}
}

func TestWatchRefusesABadStart(t *testing.T) {
	n := flannelNode(t)
	n.write(n.entry, "{", 0o644)
	out, stop := n.watch()
	eventuallySays(t, out, "entry.json")
	if code := stop(); code != 2 {
		t.Errorf("exit code %d, want 2:\n%s", code, out)
	}
	testutil.Equal(t, "the list", mainList, n.read("10-a.conflist"))
	n.run(2, "watch", "--entry", "x", "--poll", "1ms").has("--poll 1ms: at least 1s")
}

func TestCheck(t *testing.T) {
	n := flannelNode(t)
	check := n.command("check")
	n.run(1, check...).has(n.bin+"/neardns is missing", "network cbr0 ("+n.conf+"/10-a.conflist) does not have the entry",
		"run neardns-install install")
	n.wantUntouched()
	n.install(0)
	n.run(0, check...).has("10-a.conflist is up to date: network cbr0, plugin 2 of 2")
	n.write(filepath.Join(n.bin, "neardns"), "#!/bin/sh\n", 0o755)
	n.run(1, check...).has(n.bin + "/neardns is missing or of another version")
}

// wantUntouched fails the test unless the list of flannelNode is as it was, and the plugins' folder is empty.
func (n *node) wantUntouched() {
	n.t.Helper()
	testutil.Equal(n.t, "the list", mainList, n.read("10-a.conflist"))
	testutil.Equal(n.t, "plugins", nil, n.files(n.bin))
}
