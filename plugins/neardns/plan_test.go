package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

func mustConf(t *testing.T, stdin []byte) *Conf {
	t.Helper()
	c, err := parseConf(stdin)
	testutil.Must(t, err)
	return c
}

func addrs(s ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// prevResults, by what is special about them. Odd white space and unknown keys show that ADD passes the bytes on unchanged.
var prevResults = map[string]struct {
	json string
	want []netip.Addr
}{
	"one address": {`{"cniVersion":"1.1.0", "ips":[{"address":"10.1.0.5/24","interface":0}],"interfaces":[{"name":"eth0","sandbox":"/x"}]}`, addrs("10.1.0.5")},
	"two interfaces": {`{"cniVersion":"1.1.0","interfaces":[{"name":"cni0"},{"name":"veth1"},{"name":"eth0","sandbox":"/x","mtu":1400,"socketPath":"/s","pciID":"p"}],
		"ips":[{"address":"10.1.0.1/24","interface":0},{"address":"10.1.0.5/24","interface":2,"gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0","mtu":1300,"table":7}]}`, addrs("10.1.0.5")},
	"two in the pod": {`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"},{"name":"net1","sandbox":"/x"}],
		"ips":[{"address":"10.1.0.5/24","interface":0},{"address":"10.2.0.5/24","interface":1}]}`, addrs("10.1.0.5")},
	"IPv6 only":        {`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"fd01::5/64","interface":0}]}`, addrs("fd01::5")},
	"dual stack":       {`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"10.1.0.5/32","interface":0},{"address":"fd01::5/128","interface":0}]}`, addrs("10.1.0.5", "fd01::5")},
	"no interfaces":    {`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.5/24"}],"example.org/key":{"b":1,"a":[ 2 ]}}`, addrs("10.1.0.5")},
	"index too large":  {`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.5/24","interface":9}]}`, addrs("10.1.0.5")},
	"nothing":          {`{"cniVersion":"1.1.0"}`, nil},
	"unknown and long": {`{"unknown":123456789012345678901234567890,"cniVersion":"1.1.0","dns":{"nameservers":["10.96.0.10"],"domain":"x"}}`, nil},
}

func TestPrevResultPassedThroughByteForByte(t *testing.T) {
	for name, tc := range prevResults {
		t.Run(name, func(t *testing.T) {
			out, got, err := passOn(mustConf(t, withKeys(`"prevResult":`+tc.json)), "eth0")
			testutil.Must(t, err)
			testutil.Equal(t, "result", tc.json, string(out))
			testutil.Equal(t, "addresses", tc.want, got)
		})
	}
}

func TestPrevResultOfAnotherVersion(t *testing.T) {
	conf := func(version, prev string) *Conf {
		return mustConf(t, []byte(fmt.Sprintf(`{"cniVersion":%q,"name":"n","redirects":["10.96.0.10"],"prevResult":%s}`, version, prev)))
	}
	// A result without a version gets that of the configuration.
	for prev, want := range map[string]string{
		`{"ips":[]}`:             `{"cniVersion":"1.0.0","ips":[]}`,
		"{\n }":                  `{"cniVersion":"1.0.0"}`,
		`{ "x/y" : {"z": 1.0} }`: `{"cniVersion":"1.0.0","x/y":{"z":1.0}}`,
		`{"cniVersion":"","a":12345678901234567890}`: `{"a":12345678901234567890,"cniVersion":"1.0.0"}`,
	} {
		out, _, err := passOn(conf("1.0.0", prev), "eth0")
		if err != nil || string(out) != want {
			t.Errorf("%s: %s, %v", prev, out, err)
		}
	}
	for _, from := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		for _, to := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
			version := ""
			if from < "1" {
				version = `"version":"4",`
			}
			prev := fmt.Sprintf(`{"cniVersion":%q,"interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{%s"interface":0,"address":"10.1.0.5/24"}]}`, from, version)
			out, got, err := passOn(conf(to, prev), "eth0")
			if err != nil {
				t.Fatalf("%s to %s: %v", from, to, err)
			}
			var head struct{ CNIVersion string }
			if err := json.Unmarshal(out, &head); err != nil || head.CNIVersion != to {
				t.Errorf("%s to %s: %s", from, to, out)
			}
			testutil.Equal(t, fmt.Sprintf("%s to %s", from, to), addrs("10.1.0.5"), got)
		}
	}
}

