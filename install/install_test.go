package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/testutil"
)

const (
	testEntry = `{"type":"neardns","redirects":[{"clusterDNS":"10.96.0.10","steering":"169.254.20.11"}]}`
	// Stand-ins for the two binaries, which print what the installer needs.
	testPlugin = "#!/bin/sh\n[ \"$CNI_COMMAND\" = VERSION ] || exit 1\necho " +
		"'{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\"]}'\n"
	testAgent = "#!/bin/sh\n[ \"$*\" = \"config show --format conflist-entry --config $NODECONFIG\" ] || { echo \"called with $*\" >&2; exit 1; " +
		"}\necho '" + testEntry + "'\n"
	mainList = "{\n  \"name\": \"cbr0\",\n  \"cniVersion\": \"0.3.1\",\n  \"plugins\": [\n    {\"type\": \"flannel\", \"n\": " +
		"12345678901234567890}\n  ]\n}\n"
	mainConf = "{\"cniVersion\":\"0.4.0\",\"name\":\"mynet\",\"type\":\"bridge\",\"mtu\":1.50e3}\n"
)

// node is the part of a node that the installer sees.
type node struct {
	t             *testing.T
	bin, conf     string
	plugin, entry string
	args          []string // --plugin and --entry or --agent and --nodeconfig
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{t: t, bin: dir + "/bin", conf: dir + "/net.d", plugin: dir + "/src/neardns", entry: dir + "/src/entry.json"}
	for _, d := range []string{n.bin, n.conf, filepath.Dir(n.plugin)} {
		testutil.Must(t, os.Mkdir(d, 0o755))
	}
	n.write(n.plugin, testPlugin, 0o755)
	n.write(n.entry, testEntry, 0o644)
	n.args = []string{"--plugin", n.plugin, "--entry", n.entry}
	return n
}

// flannelNode is newNode with a network.
func flannelNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	n.network("10-a.conflist", mainList)
	return n
}

// cache is the folder of libcni's cache: it has the list with which each pod was started.
func (n *node) cache() string { return filepath.Join(filepath.Dir(n.bin), "cache") }

func (n *node) write(file, text string, mode os.FileMode) {
	n.t.Helper()
	testutil.Must(n.t, os.WriteFile(file, []byte(text), mode))
	testutil.Must(n.t, os.Chmod(file, mode))
}

func (n *node) network(name, text string) {
	n.t.Helper()
	n.write(filepath.Join(n.conf, name), text, 0o644)
}

func (n *node) read(name string) string {
	n.t.Helper()
	return testutil.ReadFile(n.t, filepath.Join(n.conf, name))
}

// installed returns the text of the plugin in the plugins' folder, which must be there.
func (n *node) installed() string {
	n.t.Helper()
	return testutil.ReadFile(n.t, filepath.Join(n.bin, "neardns"))
}

