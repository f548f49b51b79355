package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"github.com/neardns/neardns/integration/programs"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
)

// steeringAddress is what stands for the cluster DNS address on a node of ours.
var steeringAddress = netip.MustParseAddr("169.254.20.11")

// ours is a node with the agent, and pods that a conflist with the plugin has made.
type ours struct {
	*stand
	rules rules.Rules
	lease lease
	pods  int // that are steered
}

// lease is how long one lasts and how often it is renewed, 0 being the agent's default, and in whose rules it is kept. kernel is a mode of
// kernelHits, whose answers no lease bounds, in place of the default one.
type lease struct {
	renew, lifetime time.Duration
	rules           rules.Kind
	kernel          string
}

// renewed is how often a lease is renewed by default.
const renewed = 250 * time.Millisecond

func newOurs(t testutil.TB, bin func(string) string, dir string, l lease) *stand {
	proxy := testutil.NFTables
	if l.rules.Recorded() != "" {
		proxy = testutil.IPTables // the one that this back end goes with
	}
	s := newStand(t, bin, dir, "ours", proxy)
	o := &ours{stand: s, lease: l}
	s.subject = o
	rules, err := l.rules.OpenHost(s.node.Host.FD())
	s.must(err)
	t.Cleanup(func() { _ = rules.Close() })
	o.rules = rules
	s.node.Proxy.Add(second(s)...)
	o.configure(-1)
	s.noisy, o.pods = addPod(s, "noisy"), 1 // before neardns, which adopts it
	s.up()
	programs.AwaitSteered(t, s.path("state"), "noisy", "eth0")
	s.pod, o.pods = addPod(s, "pod", o.entry()), 2
	programs.AwaitSteered(t, s.path("state"), "pod", "eth0")
	s.await()
	return s
}

// configure writes the i-th configuration: each has another stub domain, and every other one a second redirect.
func (o *ours) configure(i int) {
	redirects := fmt.Sprintf("%q", clusterDNS)
	if i >= 0 && i%2 == 0 {
		redirects += fmt.Sprintf(", %q", secondDNS)
	}
	var terms []string
	if o.lease.renew > 0 {
		terms = append(terms, "renew: "+o.lease.renew.String())
	}
	if o.lease.lifetime > 0 {
		terms = append(terms, "lifetime: "+o.lease.lifetime.String())
	}
	kernel := ""
	if o.lease.kernel != "" {
		kernel = fmt.Sprintf("kernelHits: {mode: %q}\n", o.lease.kernel)
	}
	o.write("node.yaml", programs.NodeConfig(o.t, fmt.Sprintf(`clusterDomain: cluster.local
redirects: [%s]
localAddresses: [%q]
upstreams: {external: []}
stubDomains: {corp%d.example: [%q]}
kubeDNSConfigMap: %[5]s/none
stateDir: %[5]s/state
persistDir: %[5]s/persist
listen: {metrics: "127.0.0.1:9253", health: "127.0.0.1:8080"}
backend: %[7]s
lease: {%[6]s}
%[8]s`, redirects, localAddress, i+1, o.node.KubeDNSAddrs()[0].String(), o.dir, strings.Join(terms, ", "), o.lease.rules, kernel)))
}

func (o *ours) command() *exec.Cmd {
	return exec.Command(o.bin("neardns-agent"), "node", "--config", o.path("node.yaml"), "--cni-cache", o.path("cni-cache"))
}

// successor starts a second agent next to the first one.
func (o *ours) successor() *testutil.Process {
	cmd := o.command()
	cmd.Args = append(cmd.Args, "--take-over")
	return o.node.Host.StartCmd(cmd)
}

// handsOver reports whether this build of the agent can take over from another.
func handsOver(bin string) bool {
	out, _ := exec.Command(bin, "node", "--help").CombinedOutput()
	return strings.Contains(string(out), "take-over")
}

// ready is a lease for what pods query, over both protocols, a fallback that is proven, and each pod in the kernel where it is to answer.
func (o *ours) ready() error {
	leases, err := o.rules.Leases(cmp.Or(o.lease.renew, renewed), cmp.Or(o.lease.lifetime, steer.DefaultLifetime))
	if err != nil {
		return err
	}
	held := 0
	for _, l := range leases {
		if l.Address == steeringAddress {
			held++
		}
	}
	proof, _, err := nodestate.ProofFile(o.path("persist")).Read()
	if err == nil && (held < 2 || !proof.Covers(clusterDNS)) {
		err = fmt.Errorf("%d leases, proof %v", held, proof.ClusterDNS)
	}
	if err == nil && o.lease.kernel != kernelOff {
		var pods float64
		if pods, err = o.metric(`neardns_kernel_pods{state="answered"}`); err == nil && int(pods) != o.pods {
			err = fmt.Errorf("the kernel answers %v of %d pods", pods, o.pods)
		}
	}
	return err
}

// reload changes the configuration; the agent finds out by itself, as with a ConfigMap.
func (o *ours) reload(i int) {
	o.t.Helper()
	const done = "configuration reloaded"
	from := len(o.server.Output())
	o.configure(i)
	testutil.Eventually(o.t, func() error {
		if said := o.server.Output()[from:]; !strings.Contains(said, done) {
			return fmt.Errorf("%s did not say %q:\n%s", o.name, done, tail(said))
		}
		return nil
	})
}

func (o *ours) mend() {} // the agent does

func (o *ours) steered() (string, netip.Addr) { return "neardns0", steeringAddress }

// entry is the plugin's in the conflist.
func (o *ours) entry() map[string]any {
	return map[string]any{
		"type": "neardns", "redirects": []any{clusterDNS}, "clusterDomain": "cluster.local", "localAddresses": []any{localAddress},
		"stateDir": o.path("state"), "persistDir": o.path("persist"), "logFile": o.path("plugin.log"),
		"backend":      o.lease.rules.String(),
		"capabilities": map[string]any{"dns": true},
	}
}
