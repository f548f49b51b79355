package upstream

import (
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/strict"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

func reader(files map[string]string) func(string) ([]byte, error) {
	return func(path string) ([]byte, error) {
		text, ok := files[path]
		if !ok {
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		}
		if strings.TrimSpace(text) == "denied" {
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission}
		}
		return []byte(text), nil
	}
}

func servers(s ...string) []nameserver.Address {
	var out []nameserver.Address
	for _, a := range s {
		out = append(out, nameserver.Address{Addr: netip.MustParseAddrPort(a)})
	}
	return out
}

// base is what a node with one cluster DNS address resolves, own addresses included.
func base(files map[string]string) Input {
	return Input{
		ClusterDomain: "cluster.local",
		Cluster:       servers("10.96.0.10:53"),
		External:      []nameserver.Source{{Path: "/etc/resolv.conf"}},
		ConfigMap:     "/etc/kube-dns",
		Own:           []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("169.254.20.11"), netip.MustParseAddr("fd00:90de:d95::a")},
		ReadFile:      reader(files),
	}
}

func texts(servers []nameserver.Address) []string {
	var out []string
	for _, s := range servers {
		out = append(out, s.String())
	}
	return out
}

// TestAuto: kube-dns's Corefile decides which servers answer for names outside the cluster, and kube-dns answers if something prevents
// that.
func TestAuto(t *testing.T) {
	const corefile = "/etc/kube-dns-corefile/Corefile"
	yes := map[string]string{corefile: "node", "/etc/resolv.conf": "nameserver 192.0.2.53\n"}
	with := func(more map[string]string) map[string]string {
		files := maps.Clone(yes)
		maps.Copy(files, more)
		return files
	}
	for _, tc := range []struct {
		name     string
		files    map[string]string
		external []string
		outside  string
	}{
		{"as kube-dns does", yes, []string{"192.0.2.53:53"},
			"the node's resolvers, because kube-dns's Corefile forwards to them, too: says node"},
		{"its own zone", with(map[string]string{corefile: "a zone"}), nil, "kube-dns, because says a zone"},
		{"not mounted", map[string]string{"/etc/resolv.conf": "nameserver 192.0.2.53\n"}, nil, "kube-dns, because its Corefile is not mounted here, at /etc/kube-dns-corefile/Corefile"},
		{"not readable", with(map[string]string{corefile: "denied"}), nil, "kube-dns, because its Corefile cannot be read: open /etc/kube-dns-corefile/Corefile: permission denied"},
		{"no resolv.conf", map[string]string{corefile: "node"}, nil,
			"kube-dns, because the node's resolvers are not available: read upstreams: open /etc/resolv.conf: file does not exist: mount the node's own there, or name servers under upstreams.external"},
		{"a bad resolv.conf", with(map[string]string{"/etc/resolv.conf": "nameserver 192.0.2.53\nnameserver 10.0.0.300\n"}), nil,
			`kube-dns, because the node's resolvers are not available: /etc/resolv.conf:2: nameserver "10.0.0.300" is not an IP address: write one, without port, or take the line out`},
		{"a resolv.conf that names us", with(map[string]string{"/etc/resolv.conf": "nameserver 169.254.20.10\n"}), nil,
			"kube-dns, because the node's resolvers are not available: /etc/resolv.conf:1: 169.254.20.10 is an address of the agent itself: it names no other server, so " +
				clusterInstead},
		{"kube-dns's ConfigMap, read by kube-dns", map[string]string{"/etc/resolv.conf": "nameserver 192.0.2.53\n", "/etc/kube-dns/upstreamNameservers": `["8.8.8.8"]`}, []string{"8.8.8.8:53"},
			"the servers of the configuration, because upstreamNameservers of kubeDNSConfigMap names them"},
		{"kube-dns's ConfigMap, beside CoreDNS", with(map[string]string{"/etc/kube-dns/upstreamNameservers": `["8.8.8.8"]`}), []string{"192.0.2.53:53"},
			"the node's resolvers, because kube-dns's Corefile forwards to them, too: says node"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := base(tc.files)
			in.External = nil
			in.Auto = &Auto{Corefile: corefile, NodeFile: "/etc/resolv.conf", Judge: func(text string) (bool, string) { return text == "node", "says " + text }}
			up, err := Resolve(in)
			testutil.Must(t, err)
			if diff := cmp.Diff(tc.external, texts(up.External)); diff != "" {
				t.Errorf("external (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.outside, up.Outside()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if !slices.Contains(up.Files, corefile) {
				t.Errorf("the Corefile is not followed: %v", up.Files)
			}
			if byNode := up.By == ByNode; up.Found != byNode || len(up.Warnings) > 0 {
				t.Errorf("found %t, warnings %q", up.Found, up.Warnings)
			}
		})
	}
}

