package main

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/testutil"
)

// A pod may have a local address only if its queries to the cluster DNS address would be steered.
func TestPlanLocals(t *testing.T) {
	way := []hostnet.Found{{HostInterface: "veth1"}, {HostInterface: "veth1"}}
	proof := nodestate.Proof{ClusterDNS: addrs("10.96.0.10", "fd00:96::a")}
	const both = `"redirects":["10.96.0.10","fd00:96::a"],"localAddresses":["169.254.20.10","169.254.20.9","fd00:90de:d95::a"]`
	for name, tc := range map[string]struct {
		keys  string
		in    call
		facts facts
		want  [2]string // of each family: the address, or why not
	}{
		"proven":          {both, call{}, facts{Ways: way, Proof: proof}, [2]string{"169.254.20.10", "fd00:90de:d95::a"}},
		"not proven":      {both, call{}, facts{Ways: way}, [2]string{"!not yet verified", "!not yet verified"}},
		"told not to ask": {both + `,"steer":"always"`, call{}, facts{Ways: way}, [2]string{"169.254.20.10", "fd00:90de:d95::a"}},
		"one family":      {`"redirects":["10.96.0.10","fd00:96::a"],"localAddresses":["fd00:90de:d95::a"]`, call{}, facts{Ways: way, Proof: proof}, [2]string{"!localAddresses has none", "fd00:90de:d95::a"}},
		"off":             {both + `,"steer":"off"`, call{}, facts{}, [2]string{"!steer is off", "!steer is off"}},
		"opted out":       {both, call{Settings: podSettings{Annotations: podfile.Annotations{OptOut: true}}}, facts{Ways: way, Proof: proof}, [2]string{"!says so", "!says so"}},
		"the host's":      {both, call{SharesHost: true}, facts{}, [2]string{"!shares the host's", "!shares the host's"}},
		"no way":          {both, call{}, facts{Ways: []hostnet.Found{{Err: errors.New("macvlan")}, way[0]}, Proof: proof}, [2]string{"!macvlan", "fd00:90de:d95::a"}},
		"no rules": {both, call{}, facts{Ways: way, Proof: proof, Unsupported: errors.New("no nftables")},
			[2]string{"!no nftables", "!no nftables"}},
		"no uplinks": {both, call{}, facts{Ways: way, Proof: proof, UplinksErr: errors.New("dump")}, [2]string{"!uplinks are unknown", "!uplinks are unknown"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := planLocals(mustConf(t, []byte(strings.Replace(minimal, `"redirects":["10.96.0.10"]`, tc.keys, 1))), tc.in, tc.facts)
			for i, l := range got {
				if why, bad := strings.CutPrefix(tc.want[i], "!"); bad != (l.Err != nil) || bad && !strings.Contains(l.Err.Error(), why) || !bad && l.Local.String() != tc.want[i] {
					t.Errorf("%s: %s, %v, want %q", l.ClusterDNS, l.Local, l.Err, tc.want[i])
				}
			}
			named, cannot := namedLocals(got, resolvconf.Settings{Nameservers: []string{"10.96.0.10"}})
			if (got[0].Err == nil) != (named["10.96.0.10"] == "169.254.20.10") || len(cannot) > 1 || (got[0].Err == nil) != (len(cannot) == 0) {
				t.Errorf("named %v, cannot %v", named, cannot)
			}
		})
	}
}

// The pod's resolv.conf has the local address, the host's rules know it, and the pod's state file has the decision.
func TestLocalInTheSandboxsFile(t *testing.T) {
	r, node, pod := ptpNode(t, testutil.IPv4)
	pattern, path := sandboxFile(t, "c1", kubeletText)
	conf := object{"resolvConfPaths": []string{pattern}, "localAddresses": []string{"169.254.20.10"}, "dns": object{"nameservers": []string{"local"}},
		"runtimeConfig": object{"dns": object{"servers": []string{"10.96.0.10"}}}}
	r.must(addRequest("c1", pod, conf))
	testutil.WantFile(t, path, strings.Replace(kubeletText, "10.96.0.10", "169.254.20.10", 1))
	f := r.file("c1")
	if f.DNS.State != podfile.Overlaid || f.DNS.Overlay.Instead["10.96.0.10"] != "169.254.20.10" || len(f.Ignored) > 0 {
		t.Errorf("%+v, ignored %v", f.DNS, f.Ignored)
	}
	if d := f.Decisions[0]; d.State != podfile.Steered || d.Local != netip.MustParseAddr("169.254.20.10") {
		t.Errorf("decision %+v", d)
	}
	if rules := node.Host.Run("nft", "list", "table", "inet", "neardns"); !strings.Contains(rules, "169.254.20.10") {
		t.Errorf("the switch does not know the address:\n%s", rules)
	}
	r.must(addRequest("c1", pod, conf).with("CHECK"))
	r.must(addRequest("c1", pod, conf).with("DEL"))

	// If the fallback is not verified, the pod keeps the kubelet's file, and the log has the reason.
	pattern, path = sandboxFile(t, "c2", kubeletText)
	conf["resolvConfPaths"], conf["steer"] = []string{pattern}, "proven"
	r.must(addRequest("c2", pod, conf))
	testutil.WantFile(t, path, kubeletText)
	f = r.file("c2")
	want := []podfile.Ignored{{What: "nameserver local in place of 10.96.0.10", Why: "the fallback to 10.96.0.10 is not yet verified on this node"}}
	testutil.Equal(t, "ignored", want, f.Ignored)
	if f.DNS.State != podfile.AsGiven || f.Decisions[0].Local.IsValid() {
		t.Errorf("%+v", f)
	}
	r.must(addRequest("c2", pod, conf).with("DEL"))

	// The pod requests it by an annotation, and the runtime makes the file later.
	conf["steer"], conf["dns"] = "always", object{}
	conf["resolvConfPaths"] = []string{strings.Replace(pattern, "{id}", "none/{id}", 1)}
	conf["runtimeConfig"] = object{"dns": object{"servers": []string{"10.96.0.10"}}, keyAnnotations: object{overlay.AnnotationParams: "nameservers: local"}}
	r.must(addRequest("c3", pod, conf))
	f = r.file("c3")
	if f.DNS.State != podfile.Waiting || f.DNS.Overlay.Instead["10.96.0.10"] != "169.254.20.10" || f.Decisions[0].State != podfile.Steered || !f.Decisions[0].Local.IsValid() {
		t.Errorf("%+v, %+v", f.DNS, f.Decisions)
	}
	r.must(addRequest("c3", pod, conf).with("DEL"))
	testutil.ReadFile(t, path)
}
