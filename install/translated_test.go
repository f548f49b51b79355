package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/neardns/neardns/pkg/steer/translate"
	"github.com/neardns/neardns/pkg/testutil"
)

// installIn runs install in a netns, which then stands for the host's.
func (n *node) installIn(ns *testutil.NetNS, more ...string) (code int, out string) {
	n.t.Helper()
	ns.Do(func() {
		code, out = n.run(slices.Concat([]string{"install", "--cni-bin", n.bin, "--cni-conf", n.conf}, n.args, more)...)
	})
	return code, out
}

// untouched ends the test unless the node has neither plugin nor entry.
func (n *node) untouched() {
	n.t.Helper()
	if n.read("10-a.conflist") != mainList || len(n.files(n.bin)) > 0 {
		n.t.Errorf("the node was changed: %v\n%s", n.files(n.bin), n.read("10-a.conflist"))
	}
}

// A host whose own rules do not translate the cluster DNS address is refused before anything is written, with what was seen and
// what to do; with --force it is not.
func TestRefusesWhatNothingTranslates(t *testing.T) {
	testutil.RequireRoot(t)
	dns := netip.MustParseAddr("10.96.0.10")
	for name, tc := range map[string]struct {
		prepare func(*testutil.NetNS)
		why     string
	}{
		"an empty host": {func(*testutil.NetNS) {}, "no rules of kube-proxy"},
		"Cilium in kube-proxy's place": {func(ns *testutil.NetNS) {
			ns.Bridge("cilium_host")
			ns.AddAddr("cilium_host", netip.MustParsePrefix("10.0.0.1/32"))
			ns.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), netip.Addr{}, "cilium_host")
		}, "Cilium is on this node"},
		"kube-proxy without this Service": {func(ns *testutil.NetNS) {
			testutil.InstallProxy(t, ns, testutil.IPTables, testutil.DNSService(netip.MustParseAddr("10.96.0.99"), netip.MustParseAddr("10.244.0.9"))...)
		}, "kube-proxy's rules in iptables-nft name other addresses"},
		"rules that only let it pass": {func(ns *testutil.NetNS) {
			ns.Run("iptables-legacy", "-w", "-t", "raw", "-A", "PREROUTING", "-d", dns.String(), "-p", "udp", "-j", "NOTRACK")
		}, "no rules of kube-proxy"},
	} {
		t.Run(name, func(t *testing.T) {
			n, ns := newNode(t), testutil.NewNS(t, "install")
			n.network("10-a.conflist", mainList)
			tc.prepare(ns)
			code, out := n.installIn(ns)
			want(t, code, 1, out, "nothing in this host's netfilter or IPVS translates 10.96.0.10 ("+tc.why, "Run kube-proxy", "--force installs all the same")
			n.untouched()
			code, out = n.installIn(ns, "--dry-run")
			want(t, code, 1, out, "nothing in this host's")
			code, out = n.installIn(ns, "--force")
			want(t, code, 0, out, "warning: nothing in this host's")
			n.wantTypes("10-a.conflist", "flannel", "neardns")
			// What was installed before is not taken for a mistake: the agent judges by real questions.
			code, out = n.installIn(ns)
			want(t, code, 0, out, "warning: nothing in this host's", "is up to date")
		})
	}
}

func TestInstallsWhereItIsTranslated(t *testing.T) {
	testutil.RequireRoot(t)
	service := testutil.DNSService(netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("10.244.0.9"))
	legacy := func(ns *testutil.NetNS) {
		for _, args := range [][]string{{"-N", "KUBE-SERVICES"}, {"-N", "KUBE-SVC-TCOU7JCQXEZGVUNU"},
			{"-A", "KUBE-SERVICES", "-d", "10.96.0.10", "-p", "udp", "--dport", "53", "-j", "KUBE-SVC-TCOU7JCQXEZGVUNU"}} {
			ns.Run(slices.Concat([]string{"iptables-legacy", "-w", "-t", "nat"}, args)...)
		}
	}
	for name, tc := range map[string]struct {
		prepare func(*testutil.NetNS)
		says    string
	}{
		"iptables-nft": {func(ns *testutil.NetNS) { testutil.InstallProxy(t, ns, testutil.IPTables, service...) },
			"10.96.0.10 is translated by iptables-nft, table nat"},
		"iptables-legacy": {legacy, "10.96.0.10 is translated by iptables-legacy, table nat"},
		"nftables": {func(ns *testutil.NetNS) { testutil.InstallProxy(t, ns, testutil.NFTables, service...) },
			"10.96.0.10 is translated by nftables, table kube-proxy"},
		"who knows": {func(ns *testutil.NetNS) {
			ns.Bridge("ovn-k8s-mp0")
			ns.AddRoute(netip.MustParsePrefix("10.96.0.0/12"), netip.Addr{}, "ovn-k8s-mp0")
		}, "whether this host translates 10.96.0.10 cannot be told: it has a route of its own"},
	} {
		t.Run(name, func(t *testing.T) {
			n, ns := newNode(t), testutil.NewNS(t, "install")
			n.network("10-a.conflist", mainList)
			tc.prepare(ns)
			code, out := n.installIn(ns)
			want(t, code, 0, out, tc.says)
			n.wantTypes("10-a.conflist", "flannel", "neardns")
		})
	}
}

