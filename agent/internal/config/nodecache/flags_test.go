package nodecache

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

var samePlain = []cmp.Option{cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(Options{}, "Notes")}

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

// plain returns the Options for no flag but -localip=169.254.20.10.
func plain() Options {
	return Options{LocalIPs: addrs("169.254.20.10"), Link: Link{SetupInterface: true, Interface: "nodelocaldns"}, SetupIptables: true,
		Template: "/etc/coredns/Corefile.base", Corefile: "/etc/Corefile", ConfigMap: "/etc/kube-dns", Check: time.Minute,
		UpstreamService: "kube-dns", Endpoints: Endpoints{SetupMetrics: "0.0.0.0:9353", Prometheus: ":9253", HealthPort: 8080}, Backend: "auto"}
}

// Every flag of node-cache and CoreDNS: what it changes in the Options, and which note it causes.
func TestFlags(t *testing.T) {
	for _, c := range []struct {
		args     string
		change   func(*Options)
		wantNote string // in a note; "" for no note at all
	}{
		{"", func(*Options) {}, ""},
		{"-localip 169.254.20.10,10.96.0.10", func(o *Options) { o.LocalIPs = addrs("169.254.20.10", "10.96.0.10") }, ""},
		{"-localip 169.254.20.10,", func(*Options) {}, ""},
		{"-localip fd00:90de:d95::a,169.254.20.10", func(o *Options) { o.LocalIPs = addrs("fd00:90de:d95::a", "169.254.20.10") }, "both families"},
		{"-setupinterface=false", func(o *Options) { o.SetupInterface = false }, ""},
		{"-interfacename dns0", func(o *Options) { o.Interface = "dns0" }, ""},
		{"-setupiptables=false", func(o *Options) { o.SetupIptables, o.Backend = false, "nftables" }, "iptables stays as it is"},
		{"-setupiptables=false -backend nftables", func(o *Options) { o.SetupIptables, o.Backend = false, "nftables" }, "iptables stays as it is"},
		{"-backend iptables-legacy", func(o *Options) { o.Backend = "iptables-legacy" }, ""},
		{"-skipteardown", func(o *Options) { o.SkipTeardown = true }, ""},
		{"-basecorefile /x/base", func(o *Options) { o.Template = "/x/base" }, ""},
		{"-conf /x/Corefile", func(o *Options) { o.Corefile = "/x/Corefile" }, ""},
		{"-conf=", func(o *Options) { o.Corefile = "" }, ""},
		{"-corefile /x/Corefile", func(o *Options) { o.Corefile = "/x/Corefile" }, "node-cache ignores the flag"},
		{"-corefile /x/Corefile -conf /y/Corefile", func(o *Options) { o.Corefile = "/y/Corefile" }, "no effect with -conf"},
		{"-kubednscm /x/kube-dns", func(o *Options) { o.ConfigMap = "/x/kube-dns" }, ""},
		{"-upstreamsvc kube-dns-upstream", func(o *Options) { o.UpstreamService = "kube-dns-upstream" }, ""},
		{"-syncinterval 30", func(o *Options) { o.Check = 30 * time.Second }, ""},
		{"-syncinterval 60ns", func(*Options) {}, "read as 1m0s"},
		{"-syncinterval 30s", func(o *Options) { o.Check = 30 * time.Second }, "multiplies it by a billion"},
		{"-syncinterval 1000ns", func(o *Options) { o.Check = 1000 * time.Second }, "read as 16m40s"},
		{"-syncinterval 2m", func(o *Options) { o.Check = 2 * time.Minute }, "multiplies it by a billion"},
		{"-metrics-listen-address 127.0.0.1:9000", func(o *Options) { o.SetupMetrics = "127.0.0.1:9000" }, ""},
		{"-metrics-listen-address=", func(o *Options) { o.SetupMetrics = "" }, ""},
		{"-prometheus-listen-address :9999", func(o *Options) { o.Prometheus = ":9999" }, ""},
		{"-health-port 8081", func(o *Options) { o.HealthPort = 8081 }, ""},
		{"-reloadwithsignal", func(*Options) {}, "take effect at once"},
		{"-pidfile /tmp/node-cache.pid", func(*Options) {}, "no effect"},
		{"-dns.port 53", func(*Options) {}, ""},
		{"-p 53", func(*Options) {}, ""},
		{"-log-format text", func(*Options) {}, ""},
		{"-log-format json", func(o *Options) { o.JSONLog = true }, ""},
		{"-quiet", func(o *Options) { o.Quiet = true }, ""},
		{"-tls-enabled=false -tls-cert-file /x -tls-private-key-file /y -tls-client-auth-type NoClientCert -tls-client-ca-file /z -tls-min-version TLS13", func(*Options) {}, ""},
		{"-tls-enabled", func(o *Options) { o.SetupMetrics = "" }, "no metrics over TLS"},
		{"-initialdelay 10", func(*Options) {}, "no effect"},
		{"-setupebtables", func(*Options) {}, "no effect"},
		{"-fallback 10.96.0.10,fd00:96::a", func(o *Options) { o.Fallback = addrs("10.96.0.10", "fd00:96::a") }, ""},
		{"-nofastpath", func(o *Options) { o.NoFastPath = true }, ""},
		{"-cachememory 64", func(o *Options) { o.LimitMemoryMiB = 64 }, ""},
		{"--localip=169.254.20.10 --skipteardown=true", func(o *Options) { o.SkipTeardown = true }, ""},
	} {
		args := strings.Fields(c.args)
		if !strings.Contains(c.args, "-localip") {
			args = append([]string{"-localip", "169.254.20.10"}, args...)
		}
		got, err := Parse(args, os.Stderr)
		if err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		want := plain()
		c.change(&want)
		testutil.Equal(t, c.args, want, got, samePlain...)
		if notes := strings.Join(got.Notes, "; "); (notes == "") != (c.wantNote == "") || !strings.Contains(notes, c.wantNote) {
			t.Errorf("%s: notes %q, want %q", c.args, notes, c.wantNote)
		}
	}
}