func TestResolve(t *testing.T) {
	const conf, stubsFile, namesFile = "/etc/resolv.conf", "/etc/kube-dns/stubDomains", "/etc/kube-dns/upstreamNameservers"
	type want struct {
		Cluster, External []string
		Stub              map[string][]string
		Files, Notes      []string
		Warnings          []string
		Found             bool
	}
	tls := nameserver.Source{Address: nameserver.Address{Addr: netip.MustParseAddrPort("9.9.9.9:853"), TLS: true, ServerName: "dns.quad9.net"}}
	for name, tc := range map[string]struct {
		files  map[string]string
		change func(*Input)
		want   want
	}{
		"resolv.conf": {
			files: map[string]string{conf: "# made by hand\r\n; x\n\ndomain a.b\nsearch a.b c.d\noptions ndots:5\nnameserver 192.0.2.1\r\nnameserver\t192.0.2.2 # second\n" +
				"nameserver   2001:db8::1;x\nnameserver fe80::1%eth0\nnameserver 192.0.2.1\nnameserver 0.0.0.0\nnameserver ::"},
			want: want{External: []string{"192.0.2.1:53", "192.0.2.2:53", "[2001:db8::1]:53", "127.0.0.1:53", "[::1]:53"},
				Files: []string{stubsFile, namesFile, conf}, Notes: []string{"/etc/resolv.conf:10: fe80::1%eth0 is link-local and cannot be queried from here"}},
		},
		"lines that mean nothing are noted": {
			files: map[string]string{conf: "nameservers 192.0.2.9\n nameserver 192.0.2.8\nnameserver 192.0.2.1\n"},
			want: want{External: []string{"192.0.2.1:53"}, Files: []string{stubsFile, namesFile, conf}, Notes: []string{
				`/etc/resolv.conf:1: "nameservers 192.0.2.9" is no line of a resolv.conf and has no effect`,
				`/etc/resolv.conf:2: " nameserver 192.0.2.8" is no line of a resolv.conf and has no effect`}},
		},
		"systemd's stub gives way to what it asks": {
			files: map[string]string{conf: "nameserver 127.0.0.53\noptions edns0 trust-ad\n", UplinkFile: "nameserver 192.0.2.7\n"},
			want: want{External: []string{"192.0.2.7:53"}, Files: []string{stubsFile, namesFile, conf, UplinkFile}, Notes: []string{
				"/etc/resolv.conf names systemd-resolved's stub 127.0.0.53: its servers are read from " + UplinkFile}},
		},
		"systemd's stub, asked where its servers are not to be had": {
			files:  map[string]string{conf: "nameserver 127.0.0.53\n"},
			change: func(in *Input) { in.AskStub = true },
			want: want{External: []string{"127.0.0.53:53"}, Files: []string{stubsFile, namesFile, conf}, Notes: []string{
				"/etc/resolv.conf names systemd-resolved's stub 127.0.0.53: it is queried itself, because its own servers are not available here (" + UplinkFile + ")"}},
		},
		"systemd's stub, not asked where they are": {
			files:  map[string]string{conf: "nameserver 127.0.0.53\n", UplinkFile: "nameserver 192.0.2.7\n"},
			change: func(in *Input) { in.AskStub = true },
			want: want{External: []string{"192.0.2.7:53"}, Files: []string{stubsFile, namesFile, conf, UplinkFile}, Notes: []string{
				"/etc/resolv.conf names systemd-resolved's stub 127.0.0.53: its servers are read from " + UplinkFile}},
		},
		"systemd's stub, not asked beside others": {
			files:  map[string]string{conf: "nameserver 192.0.2.1\nnameserver 127.0.0.53\n"},
			change: func(in *Input) { in.AskStub = true },
			want: want{External: []string{"192.0.2.1:53"}, Files: []string{stubsFile, namesFile, conf}, Notes: []string{
				"/etc/resolv.conf:2: 127.0.0.53 is systemd-resolved's stub"}},
		},
		"the remedy in the user's terms": {
			files:  map[string]string{conf: "search corp.example\n"},
			change: func(in *Input) { in.Terms.External = "-servers" },
			want: want{Files: []string{stubsFile, namesFile, conf}, Warnings: []string{
				"/etc/resolv.conf: no line nameserver, so without other upstreams, the cluster's servers are used: name a server in it, or others under -servers"}},
		},
		"own addresses and the stub beside others are passed over": {
			files: map[string]string{conf: "nameserver 169.254.20.10\nnameserver 127.0.0.53\nnameserver 192.0.2.1\nnameserver 127.0.0.1\n"},
			want: want{External: []string{"192.0.2.1:53", "127.0.0.1:53"}, Files: []string{stubsFile, namesFile, conf}, Notes: []string{
				"/etc/resolv.conf:1: 169.254.20.10 is an address of the agent itself", "/etc/resolv.conf:2: 127.0.0.53 is systemd-resolved's stub"}},
		},
		"servers of the configuration, files beside them": {
			files: map[string]string{"/a": "nameserver 192.0.2.1\nnameserver 192.0.2.2\n"},
			change: func(in *Input) {
				in.External = []nameserver.Source{tls, {Path: "/a"}, {Address: nameserver.Address{Addr: netip.MustParseAddrPort("192.0.2.2:53")}}, {Path: "/a"}}
				in.ConfigMap = ""
			},
			want: want{External: []string{"tls://9.9.9.9%dns.quad9.net:853", "192.0.2.1:53", "192.0.2.2:53"}, Files: []string{"/a"}},
		},
		"nobody but ourselves": {
			files: map[string]string{conf: "nameserver 169.254.20.10\nnameserver fd00:90de:d95::a\n"},
			want: want{Files: []string{stubsFile, namesFile, conf}, Warnings: []string{
				"/etc/resolv.conf:1: 169.254.20.10 is an address of the agent itself; /etc/resolv.conf:2: fd00:90de:d95::a is an address of the agent itself: " +
					"it names no other server, so " + clusterInstead}},
		},
		"systemd's stub, which asks us": {
			files: map[string]string{conf: "nameserver 127.0.0.53\n", UplinkFile: "nameserver 169.254.20.10\n"},
			want: want{Files: []string{stubsFile, namesFile, conf, UplinkFile},
				Notes:    []string{"/etc/resolv.conf names systemd-resolved's stub 127.0.0.53: its servers are read from " + UplinkFile},
				Warnings: []string{UplinkFile + ":1: 169.254.20.10 is an address of the agent itself: it names no other server, so " + clusterInstead}},
		},
		"the cluster DNS address where it is intercepted": {
			files: map[string]string{conf: "nameserver 10.96.0.10\n"},
			change: func(in *Input) {
				in.Cluster, in.Own = servers("10.96.0.11:53"), append(in.Own, netip.MustParseAddr("10.96.0.10"))
			},
			want: want{Cluster: []string{"10.96.0.11:53"}, Files: []string{stubsFile, namesFile, conf},
				Warnings: []string{"/etc/resolv.conf:1: 10.96.0.10 is an address of the agent itself: it names no other server, so " + clusterInstead}},
		},
		"no nameserver at all": {
			files: map[string]string{conf: "# nothing\nsearch a.b\n"},
			want: want{Files: []string{stubsFile, namesFile, conf},
				Warnings: []string{"/etc/resolv.conf: no line nameserver, so " + clusterInstead}},
		},
		"another file has servers": {
			files: map[string]string{"/a": "nameserver 169.254.20.11\n", "/b": "nameserver 192.0.2.1\n"},
			change: func(in *Input) {
				in.External, in.ConfigMap, in.ExternalSet = []nameserver.Source{{Path: "/a"}, {Path: "/b"}}, "", true
			},
			want: want{External: []string{"192.0.2.1:53"}, Files: []string{"/a", "/b"},
				Notes: []string{"/a:1: 169.254.20.11 is an address of the agent itself: it names no other server, so " + clusterInstead}},
		},
		"no external": {
			change: func(in *Input) { in.External = nil },
			want:   want{Files: []string{stubsFile, namesFile}},
		},
		"the ConfigMap": {
			files: map[string]string{stubsFile: `{"Acme.Test.": ["10.1.2.3", "10.1.2.4:5353", "fd00::53"], "corp.example": ["10.9.9.9"]}`, namesFile: `["10.8.8.8", "[fd00::8]:53"]`},
			change: func(in *Input) {
				in.StubDomains = map[string][]nameserver.Address{"corp.example": servers("10.1.1.1:53")}
			},
			want: want{External: []string{"10.8.8.8:53", "[fd00::8]:53"}, Files: []string{stubsFile, namesFile},
				Stub:  map[string][]string{"acme.test": {"10.1.2.3:53", "10.1.2.4:5353", "[fd00::53]:53"}, "corp.example": {"10.1.1.1:53"}},
				Notes: []string{stubsFile + ": corp.example: the configuration's own servers are used instead"}},
		},
		"the ConfigMap's nameservers give way to a choice": {
			files:  map[string]string{namesFile: `["10.8.8.8"]`},
			change: func(in *Input) { in.External, in.ExternalSet = []nameserver.Source{tls}, true },
			want: want{External: []string{"tls://9.9.9.9%dns.quad9.net:853"}, Files: []string{stubsFile, namesFile},
				Notes: []string{namesFile + ": upstreams.external of the configuration is used instead"}},
		},
		"empty keys of the ConfigMap": {
			files: map[string]string{stubsFile: "\n", namesFile: "[]", conf: "nameserver 192.0.2.1"},
			want:  want{External: []string{"192.0.2.1:53"}, Files: []string{stubsFile, namesFile, conf}},
		},
		"an own address on another port is somebody else": {
			change: func(in *Input) {
				in.Cluster, in.External = servers("169.254.20.10:5353"), nil
			},
			want: want{Cluster: []string{"169.254.20.10:5353"}, Files: []string{stubsFile, namesFile}},
		},
		"more than CoreDNS takes": {
			files: map[string]string{conf: strings.Repeat("#\n", 3) + lines(17)},
			want: want{External: numbered(15), Files: []string{stubsFile, namesFile, conf},
				Notes: []string{"upstreams.external: the last 2 servers are not used: the maximum is 15"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := base(tc.files)
			if tc.change != nil {
				tc.change(&in)
			}
			out, err := Resolve(in)
			testutil.Must(t, err)
			if tc.want.Cluster == nil {
				tc.want.Cluster = []string{"10.96.0.10:53"}
			}
			got := want{texts(out.Cluster), texts(out.External), map[string][]string{}, out.Files, out.Notes, out.Warnings, out.Found}
			tc.want.Found = len(out.External) > 0 && !in.ExternalSet && !slices.Contains(texts(out.External), "10.8.8.8:53")
			for domain, servers := range out.Stub {
				got.Stub[domain] = texts(servers)
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// clusterInstead is how a warning ends.
const clusterInstead = "without other upstreams, the cluster's servers are used: name a server in it, " +
	"or others under upstreams.external (if that is intended, write external: [])"

func numbered(n int) []string {
	var out []string
	for i := range n {
		out = append(out, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 53).String())
	}
	return out
}

func lines(n int) string {
	var b strings.Builder
	for _, s := range numbered(n) {
		b.WriteString("nameserver " + strings.TrimSuffix(s, ":53") + "\n")
	}
	return b.String()
}

// Each file in testdata/bad has the files at fault and the one message that is wanted for them. Servers of the configuration itself are in a
// section "external", "cluster" or "stub".
func TestBad(t *testing.T) {
	golden.Cases(t, "testdata/bad/*.txt", func(t *testing.T, sections map[string]string) string {
		if text, ok := sections["/etc/resolv.conf"]; !ok {
			sections["/etc/resolv.conf"] = "nameserver 192.0.2.1\n"
		} else if text == "absent\n" {
			delete(sections, "/etc/resolv.conf")
		}
		in := base(sections)
		if s := strings.TrimSpace(sections["external"]); s != "" {
			in.External = []nameserver.Source{{Address: nameserver.Address{Addr: netip.MustParseAddrPort(s)}}}
		}
		if s := strings.TrimSpace(sections["cluster"]); s != "" {
			in.Cluster = servers(s)
		}
		if s := strings.TrimSpace(sections["stub"]); s != "" {
			in.StubDomains = map[string][]nameserver.Address{"corp.example": servers(s)}
		}
		out, err := Resolve(in)
		if err == nil {
			t.Fatalf("taken: %+v", out)
		}
		return err.Error() + "\n"
	})
}

func FuzzResolvConf(f *testing.F) {
	f.Add("nameserver 192.0.2.1\nsearch a b\n# x\noptions ndots:5")
	f.Add("nameserver x\nsearch\nnameserver\nnameserver fe80::1%\x00\n\tnameserver ::ffff:1.2.3.4\nnameserver 224.0.0.1")
	f.Add("nameserver 127.0.0.53\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		addrs, _, err := parseResolvConf("r", text)
		if err != nil && !strings.HasPrefix(err.Error(), "r:") {
			t.Errorf("no file and line: %v", err)
		}
		for i, a := range addrs {
			if !a.addr.IsValid() || a.addr.IsUnspecified() || a.addr.IsMulticast() || a.line < 1 || a.line > strings.Count(text, "\n")+1 {
				t.Errorf("%d: %+v", i, a)
			}
		}
		out, err := Resolve(base(map[string]string{"/etc/resolv.conf": text}))
		if err == nil && len(out.External) == 0 && len(out.Warnings) == 0 {
			t.Error("neither a server nor an error nor a warning")
		}
		for _, s := range out.External {
			if _, err := netip.ParseAddrPort(s.String()); err != nil {
				t.Error(err)
			}
		}
	})
}

func FuzzConfigMap(f *testing.F) {
	f.Add(`{"corp.example": ["10.1.2.3"]}`, `["10.1.2.3:53"]`)
	f.Add(`{"": [""]}`, `[1]`)
	f.Add("{\"a\": \n[", "null")
	f.Fuzz(func(t *testing.T, stubs, names string) {
		in := base(map[string]string{"/etc/kube-dns/stubDomains": stubs, "/etc/kube-dns/upstreamNameservers": names, "/etc/resolv.conf": "nameserver 192.0.2.1"})
		out, err := Resolve(in)
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				if !strings.HasPrefix(line, "/etc/kube-dns/") {
					t.Errorf("no file: %s", line)
				}
			}
			return
		}
		for domain, servers := range out.Stub {
			if !strict.IsDomain(domain) || len(servers) == 0 {
				t.Errorf("%q: %v", domain, servers)
			}
		}
		if len(out.External) == 0 {
			t.Error("nobody to ask")
		}
	})
}
