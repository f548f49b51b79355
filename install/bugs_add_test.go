package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// istio/istio#60668: after a reboot, the plugin's ADD for its own pod needed a file under /run that only this pod makes. Here the real
// plugin starts pods on a node that has just booted: no agent, no socket, none of our folders in /run. Each ADD must succeed, STATUS must
// not keep the node from becoming ready, and kube-dns must answer the pod.
func TestBug07PodsStartBeforeUs(t *testing.T) {
	testutil.RequireRoot(t)
	n := newNode(t)
	testutil.Must(t, os.Remove(n.plugin)) // the stand-in
	testutil.Build(t, n.plugin, "../plugins/neardns")
	dir := filepath.Dir(n.bin)
	state, persist := filepath.Join(dir, "run/neardns"), filepath.Join(dir, "lib/neardns")
	whole := testutil.NewNode(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables, Attach: testutil.PTP, Name: "bug07"})
	redirects := fmt.Sprintf("%q,%q", whole.ClusterDNS()[0], whole.ClusterDNS()[1])
	n.write(filepath.Join(dir, "src/entry.json"), fmt.Sprintf(`{"type":"neardns","redirects":[%s],"stateDir":%q,"persistDir":%q}`, redirects, state,
		persist), 0o644)
	n.network("10-a.conflist", `{"name":"cbr0","cniVersion":"1.1.0","plugins":[{"type":"main"}]}`)
	code, out := n.install()
	want(t, code, 0, out)

	list, err := libcni.NetworkConfFromFile(filepath.Join(n.conf, "10-a.conflist"))
	testutil.Must(t, err)
	cni := libcni.NewCNIConfigWithCacheDir([]string{n.bin}, n.cache(), &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: io.Discard}})
	for _, proven := range []bool{false, true} { // the record of the fallback check survives a reboot
		if proven {
			testutil.Must(t, nodestate.ProofFile(persist).Write(nodestate.Proof{ClusterDNS: whole.ClusterDNS(), Time: time.Unix(1_700_000_000, 0)}))
		}
		pod := whole.AddPod(fmt.Sprintf("pod%v", proven))
		n.mainPlugin(pod)
		conf := &libcni.RuntimeConf{ContainerID: "id-" + fmt.Sprint(proven), NetNS: pod.Path(), IfName: "eth0"}
		ctx, cancel := context.WithCancel(testutil.Context(t))
		defer cancel()
		whole.Host.Do(func() {
			if err := cni.GetStatusNetworkList(ctx, list); err != nil {
				t.Errorf("STATUS: %v", err)
			}
			if _, err := cni.AddNetworkList(ctx, list, conf); err != nil {
				t.Errorf("ADD: %v", err)
			}
			if err := cni.CheckNetworkList(ctx, list, conf); err != nil {
				t.Errorf("CHECK: %v", err)
			}
		})
		if f, err := podfile.Read(podfile.Path(state, conf.ContainerID, "eth0")); err != nil {
			t.Error(err)
		} else if d := f.Decisions[0]; d.State != podfile.Pending || strings.Contains(d.Reason, "fallback") == proven {
			t.Errorf("the pod is %s (%s), and the fallback verified: %t", d.State, d.Reason, proven)
		}
		for _, a := range whole.ClusterDNS() {
			for _, network := range []string{"udp", "tcp"} {
				testutil.Eventually(t, func() error { // the first packet on a link may wait for address resolution
					answer, err := testutil.Ask(pod.NetNS, netip.AddrPortFrom(a, 53), "a.cluster.local.", dns.TypeA, network, testutil.AskOptions{})
					if err == nil && answer.Who == "" {
						err = fmt.Errorf("an answer that kube-dns did not make: %s", answer)
					}
					return err
				})
			}
		}
		whole.Host.Do(func() {
			if err := cni.DelNetworkList(ctx, list, conf); err != nil {
				t.Errorf("DEL: %v", err)
			}
		})
	}
}

// mainPlugin installs a plugin for the main network that only returns the addresses of pod, which is attached already.
func (n *node) mainPlugin(pod *testutil.Pod) {
	n.t.Helper()
	var ips []string
	for _, a := range pod.Addrs {
		ips = append(ips, fmt.Sprintf(`{"address":"%s/%d","interface":0}`, a, a.BitLen()-8))
	}
	result := fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":%q}],"ips":[%s]}`, pod.Path(), strings.Join(ips, ","))
	script := "#!/bin/sh\ncat >/dev/null\ncase $CNI_COMMAND in\nVERSION) echo " +
		"'{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"1.0.0\",\"1.1.0\"]}';;\nADD) echo '" + result + "';;\nesac\n"
	testutil.Must(n.t, os.WriteFile(filepath.Join(n.bin, "main"), []byte(script), 0o755))
}