// files lists folders, hidden names too.
func (n *node) files(folders ...string) (names []string) {
	n.t.Helper()
	for _, folder := range folders {
		entries, err := os.ReadDir(folder)
		testutil.Must(n.t, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	return names
}

// printed is what a run printed.
type printed struct {
	t    *testing.T
	text string
}

// has fails the test, which goes on, for each part that was not printed.
func (p printed) has(parts ...string) {
	p.t.Helper()
	for _, part := range parts {
		if !strings.Contains(p.text, part) {
			p.t.Errorf("no %q in:\n%s", part, p.text)
		}
	}
}

// run runs a command, and ends the test unless it ends with the wanted exit code.
func (n *node) run(want int, args ...string) printed {
	n.t.Helper()
	var out bytes.Buffer
	if code := run(n.t.Context(), args, &out, &out); code != want {
		n.t.Fatalf("exit code %d, want %d:\n%s", code, want, &out)
	}
	return printed{n.t, out.String()}
}

// command returns the arguments of a command that needs the plugin and the entry.
func (n *node) command(name string, more ...string) []string {
	return slices.Concat([]string{name, "--cni-bin", n.bin, "--cni-conf", n.conf}, n.args, more)
}

func (n *node) install(want int, more ...string) printed {
	n.t.Helper()
	return n.run(want, n.command("install", more...)...)
}

func (n *node) uninstall(want int, more ...string) printed {
	n.t.Helper()
	return n.run(want, append([]string{"uninstall", "--cni-bin", n.bin, "--cni-conf", n.conf, "--cni-cache", n.cache()}, more...)...)
}

func (n *node) wantTypes(name string, types ...string) {
	n.t.Helper()
	got, err := conflist.Read([]byte(n.read(name)))
	testutil.Must(n.t, err)
	testutil.Equal(n.t, "plugins of "+name, types, got.Types)
}

func TestInstallAndUninstall(t *testing.T) {
	n := newNode(t)
	n.network("10-flannel.conflist", mainList)
	n.network("20-other.conflist", mainList)

	n.install(0).has("wrote "+n.bin+"/neardns", "network cbr0, plugin 2 of 2")
	n.wantTypes("10-flannel.conflist", "flannel", "neardns")
	testutil.Equal(t, "list of the network that is not in use", mainList, n.read("20-other.conflist"))
	info, err := os.Stat(filepath.Join(n.bin, "neardns"))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("plugin: %v, %v", info.Mode(), err)
	}

	n.uninstall(0).has("removed neardns from "+n.conf+"/10-flannel.conflist", "kept "+n.bin+"/neardns")
	testutil.Equal(t, "list after uninstall", mainList, n.read("10-flannel.conflist"))
	n.uninstall(0, "--remove-binary").has("removed " + n.bin + "/neardns")
	n.uninstall(0, "--remove-binary").has("no " + n.bin + "/neardns")
	testutil.Equal(t, "left behind", []string{"10-flannel.conflist", "20-other.conflist"}, n.files(n.conf, n.bin))
}

func TestEntryComesFromTheAgent(t *testing.T) {
	n := flannelNode(t)
	agent, config := filepath.Join(n.bin, "agent"), filepath.Join(n.conf, "neardns.yaml")
	n.write(agent, strings.Replace(testAgent, "\n", "\necho warning: an unknown key >&2\n", 1), 0o755)
	n.write(config, "kind: NodeConfig\n", 0o644)
	t.Setenv("NODECONFIG", config)
	n.args = []string{"--plugin", n.plugin, "--agent", agent, "--nodeconfig", config}
	n.install(0).has("warning: an unknown key")
	n.wantTypes("10-a.conflist", "flannel", "neardns")
	n.run(0, n.command("check")...).has("warning: an unknown key")

	// With --state-dir, install writes the kubelet's settings to a file, and removes that file when the kubelet's own is gone.
	state := filepath.Join(t.TempDir(), "run")
	finds := func(what string) string {
		return strings.Replace(testAgent, "\n", "\n[ \"$*\" = \"config show --format kubelet --config $NODECONFIG\" ] && { printf %s '"+what+"'; "+
			"exit; }\n", 1)
	}
	n.write(agent, finds(`{"clusterDomain":"x.y","clusterDNS":["10.96.0.10"]}`), 0o755)
	n.install(0, "--state-dir", state)
	testutil.Equal(t, "written down", `{"clusterDomain":"x.y","clusterDNS":["10.96.0.10"]}`+"\n", testutil.ReadFile(t, state+"/kubelet.yaml"))
	n.write(agent, finds(""), 0o755)
	n.install(0, "--state-dir", state)
	testutil.Equal(t, "left", nil, n.files(state))

	for text, wantCode := range map[string]int{
		"#!/bin/sh\necho neardns.yaml:3:1: unknown field >&2; exit 2\n": 2,
		"#!/bin/sh\necho neardns.yaml:3:1: unknown field >&2; exit 1\n": 1,
	} {
		n.write(agent, text, 0o755)
		n.install(wantCode).has("neardns.yaml:3:1: unknown field")
	}
	n.write(agent, "#!/bin/sh\necho '{}'\n", 0o755)
	n.install(2).has("entry: its type")
	n.args = []string{"--nodeconfig", config + "x", "--agent", agent}
	n.install(2).has("neardns.yamlx")
}

func TestDryRunWritesNothing(t *testing.T) {
	n := newNode(t)
	n.network("10-a.conf", mainConf)
	n.install(0, "--dry-run").has("would write "+n.bin+"/neardns",
		"would write "+n.conf+"/10-a.conflist (from "+n.conf+"/10-a.conf):\n", `"type": "neardns"`)
	testutil.Equal(t, "files", []string{"10-a.conf"}, n.files(n.conf, n.bin))
	n.install(0)
	before := n.read("10-a.conflist")
	n.uninstall(0, "--dry-run", "--remove-binary").has("would write "+n.conf+"/10-a.conf (from "+n.conf+"/10-a.conflist):\n", "would remove")
	testutil.Equal(t, "the list", before, n.read("10-a.conflist"))
	n.install(0, "--dry-run").has("is up to date: network mynet, plugin 2 of 2")
}

func TestUsage(t *testing.T) {
	n := newNode(t)
	for _, tc := range []struct {
		args []string
		code int
		part string
	}{
		{nil, 2, "Usage:"},
		{[]string{"remove"}, 2, `there is no command "remove"`},
		{[]string{"--help"}, 0, "Usage:"},
		{[]string{"stay", "--help"}, 0, "Usage:"},
		{[]string{"uninstal"}, 2, `did you mean "uninstall"?`},
		{[]string{"install", "--help"}, 0, "-cni-conf"},
		{[]string{"version"}, 0, "neardns-install"},
		{[]string{"install"}, 2, "either --nodeconfig or --entry"},
		{[]string{"install", "--entry", "a", "--nodeconfig", "b"}, 2, "either --nodeconfig or --entry"},
		{[]string{"install", "--entry", n.conf + "/none"}, 2, "no such file"},
		{[]string{"install", "--entry", n.conf + "/none"}, 2, "with --entry"},
		{[]string{"install", "--nodeconfig", n.conf + "/none"}, 2, "with --nodeconfig"},
		{[]string{"install", "--bogus"}, 2, "--bogus; `neardns-install install --help` lists the flags"},
		{[]string{"install", "--entry", "a", "b"}, 2, `unexpected argument "b"`},
		{[]string{"install", "--entry", "a", "--file", "x/y"}, 2, "without a path"},
	} {
		var stdout, stderr bytes.Buffer // for help that was wanted, and for all else
		code := run(t.Context(), tc.args, &stdout, &stderr)
		if out := stdout.String() + stderr.String(); code != tc.code || !strings.Contains(out, tc.part) || (stdout.Len() > 0) != (code == 0) {
			t.Errorf("%v: exit code %d, want %d and %q:\n%s", tc.args, code, tc.code, tc.part, out)
		}
	}
}

// Each way in which the node can be unfit gives one line that names the file, and changes nothing.
func TestRefusedAndUntouched(t *testing.T) {
	tests := map[string]struct {
		files map[string]string
		args  []string
		part  string
	}{
		"list without version": {map[string]string{"10-a.conflist": `{"name":"n","plugins":[{"type":"a"}]}`}, nil,
			"10-a.conflist: cniVersion is none"},
		"old version": {map[string]string{"10-a.conflist": `{"name":"n","cniVersion":"0.2.0","plugins":[{"type":"a"}]}`}, nil,
			"cniVersion is 0.2.0"},
		"list in a .conf":       {map[string]string{"10-a.conf": mainList}, nil, "rename it"},
		"plugin in a .conflist": {map[string]string{"10-a.conflist": mainConf}, nil, "rename it"},
		"ours alone": {map[string]string{"10-a.conflist": `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"neardns"}]}`}, nil,
			"no plugin but neardns"},
		"Multus": {map[string]string{"00-multus.conf": `{"cniVersion":"0.3.1","name":"multus-cni-network","type":"multus-shim"}`,
			"10-a.conflist": mainList}, nil, "--file"},
		"no such file": {map[string]string{"10-a.conflist": mainList}, []string{"--file", "20-b.conflist"}, "20-b.conflist"},
		"converted, it would be late": {map[string]string{"10-a.conf": mainConf, "10-a.conf.conflist": mainList}, nil,
			"would then take 10-a.conf.conflist"},
		"half a list":           {map[string]string{"10-a.conflist": mainList[:20]}, nil, "10-a.conflist: not valid JSON: "},
		"an empty list":         {map[string]string{"10-a.conflist": ""}, nil, "10-a.conflist: not valid JSON: line 1: unexpected end of JSON input: a runtime may not load it: have the network's own installer"},
		"conf and another list": {map[string]string{"10-a.conf": mainConf, "10-a.conflist": mainList}, nil, "not the same network"},
		"much larger than any": {map[string]string{"10-a.conflist": `{"name":"` + strings.Repeat("n", maxList) + `"}`}, nil,
			"is it a network's list?"}, // refused before it is parsed
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			for file, text := range tc.files {
				n.network(file, text)
			}
			n.install(1, tc.args...).has(tc.part)
			for file, text := range tc.files {
				testutil.Equal(t, file, text, n.read(file))
			}
			testutil.Equal(t, "files", len(tc.files), len(n.files(n.conf, n.bin)))
		})
	}
}

