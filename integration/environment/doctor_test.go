package environment

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestDoctorSeesFaults makes faults that a living agent would repair at once, with the agent dead: the doctor needs none.
func TestDoctorSeesFaults(t *testing.T) {
	n := newNode(t, testutil.Dual, testutil.IPTables)
	n.start()
	n.wantHealthy("at first")
	testutil.Eventually(t, func() error {
		code, text := n.run("doctor", "--config", n.path("node.yaml"), "--cni-conf", n.path("net.d"), "--cni-bin", made.Dir(), "--json")
		err := json.Unmarshal([]byte(text), &struct{}{})
		return testutil.ErrorIf(code != 0 || err != nil, "--json exits with %d, %w:\n%s", code, err, text)
	})
	n.wantSeen("kube-proxy", "OK", "kube-proxy", "iptables")
	n.wantSeen("on disk", "OK", "fallback", "verified") // else it is a warning, which is healthy, too

	n.agent.Stop()
	n.wantSeen("hung", "FAIL", "agent", "does not answer")
	n.agent.Kill()
	n.wantSeen("dead", "FAIL", "agent", "no agent runs")
	n.wantSeen("dead", "FAIL", "leases", "no agent answers")
	n.wantSeen("dead", "OK", "rules")
	n.wantSeen("dead", "OK", "link")
	n.wantSeen("dead", "OK", "fallback", "verified")
	for _, f := range []struct {
		command, check string
		words          []string
	}{
		{"ip address add 192.0.2.77/32 dev neardns0", "link", []string{"192.0.2.77/32", "which the configuration does not have"}},
		{"ip address del 169.254.20.11/32 dev neardns0", "link", []string{"169.254.20.11 is missing"}},
		{"ip link set neardns0 down", "link", []string{"down"}},
		{"ip link del neardns0", "link", []string{"no such link"}},
		{"nft delete element inet neardns ours4 '{ 169.254.20.11 }'", "rules", []string{"set ours4 lacks 169.254.20.11"}},
		{"nft insert rule inet neardns switch6 drop", "rules", []string{"chain switch6"}},
		{"nft flush chain inet neardns switch4", "rules", []string{"chain switch4 lacks rule 1"}},
		{"nft delete table inet neardns", "rules", []string{"no packet rules of neardns"}},
	} {
		n.Host.Run("sh", "-c", f.command)
		n.wantSeen(f.command, "FAIL", f.check, f.words...)
	}
	n.pod.Run("nft", "flush", "ruleset")
	n.wantSeen("pod flushed", "WARN", "pods", "default/env-pod", "missing")
	n.write("net.d/05-other.conflist", `{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "ptp"}]}`)
	n.wantSeen("another network first", "FAIL", "conflist", "05-other.conflist", "10-pods.conflist")
	testutil.Must(t, os.WriteFile(podfile.Path(n.state, "broken-0123456789", "eth0"), []byte("{"), 0o600))
	n.wantSeen("broken file", "WARN", "pods", "broken-0123456789")
	n.Host.Run("sh", "-c", "iptables -t nat -F KUBE-SERVICES; ip6tables -t nat -F KUBE-SERVICES")
	n.wantSeen("kube-proxy's rules flushed", "FAIL", "fallback", "10.96.0.10", "fails now")
	n.write("node.yaml", strings.Replace(n.config(), "external: []", "external: ["+steering4.String()+"]", 1))
	if code, text := n.doctor(); code == 0 || !strings.Contains(text, "169.254.20.11") {
		t.Errorf("an upstream that is the agent itself: exit code %d\n%s", code, text)
	}
}