// Each flag that is registered is in the table above, or ends the program; and it is in docs/move-from-nodelocal.md's table.
func TestEveryFlagIsTried(t *testing.T) {
	text := testutil.ReadFile(t, "flags_test.go")
	page, err := os.ReadFile("../../../../docs/move-from-nodelocal.md")
	testutil.Must(t, err)
	flags(new(Options), new(rawFlags)).VisitAll(func(f *flag.Flag) {
		if !strings.Contains(text, `"-`+f.Name) && !strings.Contains(text, " -"+f.Name+" ") {
			t.Errorf("-%s (%s) has no test", f.Name, f.Usage)
		}
		if !strings.Contains(string(page), "`-"+f.Name+"`") {
			t.Errorf("-%s is not in docs/move-from-nodelocal.md", f.Name)
		}
	})
}

func TestBadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"": "-localip names no address",
		"-localip __PILLAR__LOCAL__DNS__,10.96.0.10":              "placeholder __PILLAR__LOCAL__DNS__: fill it in first",
		"-localip 169.254.20.300":                                 `"169.254.20.300" is not an IP address`,
		"-localip fe80::1%eth0":                                   "without port or interface",
		"-localip 1.2.3.4 -interfacename eth0/1":                  "not a name for an interface",
		"-localip 1.2.3.4 -interfacename a:b":                     "not a name for an interface",
		"-localip 1.2.3.4 -interfacename ..":                      "not a name for an interface",
		"-localip 1.2.3.4 -log-format xml":                        `-log-format "xml": write text or json`,
		"-localip 1.2.3.4 -setupinterface=perhaps":                "`neardns-agent nodecache -h` lists the flags",
		"-localip 1.2.3.4 -dns.port 5353":                         "only port 53 is served",
		"-localip 1.2.3.4 -p 5353":                                "only port 53 is served",
		"-localip 1.2.3.4 -backend ebpf":                          `-backend "ebpf": write one of auto, nftables, iptables, iptables-nft, iptables-legacy`,
		"-localip 1.2.3.4 -setupiptables=false -backend iptables": "remove one of the two",
		"-localip 1.2.3.4 -health-port x":                         "write a port number",
		"-localip 1.2.3.4 -cachememory -1":                        "write a number of mebibytes",
		"-localip 1.2.3.4 -syncinterval soon":                     "write seconds",
		"-localip 1.2.3.4 -syncinterval 0":                        "write 1s to 1h0m0s",
		"-localip 1.2.3.4 -syncinterval 100000":                   "write 1s to 1h0m0s",
		"-localip 1.2.3.4 -syncinterval -60s":                     "write 1s to 1h0m0s",
		"-localip 1.2.3.4 -metrics-listen-address x":              "write host:port",
		"-localip 1.2.3.4 more":                                   `unexpected argument "more"`,
		"-localip 1.2.3.4 -colour":                                "flag provided but not defined: -colour",
		"-localip 1.2.3.4 -fallback nowhere":                      `"nowhere" is not an IP address`,
	} {
		_, err := Parse(strings.Fields(args), os.Stderr)
		testutil.WantError(t, err, want, fmt.Sprintf("%q", args))
	}
}

