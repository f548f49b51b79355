package steering

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// A report of a node on which all runs has what helps, and neither the names that pods queried nor the secrets next to them.
func TestBundle(t *testing.T) {
	t.Parallel()
	const key = "NoTCJU+DMqFWywaPyxSijrDEA/DC3nK0xi3AMEZuPVk="
	const private = "very-private-name.default.svc.cluster.local"
	n := newNode(t, setup{families: testutil.Dual, proxy: testutil.IPTables, proven: true})
	n.configure("log: {queries: all}\n" + calm)
	n.startAgent()
	p := n.addPod(nil)
	if _, err := testutil.Ask(p.NetNS, n.Service(true), private, dns.TypeA, "udp", testutil.AskOptions{}); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, func() error { _, err := os.Stat(n.path("lib/fallback-proven")); return err })
	n.write("net.d/10-main.conflist", `{"name": "main", "plugins": [{"type": "other", "etcd_token": "`+key+`"}]}`)
	n.write("lib/cache.snapshot", private)
	n.write("run/plugin.log", "time=1 level=INFO msg=query name="+private+".\ntime=1 level=INFO msg=steered\n")
	file := n.path("report.tar.gz")
	code, text, errs := n.run("doctor", "--config", n.configFile(), "--cni-conf", n.path("net.d"), "--cni-bin", n.path("none"), "--bundle", file)
	if code != 0 && code != 3 || !strings.Contains(text, "OK    rules") {
		t.Fatalf("doctor ends with %d:\n%s%s", code, text, errs)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the report's mode: %v, %v", info, err)
	}
	f, err := os.Open(file)
	testutil.Must(t, err)
	defer f.Close()
	got := testutil.Untar(t, f, "neardns-report/")
	for name, want := range map[string]string{
		"doctor.txt": "OK    leases", "status.txt": "SERVING since", "status.json": `"instance"`, "pods.txt": "default/" + p.name,
		"config/file.yaml": "redirects", "config/in-effect.yaml": "stateDir", "config/Corefile": "cluster.local",
		"rules/nft-list-ruleset.txt": "table inet neardns", "rules/iptables-nft-save--c.txt": "KUBE-", "network/links.txt": "neardns0",
		"network/proc-net-udp": "local_address", "network/sysctl.txt": "ip_forward: 1", "versions.txt": "neardns-agent ", "metrics.txt": "neardns_lease_held",
		"persist/fallback-proven": "", "state/host-rules": "nftables", "state/plugin.log": "msg=steered", "cni/10-main.conflist": "(left out)",
		"MANIFEST.txt": "persist/cache.snapshot: left out",
	} {
		if text, ok := got[name]; !ok || !strings.Contains(text, want) {
			t.Errorf("%s lacks %q (it is there: %v):\n%s", name, want, ok, text)
		}
	}
	pod := false
	for name, text := range got {
		pod = pod || strings.HasPrefix(name, "state/pods/")
		if strings.Contains(text, "very-private-name") || strings.Contains(text, key) {
			t.Errorf("%s has what is private:\n%s", name, text)
		}
	}
	if !pod {
		t.Error("no pod's file is in it")
	}

	// The standard output takes it, too, where the disk is read-only.
	cmd := exec.Command(made.Path("neardns-agent"), "doctor", "--config", n.configFile(), "--cni-conf", n.path("net.d"), "--bundle", "-")
	var out bytes.Buffer
	cmd.Stdout = &out
	<-n.Host.StartCmd(cmd).Exited()
	if again := testutil.Untar(t, &out, "neardns-report/"); again["doctor.txt"] == "" {
		t.Error("no report on the standard output")
	}
}
