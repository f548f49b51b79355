package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

// Install prints whether the agent has verified the fallback on this node, and installs in either case.
func TestInstallPrintsWhatTheAgentVerified(t *testing.T) {
	dns := []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")}
	const none = "fallback to kube-dns is not verified yet"
	for name, tc := range map[string]struct {
		proof nodestate.Proof
		entry string
		want  string
	}{
		"no agent ran yet":  {want: none},
		"verified":          {proof: nodestate.Proof{ClusterDNS: dns, Boot: nodestate.ThisBoot()}, want: "fallback to kube-dns is verified for 10.96.0.10, fd00:96::a"},
		"an earlier boot":   {proof: nodestate.Proof{ClusterDNS: dns, Boot: "another"}, want: none},
		"no pod is steered": {entry: strings.Replace(testEntry, `"redirects"`, `"steer":"off","redirects"`, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			n, persist := flannelNode(t), t.TempDir()
			if tc.proof.Boot != "" {
				tc.proof.Time = time.Unix(1, 0)
				testutil.Must(t, nodestate.ProofFile(persist).Write(tc.proof))
			}
			if tc.entry != "" {
				n.write(n.entry, tc.entry, 0o644)
			}
			out := n.install(0, "--persist-dir", persist)
			out.has(tc.want)
			if tc.want == "" && strings.Contains(out.text, "fallback") {
				t.Errorf("printed on a node that steers no pod:\n%s", out.text)
			}
			n.wantTypes("10-a.conflist", "flannel", "neardns")
		})
	}
	n, persist := flannelNode(t), t.TempDir()
	n.write(filepath.Join(persist, filepath.Base(nodestate.ProofFile("").Path)), "{", os.FileMode(0o644))
	n.install(0, "--persist-dir", persist).has("warning: ", persist)
}
