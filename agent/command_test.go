package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

// fake is an env whose files are a map and which reads nothing from the machine.
func fake(files map[string]string) (env, *bytes.Buffer, *bytes.Buffer) {
	var stdout, stderr bytes.Buffer
	return env{
		Env: config.Env{
			LookupEnv: func(string) (string, bool) { return "", false },
			ReadFile: func(path string) ([]byte, error) {
				text, ok := files[path]
				if !ok {
					return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
				}
				return []byte(text), nil
			},
			Glob: filepath.Glob,
		},
		Stdout: &stdout, Stderr: &stderr, Version: "v0.0.0-test",
		Hangups: func(context.Context) <-chan os.Signal { return nil },
	}, &stdout, &stderr
}

const head = "apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\n"

func TestCommandLine(t *testing.T) {
	const newer = head + "redirects: [10.96.0.10]\nupstream: {fastest: true}\n" // a key that a later release may have
	good := map[string]string{"/node.yaml": head + "redirects: [10.96.0.10]\nupstreams: {external: [192.0.2.1]}\n"}
	for _, tc := range []struct {
		name  string
		args  []string
		files map[string]string
		code  int
		out   string // part of standard output
		err   string // part of standard error
	}{
		{"nothing", nil, nil, cli.Config, "", "neardns-agent v0.0.0-test"},
		{"help", []string{"help"}, nil, cli.Good, "Exit codes: 0 good", ""},
		{"the edge, which was a command", []string{"edge", "--check"}, nil, cli.Config, "", "run neardns-edge"},
		{"unknown command", []string{"serve"}, nil, cli.Config, "", `there is no command "serve"`},
		{"help of a command", []string{"help", "status"}, nil, cli.Good, "--output", ""},
		{"bundle over a link", []string{"doctor", "--bundle", "/proc/self/exe"}, nil, cli.Config, "", "it exists and is no regular file"},
		{"a folder that is not there", []string{"node", "--pod-dir", "/none/x"}, nil, cli.Config, "", "--pod-dir: stat /none/x: no such file or directory"},
		{"ready, and a new file has a fault", []string{"ready", "--config", "/node.yaml"},
			map[string]string{"/node.yaml": head + "stateDir: /none/x\nredirects: nonsense\n"}, cli.Degraded, "", "no agent runs on this node"},
		{"help on config", []string{"config", "--help"}, nil, cli.Good, "print the configuration in effect", ""},
		{"config verb", []string{"config", "verify", "--config", "/none.yaml"}, nil, cli.Config, "", `there is no command "verify"`},
		{"config format, no file", []string{"config", "show", "--format", "toml", "--config", "/none.yaml"}, nil, cli.Config, "", `--format "toml": yaml`},
		{"query, no name", []string{"query"}, nil, cli.Config, "", "write one name"},
		{"query, no type", []string{"query", "--type", "AB", "a.example"}, nil, cli.Config, "", "--type AB: there is no such record type"},
		{"version", []string{"version"}, nil, cli.Good, "v0.0.0-test", ""},
		{"node-cache's version", []string{"nodecache", "-version"}, nil, cli.Good, "v0.0.0-test", ""},
		{"node-cache's flags alone", []string{"-localip", "here"}, nil, cli.Config, "", `"here" is not an IP address`},
		{"config check", []string{"config", "check", "--config", "/node.yaml"}, good, cli.Good, "configuration is good", ""},
		{"config show", []string{"config", "show", "--config", "/node.yaml"}, good, cli.Good, "clusterDNS: 10.96.0.10", ""},
		{"config show corefile", []string{"config", "show", "--corefile", "--config", "/node.yaml"}, good, cli.Good, "bind 169.254.20.10 169.254.20.11",
			""},
		{"config show entry", []string{"config", "show", "--format", "conflist-entry", "--config", "/node.yaml"}, good, cli.Good, `"type": "neardns"`, ""},
		{"config show format", []string{"config", "show", "--format", "toml", "--config", "/node.yaml"}, good, cli.Config, "", `--format "toml"`},
		{"config check, what no pod can have", []string{"config", "check", "--config", "/node.yaml"},
			map[string]string{"/node.yaml": good["/node.yaml"] + "podDNS:\n  options:\n  - ndots:2\n  - nonsense:3\n"}, cli.Good, "configuration is good",
			"warning: /node.yaml:6:3: podDNS: option \"nonsense:3\" is known to no resolver and has no effect; resolvers know attempts, debug, edns0, " +
				"inet6, ip6-bytestring, ip6-dotint, ndots, no-aaaa, no-check-names, no-ip6-dotint, no-reload, no-tld-query, no_tld_query, rotate, " +
				"single-request, single-request-reopen, tcp, timeout, trust-ad, use-vc, usevc\nwarning: podDNS: no pod has shown yet"},
		{"config check, the overlay pod-dns", []string{"config", "check", "--config", "/node.yaml"},
			map[string]string{"/node.yaml": good["/node.yaml"] + "resolvConf: {nri: /var/run/nri/nri.sock}\npodDNS:\n  options: [nonsense]\n"}, cli.Good,
			"configuration is good", `warning: /node.yaml:7:3: podDNS: option "nonsense" is known to no resolver and has no effect`},
		{"no file", []string{"config", "check", "--config", "/none.yaml"}, nil, cli.Config, "", "/none.yaml"},
		{"unknown key", []string{"config", "check", "--config", "/node.yaml"}, map[string]string{"/node.yaml": head + "redirect: [10.96.0.10]\n"},
			cli.Config, "", "/node.yaml:3:1"},
		{"no upstream", []string{"config", "check", "--config", "/node.yaml"},
			map[string]string{"/node.yaml": head + "redirects: [10.96.0.10]\nupstreams: {external: [/etc/resolv.conf]}\n"}, cli.Config, "",
			"/etc/resolv.conf"},
		{"unknown key, else good", []string{"config", "check", "--config", "/node.yaml"}, map[string]string{"/node.yaml": newer}, cli.Config, "",
			`/node.yaml:4:1: upstream: unknown key: write "upstreams"`},
		{"config show, unknown key", []string{"config", "show", "--config", "/node.yaml"}, map[string]string{"/node.yaml": newer}, cli.Good,
			"clusterDNS: 10.96.0.10", `warning: /node.yaml:4:1: upstream: unknown key`},
		{
			"config show entry, unknown key", []string{"config", "show", "--format", "conflist-entry", "--config", "/node.yaml"},
			map[string]string{"/node.yaml": newer}, cli.Good, `"type": "neardns"`, `warning: /node.yaml:4:1: upstream: unknown key`,
		},
		{
			"config show, by kube-dns", []string{"config", "show", "--config", "/node.yaml"},
			map[string]string{"/node.yaml": head + "redirects: [10.96.0.10]\n"}, cli.Good,
			"external: auto  # default: kube-dns, because its Corefile is not mounted here, at /etc/kube-dns-corefile/Corefile", "",
		},
		{
			"config show, by the node's", []string{"config", "show", "--config", "/node.yaml"},
			map[string]string{"/node.yaml": head + "redirects: [10.96.0.10]\n", "/etc/resolv.conf": "nameserver 192.0.2.53\n",
				"/etc/kube-dns-corefile/Corefile": ". {\n forward . /etc/resolv.conf\n}\n"}, cli.Good,
			"external: auto  # default: the node's resolvers, because kube-dns's Corefile forwards to them, too: forward . /etc/resolv.conf, line 2", "",
		},
		{
			"bad snippet", []string{"config", "check", "--config", "/node.yaml"},
			map[string]string{"/node.yaml": good["/node.yaml"] + "snippets: {\".\": \"nonsense here\"}\n"}, cli.Config, "", "nonsense",
		},
		{
			"node, bad configuration", []string{"node", "--config", "/node.yaml"},
			map[string]string{"/node.yaml": head + "redirects: [10.96.0.300]\n"}, cli.Config, "", "/node.yaml:3",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, stdout, stderr := fake(tc.files)
			testutil.Equal(t, "exit code", tc.code, run(t.Context(), e, tc.args))
			if !strings.Contains(stdout.String(), tc.out) {
				t.Errorf("standard output lacks %q:\n%s", tc.out, stdout)
			}
			if !strings.Contains(stderr.String(), tc.err) {
				t.Errorf("standard error lacks %q:\n%s", tc.err, stderr)
			}
			if tc.code == cli.Config && stdout.Len() > 0 {
				t.Errorf("bad usage, and on standard output stands\n%s", stdout)
			}
			if tc.code == cli.Config && tc.args != nil && strings.Contains(stdout.String(), "configuration is good") {
				t.Error("a bad configuration is called good")
			}
		})
	}
}