func TestPrevResultUnreadable(t *testing.T) {
	for _, prev := range []string{`7`, `[]`, `"x"`, `{"cniVersion":7}`, `{"cniVersion":"9.9.9"}`, `{"cniVersion":"1.1.0","ips":[{"address":"nonsense"}]}`, `{"cniVersion":"1.1.0","ips":7}`} {
		_, _, err := passOn(mustConf(t, withKeys(`"prevResult":`+prev)), "eth0")
		testutil.WantError(t, err, "prevResult cannot be read", prev)
	}
	_, _, err := passOn(mustConf(t, []byte(minimal)), "eth0")
	testutil.WantError(t, err, "must be called as chained plugin")
}

// settled adds the pod's DNS settings to a call, as they are known without the pod's resolv.conf.
func settled(c *Conf, in call) call {
	in.Settings = planSettings(c, in, c.Rules.For(keyDNS, in.Pod.Namespace, c.Annotations), settingsFacts{SandboxErr: errNotSearched})
	return in
}

func TestLeaveAlone(t *testing.T) {
	dns := func(servers ...string) string {
		list, _ := json.Marshal(servers)
		return fmt.Sprintf(`"runtimeConfig":{"dns":{"Servers":%s}}`, list)
	}
	for name, tc := range map[string]struct {
		keys string
		in   call
		want string
	}{
		"nameservers unknown":        {`"x/y":1`, call{}, ""},
		"nameservers empty":          {dns(), call{}, ""},
		"cluster DNS first":          {dns("10.96.0.10", "8.8.8.8"), call{}, ""},
		"cluster DNS last":           {dns("8.8.8.8", "10.96.0.10"), call{}, ""},
		"cluster DNS as mapped IPv6": {dns("::ffff:10.96.0.10"), call{}, ""},
		"its own":                    {dns("8.8.8.8", "1.1.1.1"), call{}, "none of the pod's nameservers (8.8.8.8, 1.1.1.1)"},
		"unreadable":                 {dns("nonsense"), call{}, "none of the pod's nameservers"},
		"opted out":                  {`"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"neardns.io/steer":"false"}}`, call{}, "annotation neardns.io/steer"},
		"off":                        {`"steer":"off"`, call{}, "steer is off"},
		"the host's netns":           {`"x/y":1`, call{SharesHost: true}, "shares the host's"},
	} {
		c := mustConf(t, withKeys(tc.keys))
		got := bypassReason(c, settled(c, tc.in))
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestPlan(t *testing.T) {
	const prev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"10.1.0.5/24","interface":0}]}`
	ok, noWay := hostnet.Found{HostInterface: "veth1"}, hostnet.Found{Err: &hostnet.WayError{Reason: "macvlan"}}
	proof := nodestate.Proof{ClusterDNS: addrs("10.96.0.10")}
	const local = `,"localAddresses":["169.254.20.10"],"runtimeConfig":{"dns":{"servers":["169.254.20.10","fd00:96::a"]}}`
	for name, tc := range map[string]struct {
		keys      string
		facts     facts
		states    string
		reasons   []string
		pod       []steer.Redirect
		exempt    []netip.Addr
		hostIface string
	}{
		"proven for one":         {"", facts{Ways: []hostnet.Found{ok, ok}, Proof: proof}, "untried untried", []string{"not tried yet", "fallback to fd00:96::a is not yet verified"}, nil, nil, "veth1"},
		"nothing proven":         {"", facts{Ways: []hostnet.Found{ok, ok}}, "untried untried", []string{"not yet verified", "not yet verified"}, nil, nil, "veth1"},
		"proof unreadable":       {"", facts{Ways: []hostnet.Found{ok, ok}, ProofErr: errors.New("torn")}, "untried untried", []string{"torn", "torn"}, nil, nil, "veth1"},
		"always":                 {`,"steer":"always"`, facts{Ways: []hostnet.Found{ok, ok}}, "steered steered", []string{"", ""}, []steer.Redirect{redirect4, redirect6}, nil, "veth1"},
		"always, no way":         {`,"steer":"always"`, facts{Ways: []hostnet.Found{noWay, ok}}, "left-alone steered", []string{"macvlan", ""}, []steer.Redirect{redirect6}, nil, "veth1"},
		"no way at all":          {`,"steer":"always"`, facts{Ways: []hostnet.Found{noWay, noWay}, Proof: proof}, "left-alone left-alone", []string{"macvlan", "macvlan"}, nil, nil, ""},
		"off":                    {`,"steer":"off"`, facts{Proof: proof}, "left-alone left-alone", []string{"off", "off"}, nil, nil, ""},
		"opted out":              {`,"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"neardns.io/steer":"false"}}`, facts{Ways: []hostnet.Found{noWay, ok}, Proof: proof}, "left-alone left-alone", []string{"annotation", "annotation"}, nil, addrs("10.1.0.5"), "veth1"},
		"opted out, elsewhere":   {`,"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"neardns.io/steer":"false"}}`, facts{Ways: []hostnet.Found{noWay, noWay}}, "left-alone left-alone", []string{"annotation", "annotation"}, nil, nil, ""},
		"opted out, open node":   {`,"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"neardns.io/steer":"false"}}`, facts{Ways: []hostnet.Found{ok, ok}, UplinksErr: errInjected}, "left-alone left-alone", []string{"annotation", "annotation"}, nil, nil, "veth1"},
		"open node":              {"", facts{Ways: []hostnet.Found{ok, ok}, Proof: proof, UplinksErr: errInjected}, "left-alone left-alone", []string{"uplinks are unknown: injected", "uplinks"}, nil, nil, "veth1"},
		"own nameservers":        {`,"runtimeConfig":{"dns":{"servers":["8.8.8.8"]}}`, facts{Proof: proof}, "left-alone left-alone", []string{"8.8.8.8", "8.8.8.8"}, nil, nil, ""},
		"next to another one":    {`,"steer":"always"`, facts{Ways: []hostnet.Found{ok, noWay}, Siblings: []podfile.File{{IfName: "net1", Decisions: []podfile.Decision{{Redirect: redirect6, State: podfile.Steered}}}}}, "steered left-alone", []string{"", "macvlan"}, []steer.Redirect{redirect4, redirect6}, nil, "veth1"},
		"local address, proven":  {local, facts{Ways: []hostnet.Found{ok, ok}, Proof: proof}, "steered untried", []string{"", "not yet verified"}, []steer.Redirect{redirect4}, nil, "veth1"},
		"local address, pending": {local, facts{Ways: []hostnet.Found{ok, ok}}, "pending untried", []string{"not yet verified", "not yet verified"}, nil, nil, "veth1"},
	} {
		t.Run(name, func(t *testing.T) {
			c := mustConf(t, []byte(`{"cniVersion":"1.1.0","name":"n","redirects":["10.96.0.10","fd00:96::a"],`+prev+tc.keys+`}`))
			p, err := makePlan(c, settled(c, call{ContainerID: "c", IfName: "eth0", NetNS: "/x", Inode: 1}), tc.facts)
			testutil.Must(t, err)
			var states []string
			for i, d := range p.File.Decisions {
				state := string(d.State)
				if d.Untried && d.State == podfile.Pending {
					state = "untried"
				}
				states = append(states, state)
				if !strings.Contains(d.Reason, tc.reasons[i]) || (d.Reason == "") != (tc.reasons[i] == "") {
					t.Errorf("reason %d: %q, want %q", i, d.Reason, tc.reasons[i])
				}
			}
			testutil.Equal(t, "states", tc.states, strings.Join(states, " "))
			testutil.Equal(t, "pod table", tc.pod, p.Pod.Redirects)
			testutil.Equal(t, "exempt", tc.exempt, p.Exempt)
			testutil.Equal(t, "host interface", tc.hostIface, p.File.HostInterface)
			testutil.Equal(t, "touches the host", strings.Contains(tc.states, "steered") || tc.exempt != nil, p.Touches())
		})
	}
}
