package main

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/sandbox"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

const minimal = `{"cniVersion":"1.1.0","name":"pods","type":"neardns","redirects":["10.96.0.10"]}`

// withKeys puts keys into the minimal configuration.
func withKeys(keys string) []byte {
	return []byte(strings.TrimSuffix(minimal, "}") + "," + keys + "}")
}

func TestParseConfDefaults(t *testing.T) {
	got, err := parseConf([]byte(minimal))
	testutil.Must(t, err)
	want := &Conf{
		Name: "pods", CNIVersion: "1.1.0", Redirects: []steer.Redirect{redirect4}, ClusterDomain: "cluster.local", Steer: "proven", Backend: "auto",
		OnUnsupported: "allow", StateDir: "/run/neardns", PersistDir: "/var/lib/neardns", LogFile: "/run/neardns/plugin.log", LogLevel: slog.LevelInfo,
		ResolvConf: "auto", ResolvConfPaths: sandbox.Patterns(), HostResolvConf: "/etc/resolv.conf",
	}
	testutil.Equal(t, "configuration", want, got)
}

func TestParseConfEveryKey(t *testing.T) {
	got, err := parseConf([]byte(`{"cniVersion":"0.4.0","name":"n","type":"neardns",
		"redirects":["10.96.0.10",{"clusterDNS":"fd00:96::a","steering":"fd00:90de:d95::1b"},{"clusterDNS":"10.96.0.11"}],
		"clusterDomain":"corp.example.","localAddresses":["169.254.20.10","fd00:90de:d95::a"],"backend":"nftables","steer":"always",
		"stateDir":"/run/x/","persistDir":"/var/y","onUnsupported":"fail","logFile":"none","logLevel":"debug",
		"dns":{"options":["ndots:2"],"annotations":"ignore"},"resolvConf":"off","resolvConfPaths":["/x/{id}/resolv.conf"],"hostResolvConf":"/run/r"}`))
	testutil.Must(t, err)
	want := &Conf{
		Name: "n", CNIVersion: "0.4.0", ClusterDomain: "corp.example", Steer: "always", Backend: "nftables", OnUnsupported: "fail", StateDir: "/run/x",
		PersistDir: "/var/y", LogLevel: slog.LevelDebug,
		Rules:      overlay.Rules{Level: overlay.Level{Overlay: resolvconf.Overlay{Settings: resolvconf.Settings{Options: []string{"ndots:2"}}}, Annotations: overlay.Ignore}},
		ResolvConf: "off", ResolvConfPaths: []string{"/x/{id}/resolv.conf"}, HostResolvConf: "/run/r",
		Redirects: []steer.Redirect{redirect4, redirect("fd00:96::a", "fd00:90de:d95::1b"), redirect("10.96.0.11", "169.254.20.12")},
		Locals: []steer.Local{
			{Address: netip.MustParseAddr("169.254.20.10"), ClusterDNS: redirect4.ClusterDNS},
			{Address: netip.MustParseAddr("fd00:90de:d95::a"), ClusterDNS: redirect6.ClusterDNS},
		},
	}
	testutil.Equal(t, "configuration", want, got)
}