// TestCleanupLeavesNothing runs the real command in a netns of its own.
func TestCleanupLeavesNothing(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "cleanup")
	dir := t.TempDir()
	conf := filepath.Join(dir, "node.yaml")
	text := head + "redirects: [10.96.0.10]\nupstreams: {external: [192.0.2.1]}\nstateDir: " + dir + "/run\npersistDir: " + dir +
		"/lib\nlisten: {metrics: \"127.0.0.1:19253\", health: \"127.0.0.1:18080\"}\n"
	testutil.Must(t, os.WriteFile(conf, []byte(text), 0o600))
	bin := filepath.Join(dir, "neardns-agent")
	testutil.Build(t, bin, ".")
	before := ns.Run("sh", "-c", "nft list ruleset; ip -o link | cut -d: -f2; ip route")
	p := ns.Start(bin, "node", "--config", conf)
	testutil.Eventually(t, func() error {
		_, err := ns.TryRun("", bin, "status", "--config", conf, "--json")
		if err != nil && strings.Contains(p.Output(), "lease granted") {
			return nil // degraded here: without kube-dns, the fallback is not verified
		}
		return err
	})
	if out, err := ns.TryRun("", bin, "cleanup", "--config", conf); err == nil {
		t.Errorf("cleanup under a running agent: %s", out)
	}
	testutil.Must(t, p.Terminate(testutil.Patience()))
	if out := ns.Run("sh", "-c", "nft list tables; ip -o link show neardns0"); !strings.Contains(out, "neardns0") || !strings.Contains(out,
		"table inet neardns") {
		t.Errorf("link and switch must outlive the agent:\n%s", out)
	}
	for _, name := range []string{"plugin.log", "plugin.log.1", "watch.json"} {
		testutil.Must(t, os.WriteFile(filepath.Join(dir, "run", name), nil, 0o600))
	}
	// The installer must remove the conflist's entry first: otherwise cleanup returns an error and changes nothing.
	cni := filepath.Join(dir, "net.d")
	list := filepath.Join(cni, "10-pods.conflist")
	chained := `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp"}, {"type": "neardns", "redirects": ["10.96.0.10"]}]}`
	testutil.Must(t, errors.Join(os.Mkdir(cni, 0o755), os.WriteFile(list, []byte(chained), 0o600)))
	if out, err := ns.TryRun("", bin, "cleanup", "--config", conf, "--cni-conf", cni); err == nil || !strings.Contains(out+err.Error(),
		"neardns-install uninstall") {
		t.Errorf("cleanup without an installer: %v\n%s", err, out)
	}
	testutil.Build(t, filepath.Join(dir, "neardns-install"), "../install")
	if out := ns.Run(bin, "cleanup", "--config", conf, "--cni-conf", cni); !strings.Contains(out, "link neardns0 removed") {
		t.Errorf("cleanup says\n%s", out)
	}
	if text := testutil.ReadFile(t, list); strings.Contains(text, "neardns") {
		t.Errorf("the conflist after cleanup: %s", text)
	}
	testutil.Equal(t, "left behind", before, ns.Run("sh", "-c", "nft list ruleset; ip -o link | cut -d: -f2; ip route"))
	wantNoFolders := func(when string) {
		t.Helper()
		for _, name := range []string{"run", "lib"} {
			if left, err := os.ReadDir(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s, %s is left: %v %v", when, name, left, err)
			}
		}
	}
	wantNoFolders("after a cleanup")
	if out := ns.Run(bin, "cleanup", "--config", conf, "--cni-conf", cni, "--link", "slip0"); !strings.Contains(out, "there is no link slip0") {
		t.Errorf("cleanup of a link that is not there says\n%s", out)
	}

	// While the role hosts runs, cleanup leaves its lines in the hosts file; when the role has ended, cleanup removes them.
	hosts := filepath.Join(dir, "etc/hosts")
	const own = "127.0.0.1\tlocalhost\n"
	const line = "10.96.0.5\tregistry.shop.svc registry.shop.svc.cluster.local # by neardns-agent hosts\n"
	testutil.Must(t, errors.Join(os.Mkdir(filepath.Dir(hosts), 0o755), os.WriteFile(hosts, []byte(own+line), 0o644)))
	running := nodestate.Hosts{Looked: time.Now()} // a role whose last check is long ago counts as ended
	for _, step := range []struct {
		root, want string
		ended      bool
		fails      string
	}{
		{"", own + line, false, ""},
		{dir, own + line, false, "end it first"},
		{dir, own, true, ""},
	} {
		running.Ended = step.ended
		testutil.Must(t, errors.Join(os.MkdirAll(dir+"/run", 0o755), os.MkdirAll(dir+"/lib", 0o755)))
		testutil.Must(t, nodestate.HostsFile(dir+"/run").Write(running))
		out, err := ns.TryRun("", bin, "cleanup", "--config", conf, "--host-root="+step.root)
		if (err != nil) != (step.fails != "") || err != nil && !strings.Contains(out+err.Error(), step.fails) {
			t.Errorf("%+v: %v\n%s", step, err, out)
		}
		testutil.Equal(t, fmt.Sprintf("%+v: the hosts file", step), step.want, testutil.ReadFile(t, hosts))
		if _, err := os.Stat(dir + "/lib"); err == nil {
			t.Errorf("%+v: it holds the cache's cleaning up", step)
		}
	}
	wantNoFolders("after all of these")
	// A second run finds nothing and succeeds, also on a node that has left its cluster, where nothing is detected.
	short := filepath.Join(dir, "short.yaml")
	testutil.Must(t, os.WriteFile(short, []byte(head+"stateDir: "+dir+"/run\npersistDir: "+dir+"/lib\n"), 0o600))
	if out, err := ns.TryRun("", bin, "config", "check", "--config", short); err == nil {
		t.Errorf("this machine is no node, and the configuration is good: %s", out)
	}
	ns.Run(bin, "cleanup", "--config", short)
	var r inspect.Status
	out, _ := ns.TryRun("", bin, "status", "--config", conf, "--json")
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&r); err != nil || r.Switch || r.Agent != nil {
		t.Errorf("status after cleanup: %v\n%s", err, out)
	}
}
