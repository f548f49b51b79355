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
			n, persist := newNode(t), t.TempDir()
			n.network("10-a.conflist", mainList)
			if tc.proof.Boot != "" {
				tc.proof.Time = time.Unix(1, 0)
				testutil.Must(t, nodestate.ProofFile(persist).Write(tc.proof))
			}
			if tc.entry != "" {
				n.write(n.args[3], tc.entry, 0o644)
			}
			code, out := n.install("--persist-dir", persist)
			want(t, code, 0, out, tc.want)
			if tc.want == "" && strings.Contains(out, "fallback") {
				t.Errorf("printed on a node that steers no pod:\n%s", out)
			}
			n.wantTypes("10-a.conflist", "flannel", "neardns")
		})
	}
	n, persist := newNode(t), t.TempDir()
	n.network("10-a.conflist", mainList)
	n.write(filepath.Join(persist, filepath.Base(nodestate.ProofFile("").Path)), "{", os.FileMode(0o644))
	code, out := n.install("--persist-dir", persist)
	want(t, code, 0, out, "warning: ", persist)
}