// Each fault is one clear error that names the field and the remedy.
func TestParseConfBadInput(t *testing.T) {
	for name, tc := range map[string]struct {
		stdin string
		code  uint
		want  []string // all in the message
	}{
		"empty":                    {"", 6, []string{"not a JSON object"}},
		"not JSON":                 {"{", 6, []string{"not a JSON object"}},
		"null":                     {"null", 6, []string{"not a JSON object"}},
		"a list":                   {"[]", 6, []string{"not a JSON object"}},
		"no redirects":             {`{"name":"n"}`, 7, []string{"redirects: missing", `["10.96.0.10"]`}},
		"redirects empty":          {`{"redirects":[]}`, 7, []string{"redirects: missing, empty"}},
		"redirects a string":       {`{"redirects":"10.96.0.10"}`, 7, []string{"redirects:", "not a list"}},
		"redirects null":           {`{"redirects":null}`, 7, []string{"redirects: missing"}},
		"redirect a number":        {`{"redirects":[10]}`, 7, []string{"redirects[0]: is a number: write \"10.96.0.10\" or {"}},
		"redirect null":            {`{"redirects":[null]}`, 7, []string{"redirects[0]: is null: write"}},
		"redirect no address":      {`{"redirects":["10.96.0.300"]}`, 7, []string{`redirects[0]: "10.96.0.300" is not an IP address`, "write it"}},
		"redirect with port":       {`{"redirects":["10.96.0.10:53"]}`, 7, []string{"redirects[0]:", "without port"}},
		"redirect a name":          {`{"redirects":["kube-dns"]}`, 7, []string{"redirects[0]:", "not an IP address"}},
		"redirect of two families": {`{"redirects":[{"clusterDNS":"10.96.0.10","steering":"fd00::1"}]}`, 7, []string{"redirects[0]:", "different families"}},
		"redirect unknown key":     {`{"redirects":[{"clusterDns":"10.96.0.10"}]}`, 7, []string{`redirects[0].clusterDns: unknown key: write "clusterDNS"`, "redirects[0].clusterDNS: missing"}},
		"redirect without":         {`{"redirects":[{"steering":"169.254.20.11"}]}`, 7, []string{"redirects[0].clusterDNS: missing"}},
		"steering no address":      {`{"redirects":[{"clusterDNS":"10.96.0.10","steering":""}]}`, 7, []string{"redirects[0].steering:"}},
		"misspelt":                 {`{"redirect":["10.96.0.10"]}`, 7, []string{`redirect: unknown key: write "redirects"`, "redirects: missing"}},
		"two faults":               {string(withKeys(`"colour":"red","steer":"on"`)), 7, []string{"colour:", "; steer:"}},
		"domain":                   {string(withKeys(`"clusterDomain":"a..b"`)), 7, []string{`clusterDomain: "a..b" is not a domain name`}},
		"domain a number":          {string(withKeys(`"clusterDomain":7`)), 7, []string{"clusterDomain: is a number: write a string, in quotes"}},
		"domain null":              {string(withKeys(`"clusterDomain":null`)), 7, []string{"clusterDomain: is null: write"}},
		"local no address":         {string(withKeys(`"localAddresses":["x"]`)), 7, []string{`localAddresses[0]: "x" is not an IP address`}},
		"local no list":            {string(withKeys(`"localAddresses":"169.254.20.10"`)), 7, []string{"localAddresses: is a string: write a list"}},
		"local is steering":        {string(withKeys(`"localAddresses":["169.254.20.11"]`)), 7, []string{"localAddresses[0]:", "already used"}},
		"backend":                  {string(withKeys(`"backend":"ebpf"`)), 7, []string{`backend: "ebpf" is not known: write one of auto, nftables, iptables, iptables-nft, iptables-legacy`}},
		"steer":                    {string(withKeys(`"steer":true`)), 7, []string{"steer: is a boolean: write a string"}},
		"onUnsupported":            {string(withKeys(`"onUnsupported":"ignore"`)), 7, []string{"onUnsupported:", "allow, fail"}},
		"stateDir":                 {string(withKeys(`"stateDir":"run/neardns"`)), 7, []string{`stateDir: "run/neardns" is not an absolute path`}},
		"stateDir with NUL":        {string(withKeys(`"stateDir":"/run/\u0000"`)), 7, []string{"stateDir:"}},
		"persistDir":               {string(withKeys(`"persistDir":""`)), 7, []string{"persistDir:", "absolute path"}},
		"logFile":                  {string(withKeys(`"logFile":"log"`)), 7, []string{"logFile:", "absolute path"}},
		"logFile a number":         {string(withKeys(`"logFile":5`)), 7, []string{"logFile: is a number: write a string"}},
		"logLevel":                 {string(withKeys(`"logLevel":"loud"`)), 7, []string{"logLevel:", "debug, info, warn, error"}},
		"valid attachments":        {string(withKeys(`"cni.dev/valid-attachments":{}`)), 7, []string{"cni.dev/valid-attachments:", "nothing is removed"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := parseConf([]byte(tc.stdin))
			var ce *confError
			if !errors.As(err, &ce) || ce.Code != tc.code {
				t.Fatalf("error %v", err)
			}
			for _, w := range tc.want {
				if strings.Count(err.Error(), w) != 1 {
					t.Errorf("%q has not once %q", err, w)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
			// DEL goes on with what is left.
			if c == nil || c.StateDir == "" || c.Steer == "" {
				t.Errorf("no usable rest: %+v", c)
			}
		})
	}
}

// The strict part ignores all keys that the runtime and libcni add.
func TestParseConfToleratesTheRuntime(t *testing.T) {
	for _, keys := range []string{
		`"capabilities":{"dns":true,"portMappings":true}`, `"args":{"cni":{"ips":["10.0.0.1"]}}`, `"args":7`, `"runtimeConfig":{}`, `"runtimeConfig":null`,
		`"runtimeConfig":7`, `"runtimeConfig":{"dns":"odd"}`, `"runtimeConfig":{"dns":null}`, `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":[1]}`,
		`"runtimeConfig":{"bandwidth":{"ingressRate":1},"cgroupPath":"/x"}`, `"ipam":{"type":"host-local"}`, `"ipMasq":true`,
		`"dns":{"nameservers":["1.1.1.1"]}`, `"disableCheck":true`, `"disableGC":true`, `"cniVersions":["1.0.0","1.1.0"]`,
		`"loadOnlyInlinedPlugins":true`, `"cni.dev/attachments":[]`, `"cni.dev/valid-attachments":null`, `"example.org/own":{"a":1}`, `"prevResult":null`,
	} {
		_, err := parseConf(withKeys(keys))
		testutil.Check(t, err, keys)
	}
	for value, notes := range map[string]int{`"false"`: 0, `"true"`: 0, `false`: 1} { // an annotation that is no string gives a note
		c, err := parseConf(withKeys(`"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"a":"b","neardns.io/steer":` + value + `}}`))
		testutil.Must(t, err)
		testutil.Equal(t, value+": notes", notes, len(c.Notes))
		testutil.Equal(t, value+": opted out", value == `"false"`, c.Rules.For(keyDNS, "shop", c.Annotations).OptOut)
	}
}

func TestDNSKeysInEitherCase(t *testing.T) {
	want := &podDNS{Servers: []string{"10.96.0.10"}, Searches: []string{"a.b"}, Options: []string{"ndots:5"}}
	for name, keys := range map[string]string{
		"containerd":     `"runtimeConfig":{"dns":{"Servers":["10.96.0.10"],"Searches":["a.b"],"Options":["ndots:5"]}}`,
		"the convention": `"runtimeConfig":{"dns":{"servers":["10.96.0.10"],"searches":["a.b"],"options":["ndots:5"]}}`,
	} {
		c, err := parseConf(withKeys(keys))
		testutil.Must(t, err)
		testutil.Equal(t, name, want, c.DNS)
	}
}

func TestUnknownCNIArgs(t *testing.T) {
	for args, want := range map[string]podArgs{
		"": {},
		"IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=f00;K8S_POD_UID=7c1f": {"web-0", "shop", "7c1f"},
		"K8S_POD_UID=7c1f;K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=shop":                                                {"web-0", "shop", "7c1f"},
		`IgnoreUnknown=true;NOMAD_ALLOC_ID=1;CONSUL_IPTABLES_CONFIG={"a":"b=c"};K8S_POD_NAME=x`:                     {Name: "x"},
		"K8S_POD_NAME=a=b;;;=;x;K8S_POD_NAMESPACE":                                                                  {Name: "a=b"},
	} {
		testutil.Equal(t, args, want, parseArgs(args))
	}
}

func TestGCKeys(t *testing.T) {
	a := []types.GCAttachment{{ContainerID: "a", IfName: "eth0"}}
	const list = `[{"containerID":"a","ifname":"eth0"}]`
	for keys, want := range map[string]struct {
		valid []types.GCAttachment
		known bool
	}{
		`"x/y":1`:                             {nil, false},
		`"cni.dev/valid-attachments":null`:    {nil, false},
		`"cni.dev/valid-attachments":[]`:      {nil, true},
		`"cni.dev/attachments":[]`:            {nil, true},
		`"cni.dev/attachments":` + list:       {a, true},
		`"cni.dev/valid-attachments":` + list: {a, true},
		`"cni.dev/valid-attachments":` + list + `,"cni.dev/attachments":null`:    {a, true},
		`"cni.dev/valid-attachments":` + list + `,"cni.dev/attachments":` + list: {append(a, a...), true},
	} {
		c, err := parseConf(withKeys(keys))
		if err != nil || c.ValidKnown != want.known || !cmp.Equal(want.valid, c.Valid, cmpopts.EquateEmpty()) {
			t.Errorf("%s: %v, %v, %v", keys, c.Valid, c.ValidKnown, err)
		}
	}
}

func FuzzParseConf(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add(withKeys(`"localAddresses":["169.254.20.10"],"steer":"always","logFile":"none","clusterDomain":"a.b."`))
	f.Add(withKeys(`"runtimeConfig":{"dns":{"Servers":["10.96.0.10"]},"io.kubernetes.cri.pod-annotations":{"neardns.io/steer":"false"}}`))
	f.Add(withKeys(`"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}],"prevResult":{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.0.0.1/24"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseConf(data)
		if c == nil {
			t.Fatal("no configuration")
		}
		var ce *confError
		if err != nil && (!errors.As(err, &ce) || len(ce.Faults) == 0 || err.Error() == "") {
			t.Fatalf("an error that says nothing: %v", err)
		}
		if err == nil && len(c.Redirects) == 0 {
			t.Fatal("accepted without redirects")
		}
		if err != nil {
			return
		}
		in := call{ContainerID: "a", IfName: "eth0"}
		plan, err := makePlan(c, settled(c, in), facts{Ways: make([]hostnet.Found, len(c.Redirects))})
		if err != nil {
			return
		}
		if !json.Valid(plan.Result) {
			t.Fatalf("result is not JSON: %q", plan.Result)
		}
		if len(plan.File.Decisions) != len(c.Redirects) {
			t.Fatalf("%d decisions for %d redirects", len(plan.File.Decisions), len(c.Redirects))
		}
		if n := len(plan.File.In(podfile.Steered)); n > 0 && c.Steer != conflist.SteerAlways {
			t.Fatalf("%d steered without proof", n)
		}
	})
}

func FuzzCNIArgs(f *testing.F) {
	f.Add("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0")
	f.Add(`CONSUL_IPTABLES_CONFIG={"a":"b=c"};K8S_POD_UID=`)
	f.Fuzz(func(t *testing.T, s string) {
		p := parseArgs(s)
		for _, v := range []string{p.Name, p.Namespace, p.UID} {
			if strings.Contains(v, ";") || !strings.Contains(s, v) {
				t.Fatalf("%q from %q", v, s)
			}
		}
		_ = p.String()
	})
}