func TestLinks(t *testing.T) {
	n := newNode(t)
	n.network("90-real.conflist", mainList)
	testutil.Must(t, os.Symlink("90-real.conflist", filepath.Join(n.conf, "10-a.conflist")))
	n.install(0)
	n.wantTypes("90-real.conflist", "flannel", "neardns")
	if info, err := os.Lstat(filepath.Join(n.conf, "10-a.conflist")); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Error("the link is gone")
	}

	elsewhere := newNode(t)
	file := filepath.Join(elsewhere.bin, "real.conflist")
	elsewhere.write(file, mainList, 0o644)
	testutil.Must(t, os.Symlink(file, filepath.Join(elsewhere.conf, "10-a.conflist")))
	elsewhere.install(1).has("is a link to " + file)
}

func TestUninstallLooksIntoEveryList(t *testing.T) {
	n := newNode(t)
	with, err := conflist.Append([]byte(mainList), []byte(testEntry))
	testutil.Must(t, err)
	n.network("10-a.conflist", "{ not json")
	n.network("20-b.conflist", string(with))
	n.network("30-c.conf", mainConf)
	n.uninstall(0).has("removed neardns from " + n.conf + "/20-b.conflist")
	testutil.Equal(t, "without the entry", mainList, n.read("20-b.conflist"))
	// A list that names neardns but does not parse must give an error, and must not keep uninstall from the other lists.
	n.network("10-a.conflist", `{"neardns"`)
	n.network("20-b.conflist", string(with))
	n.uninstall(1, "--file", "20-b.conf", "--remove-binary").has("no network's file 20-b.conf in " + n.conf)
	n.uninstall(1, "--remove-binary").has("10-a.conflist: not valid JSON", "removed neardns from "+n.conf+"/20-b.conflist")
}

func TestUninstallOfNothing(t *testing.T) {
	n := newNode(t)
	n.run(0, "uninstall", "--cni-bin", n.bin+"/none", "--cni-conf", n.conf+"/none").has("no folder")
}

func TestInterruptedWhileWaiting(t *testing.T) {
	n := newNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	testutil.Equal(t, "exit code", 1, run(ctx, n.command("install", "--wait", "1h"), &out, &out))
	printed{t, out.String()}.has("waiting up to 1h", "no network is configured")
}