// Where nobody is to be steered, or the watch only keeps what is there, nothing is asked.
func TestSteeringNobodyIsNotAsked(t *testing.T) {
	testutil.RequireRoot(t)
	n, ns := newNode(t), testutil.NewNS(t, "install")
	n.network("10-a.conflist", mainList)
	n.write(n.args[slices.Index(n.args, "--entry")+1], strings.Replace(testEntry, `"redirects"`, `"steer":"off","redirects"`, 1), 0o644)
	code, out := n.installIn(ns)
	want(t, code, 0, out)
	if strings.Contains(out, "10.96.0.10") {
		t.Errorf("said of a node that steers nobody:\n%s", out)
	}
}

// At a node's start kube-proxy may come later than the installer, which waits for it.
func TestWaitsForKubeProxy(t *testing.T) {
	n := newNode(t)
	n.network("10-a.conflist", mainList)
	for after, wantErr := range map[time.Duration]string{30 * time.Second: "",
		2 * time.Minute: "nothing in this host's netfilter or IPVS translates 10.96.0.10 (not yet)"} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			begin, looks := time.Now(), 0
			in := install{folders: folders{bin: n.bin, conf: n.conf}, out: &out, wait: time.Minute, told: map[string]bool{}}
			in.look = func(addresses ...netip.Addr) []translate.Finding {
				looks++
				if time.Since(begin) < after {
					return []translate.Finding{{Address: addresses[0], State: translate.None, Why: "not yet"}}
				}
				return []translate.Finding{{Address: addresses[0], State: translate.Translated, Why: "kube-proxy"}}
			}
			err := in.await(t.Context(), []byte(testEntry))
			if fmt.Sprint(err)[:min(len(wantErr), len(fmt.Sprint(err)))] != wantErr || (err == nil) != (wantErr == "") {
				t.Errorf("%v, want %q", err, wantErr)
			}
			if took := time.Since(begin); took > time.Minute || looks > int(time.Minute/lookEvery)+1 {
				t.Errorf("took %v, looked %d times", took, looks)
			}
			if n := strings.Count(out.String(), "waiting up to 1m0s"); n != 1 {
				t.Errorf("said %d times:\n%s", n, out.String())
			}
		})
	}
}

func TestSteeredTo(t *testing.T) {
	four, six := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")
	for entry, addresses := range map[string][]netip.Addr{
		`{"type":"neardns","redirects":["10.96.0.10","fd00:96::a"]}`:                                           {four, six},
		`{"type":"neardns","redirects":[{"clusterDNS":"10.96.0.10","steering":"169.254.20.11"},"fd00:96::a"]}`: {four, six},
		`{"type":"neardns","steer":"proven","redirects":["10.96.0.10"]}`:                                       {four},
		`{"type":"neardns","steer":"off","redirects":["10.96.0.10"]}`:                                          nil,
	} {
		got, err := steeredTo([]byte(entry))
		if d := cmp.Diff(addresses, got, cmpopts.EquateComparable(netip.Addr{})); err != nil || d != "" {
			t.Errorf("%s: %v\n%s", entry, err, d)
		}
	}
	for _, bad := range []string{`{"redirects":["x"]}`, `{"redirects":[{}]}`, `{"redirects":[""]}`, `{"redirects":[7]}`} {
		if _, err := steeredTo([]byte(bad)); err == nil || !strings.Contains(err.Error(), "redirects[0]") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// An entry that an operator wrote may be anything: it is read or refused.
func FuzzSteeredTo(f *testing.F) {
	f.Add(testEntry)
	f.Add(`{"redirects":["10.96.0.10"]}`)
	f.Add(`{"redirects":[{},7]}`)
	f.Fuzz(func(t *testing.T, entry string) {
		if got, err := steeredTo([]byte(entry)); err != nil && got != nil {
			t.Errorf("%v beside %v", got, err)
		}
	})
}