func TestFlagsThatEnd(t *testing.T) {
	for args, want := range map[string]Options{"-version": {ShowVersion: true}, "-plugins": {ShowPlugins: true}} {
		got, err := Parse([]string{args}, os.Stderr)
		if err != nil || got.ShowPlugins != want.ShowPlugins || got.ShowVersion != want.ShowVersion {
			t.Errorf("%s: %+v, %v", args, got, err)
		}
	}
	var usage bytes.Buffer
	if _, err := Parse([]string{"-h"}, &usage); !errors.Is(err, flag.ErrHelp) || !strings.Contains(usage.String(), "-upstreamsvc NAME") || !strings.HasPrefix(usage.String(), "neardns-agent nodecache: ") {
		t.Errorf("-h: %v\n%s", err, usage.String())
	}
}

func TestResolve(t *testing.T) {
	both := map[string]string{"KUBE_DNS_SERVICE_HOST": "10.96.0.10", "KUBE_DNS_UPSTREAM_SERVICE_HOST": "10.96.0.11"}
	local := func(address, fallback string, service bool) steer.Local {
		return steer.Local{Address: netip.MustParseAddr(address), ClusterDNS: netip.MustParseAddr(fallback), Service: service}
	}
	for name, c := range map[string]struct {
		args     string
		env      map[string]string
		upstream string
		want     []steer.Local
		wantNote string // in a note, or the error where there is no upstream
	}{
		"the manifest": {"-localip 169.254.20.10,10.96.0.10 -upstreamsvc kube-dns-upstream", both, "10.96.0.11",
			[]steer.Local{local("169.254.20.10", "10.96.0.11", false), local("10.96.0.10", "10.96.0.11", true)}, ""},
		"IPVS": {"-localip 169.254.20.10 -upstreamsvc kube-dns-upstream", both, "10.96.0.11", []steer.Local{local("169.254.20.10", "10.96.0.11", false)}, ""},
		"no second Service": {"-localip 169.254.20.10 -upstreamsvc kube-dns-upstream", map[string]string{"KUBE_DNS_SERVICE_HOST": "10.96.0.10"}, "10.96.0.10",
			[]steer.Local{local("169.254.20.10", "10.96.0.10", false)}, "kube-dns at 10.96.0.10 gets the queries"},
		"no second Service, and its place taken": {"-localip 169.254.20.10,10.96.0.10 -upstreamsvc kube-dns-upstream",
			map[string]string{"KUBE_DNS_SERVICE_HOST": "10.96.0.10"}, "", nil, "make a second Service"},
		"the template's own": {"-localip 169.254.20.10 -basecorefile 10.96.0.12", nil, "10.96.0.12", []steer.Local{local("169.254.20.10", "10.96.0.12", false)}, "the template forwards"},
		"the template's own, and a Service": {"-localip 169.254.20.10 -basecorefile 10.96.0.12 -upstreamsvc kube-dns-upstream", both, "10.96.0.11",
			[]steer.Local{local("169.254.20.10", "10.96.0.11", false)}, ""},
		"-fallback alone":                     {"-localip 169.254.20.10 -fallback 10.96.0.13", nil, "10.96.0.13", []steer.Local{local("169.254.20.10", "10.96.0.13", false)}, "-fallback 10.96.0.13 gets the queries"},
		"-fallback of the other family alone": {"-localip 169.254.20.10 -fallback fd00:96::a", nil, "", nil, "name kube-dns's IPv4 address with -fallback"},
		"itself":                              {"-localip 169.254.20.10,10.96.0.10", both, "", nil, "the agent would query itself"},
		"nothing known":                       {"-localip 169.254.20.10", nil, "", nil, "-upstreamsvc kube-dns: KUBE_DNS_SERVICE_HOST is not set: run the pod"},
		"nothing known, a second Service":     {"-localip 169.254.20.10 -upstreamsvc up", nil, "", nil, "neither UP_SERVICE_HOST nor KUBE_DNS_SERVICE_HOST is set: run the pod"},
		"not an address":                      {"-localip 169.254.20.10", map[string]string{"KUBE_DNS_SERVICE_HOST": "here"}, "", nil, "KUBE_DNS_SERVICE_HOST is \"here\""},
		"headless":                            {"-localip 169.254.20.10", map[string]string{"KUBE_DNS_SERVICE_HOST": "None"}, "", nil, "a Service without an address"},
		"the other family":                    {"-localip 169.254.20.10,fd00:90de:d95::a -upstreamsvc kube-dns-upstream", both, "", nil, "name kube-dns's IPv6 address with -fallback"},
		"the other family, named": {"-localip 169.254.20.10,fd00:90de:d95::a -upstreamsvc kube-dns-upstream -fallback fd00:96::a", both, "10.96.0.11",
			[]steer.Local{local("169.254.20.10", "10.96.0.11", false), local("fd00:90de:d95::a", "fd00:96::a", false)}, ""},
		"the other family's Service is on the link": {"-localip 169.254.20.10,10.96.0.10,fd00:90de:d95::a,fd00:96::a -upstreamsvc kube-dns-upstream", both, "10.96.0.11",
			[]steer.Local{local("169.254.20.10", "10.96.0.11", false), local("10.96.0.10", "10.96.0.11", true), local("fd00:90de:d95::a", "fd00:96::a", false), local("fd00:96::a", "fd00:96::a", true)}, ""},
		"twice":           {"-localip 169.254.20.10,169.254.20.10 -upstreamsvc kube-dns-upstream", both, "", nil, "is listed twice"},
		"the prober's":    {"-localip 169.254.20.250 -upstreamsvc kube-dns-upstream", both, "", nil, "the prober's own address"},
		"loopback":        {"-localip 127.0.0.1 -upstreamsvc kube-dns-upstream", both, "", nil, "not a unicast address that pods can reach"},
		"IPv6 link-local": {"-localip fe80::a -upstreamsvc kube-dns-upstream -fallback fd00:96::a", both, "", nil, "not routed from a pod"},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := Parse(strings.Fields(c.args), os.Stderr)
			testutil.Must(t, err)
			named, _ := netip.ParseAddr(o.Template) // stands for the template's server
			got, err := o.Resolve(func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }, named)
			if c.upstream == "" {
				if err == nil || !strings.Contains(err.Error(), c.wantNote) {
					t.Fatalf("%v, want %q", err, c.wantNote)
				}
				return
			}
			testutil.Must(t, err)
			if got.Upstream.String() != c.upstream || !slices.Equal(got.Locals, c.want) {
				t.Errorf("got %s and %+v, want %s and %+v", got.Upstream, got.Locals, c.upstream, c.want)
			}
			if notes := strings.Join(got.Notes, "; "); (notes == "") != (c.wantNote == "") || !strings.Contains(notes, c.wantNote) {
				t.Errorf("notes %q, want %q", notes, c.wantNote)
			}
		})
	}
}

func TestServiceVariable(t *testing.T) {
	if got := ServiceVariable("kube-dns-upstream"); got != "KUBE_DNS_UPSTREAM_SERVICE_HOST" {
		t.Error(got)
	}
}
