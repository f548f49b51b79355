package upstream

import (
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

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

// input is base with what the sections of a case file change: files by their paths, servers of the configuration in "external", "cluster"
// and "stub" (of corp.example), and other fields of Input by words in "options".
func input(t *testing.T, sections map[string]string) Input {
	t.Helper()
	if text, ok := sections["/etc/resolv.conf"]; !ok {
		sections["/etc/resolv.conf"] = "nameserver 192.0.2.1\n"
	} else if text == "absent\n" {
		delete(sections, "/etc/resolv.conf")
	}
	in := base(sections)
	if list, ok := sections["external"]; ok {
		in.External = nil
		for _, text := range strings.Fields(list) {
			source := nameserver.Source{Path: text}
			if !strings.HasPrefix(text, "/") {
				a, err := nameserver.Parse(text)
				testutil.Must(t, err)
				source = nameserver.Source{Address: a}
			}
			in.External = append(in.External, source)
		}
	}
	if list := strings.Fields(sections["cluster"]); len(list) > 0 {
		in.Cluster = servers(list...)
	}
	if list := strings.Fields(sections["stub"]); len(list) > 0 {
		in.StubDomains = map[string][]nameserver.Address{"corp.example": servers(list...)}
	}
	for _, word := range strings.Fields(sections["options"]) {
		switch word {
		case "AskStub":
			in.AskStub = true
		case "ExternalSet":
			in.ExternalSet = true
		case "NoConfigMap":
			in.ConfigMap = ""
		case "OwnClusterDNS":
			in.Own = append(in.Own, netip.MustParseAddr("10.96.0.10"))
		case "Terms":
			in.Terms.External = "-servers"
		default:
			t.Fatalf("no option %q", word)
		}
	}
	return in
}

// resolved resolves a case, and returns the result as text.
func resolved(t *testing.T, in Input) string {
	t.Helper()
	up, err := Resolve(in)
	testutil.Must(t, err)
	var b strings.Builder
	fmt.Fprintf(&b, "cluster %v\nexternal %v\nfound %t, outside: %s\n", texts(up.Cluster), texts(up.External), up.Found, up.Outside())
	for _, domain := range slices.Sorted(maps.Keys(up.Stub)) {
		fmt.Fprintf(&b, "stub %s %v\n", domain, texts(up.Stub[domain]))
	}
	for i, lines := range [][]string{up.Files, up.Notes, up.Warnings} {
		for _, line := range lines {
			fmt.Fprintf(&b, "%s %s\n", []string{"file", "note", "warning"}[i], line)
		}
	}
	return b.String()
}

// TestAuto: kube-dns's Corefile decides which servers answer for names outside the cluster, and kube-dns answers if something prevents
// that.
func TestAuto(t *testing.T) {
	golden.Cases(t, "testdata/auto/*.txt", func(t *testing.T, sections map[string]string) string {
		in := input(t, sections)
		in.External, in.Auto = nil, &Auto{Corefile: "/etc/kube-dns-corefile/Corefile", NodeFile: "/etc/resolv.conf",
			Judge: func(text string) (bool, string) { return text == "node\n", "says " + strings.TrimSpace(text) }}
		return resolved(t, in)
	})
}

func TestResolve(t *testing.T) {
	golden.Cases(t, "testdata/good/*.txt", func(t *testing.T, sections map[string]string) string { return resolved(t, input(t, sections)) })
}

// Each file in testdata/bad has the files at fault and the one message that is wanted for them.
func TestBad(t *testing.T) {
	golden.Cases(t, "testdata/bad/*.txt", func(t *testing.T, sections map[string]string) string {
		out, err := Resolve(input(t, sections))
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
		if cut, _, _ := parseResolvConf("r", strings.TrimRight(text, "\r\n")); !slices.Equal(addrs, cut) {
			t.Errorf("without the newline at its end: %+v, with it %+v", cut, addrs)
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
