package config

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

const head = "apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\n"

// kubeletConfig is the path of the kubelet's configuration on a node that kubeadm set up.
const kubeletConfig = "/var/lib/kubelet/config.yaml"

// world is an Env made of values.
type world struct {
	env   map[string]string
	files map[string]string
}

func (w world) Env() Env {
	return Env{
		LookupEnv: func(name string) (string, bool) { v, ok := w.env[name]; return v, ok },
		ReadFile: func(path string) ([]byte, error) {
			text, ok := w.files[path]
			if !ok {
				return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
			}
			if text == "denied" {
				return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission}
			}
			return []byte(text), nil
		},
	}
}

func load(t *testing.T, text string, w world) *Node {
	t.Helper()
	files := map[string]string{"node.yaml": text}
	for path, text := range w.files {
		files[path] = text
	}
	n, err := Load("node.yaml", world{w.env, files}.Env())
	testutil.Must(t, err)
	return n
}

func redirect1(pairs ...string) []steer.Redirect {
	var out []steer.Redirect
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, steer.Redirect{ClusterDNS: netip.MustParseAddr(pairs[i]), Steering: netip.MustParseAddr(pairs[i+1])})
	}
	return out
}

func addrs(s ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func servers(s ...string) []nameserver.Address {
	var out []nameserver.Address
	for _, a := range s {
		out = append(out, nameserver.Address{Addr: netip.MustParseAddrPort(a)})
	}
	return out
}

var asValues = cmp.Options{
	cmpopts.IgnoreUnexported(Node{}),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
}

func TestLoadEveryKey(t *testing.T) {
	env := map[string]string{"UPSTREAM": "10.96.0.11", "NODE_IP": "2001:db8::7"}
	n := load(t, testutil.ReadFile(t, "testdata/every-key.yaml"), world{env: env})
	want := Node{
		PodDNS: overlay.Rules{
			Level: overlay.Level{Overlay: resolvconf.Overlay{Settings: resolvconf.Settings{Options: []string{"edns0", "ndots:2"}}}, Annotations: overlay.Ignore},
			Namespaces: map[string]overlay.Level{
				"shop": {Overlay: resolvconf.Overlay{Policy: resolvconf.None, Settings: resolvconf.Settings{Nameservers: []string{"10.96.0.11"}, Searches: []string{"a.b"}}},
					Annotations: overlay.Honour},
				"other": {Overlay: resolvconf.Overlay{Settings: resolvconf.Settings{Options: []string{"edns0"}}}},
			},
		},
		ResolvConf: ResolvConf{Mode: "off", Paths: []string{"/x/{id}/r"}, Host: "/run/r"},
		Steering: Steering{Arrangement: ArrangementSteered, InterceptNode: true, AdoptPods: true,
			Steer:          Steer{Mode: SteerNone, Namespaces: []string{}},
			Redirects:      redirect1("10.96.0.10", "169.254.20.21", "fd00:10:96::a", "fd00:90de:d95::b"),
			LocalAddresses: addrs("169.254.20.10", "fd00:90de:d95::a"),
			Backend:        BackendNftables, KubeProxyMode: KubeProxyIPVS},
		ClusterDomain:    "example.internal",
		KubeDNSConfigMap: "/etc/kube-dns",
		Upstreams: Upstreams{Cluster: servers("10.96.0.11:53", "[fd00::9]:5353"), External: []nameserver.Source{
			{Path: "/run/resolv.conf"},
			{Address: nameserver.Address{Addr: netip.MustParseAddrPort("9.9.9.9:53")}},
			{Address: nameserver.Address{Addr: netip.MustParseAddrPort("1.1.1.1:8853"), TLS: true, ServerName: "cloudflare-dns.com"}},
			{Address: nameserver.Address{Addr: netip.MustParseAddrPort("[2620:fe::fe]:853"), TLS: true, ServerName: "dns.quad9.net"}},
			{Address: nameserver.Address{Addr: netip.MustParseAddrPort("127.0.0.1:5300")}},
		}, Corefile: "/etc/kube-dns-corefile/Corefile", NodeFile: "/etc/resolv.conf"},
		StubDomains:  map[string][]nameserver.Address{"corp.example": servers("10.1.2.3:53", "10.1.2.4:5353"), "acme.test": servers("[fd00::53]:53")},
		Cache:        Cache{Entries: 2000, NegativeTTL: 2 * time.Second, MemoryMiB: 8, HoldDenials: 20 * time.Second},
		FastPath:     "on",
		KernelHits:   KernelHits{Mode: KernelHitsNamespaces, Namespaces: []string{"shop", "web"}},
		Limits:       Limits{Misses: 2000, TCPConnections: 3000},
		Lease:        Lease{Renew: 100 * time.Millisecond, Lifetime: time.Second},
		Link:         Link{Name: "ndns0"},
		Listen:       Listen{Metrics: netip.MustParseAddrPort("[2001:db8::7]:9999")},
		Log:          Log{Level: slog.LevelDebug, Format: LogJSON, Queries: QueriesAll},
		Folders:      Folders{StateDir: "/run/nd", PersistDir: "/var/nd"},
		CorefileKeys: CorefileKeys{Snippets: map[string]string{".": "rewrite name exact ${a} b\n", "corp.example": "log\n"}},
	}
	testutil.Equal(t, "configuration", want, *n, asValues)
}

func TestDetection(t *testing.T) {
	kubelet := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nclusterDomain: Lab.Internal\nclusterDNS:\n- 10.96.0.10\n- fd00:10:96::a\nstrange: {a: [1]}\n"
	type want struct {
		domain    string
		redirects []steer.Redirect
		local     []netip.Addr
		cluster   []nameserver.Address
		metrics   string
		sources   map[string]string
	}
	for name, tc := range map[string]struct {
		world
		text string
		want want
	}{
		"all from the kubelet": {
			world: world{env: map[string]string{"NODE_IP": "192.0.2.4"}, files: map[string]string{kubeletConfig: kubelet}},
			want: want{"lab.internal", redirect1("10.96.0.10", "169.254.20.11", "fd00:10:96::a", "fd00:90de:d95::b"), addrs("169.254.20.10", "fd00:90de:d95::a"),
				servers("10.96.0.10:53", "[fd00:10:96::a]:53"), "192.0.2.4:9253", map[string]string{
					"clusterDomain": kubeletConfig, "redirects": kubeletConfig + "; steering addresses by position",
					"localAddresses": "the usual one of each family in redirects", "upstreams.cluster": "the cluster DNS addresses", "listen.metrics": "NODE_IP"}},
		},
		"from the environment": {
			world: world{env: map[string]string{"KUBE_DNS_SERVICE_HOST": "10.43.0.10"}},
			want: want{"cluster.local", redirect1("10.43.0.10", "169.254.20.11"), addrs("169.254.20.10"), servers("10.43.0.10:53"), "127.0.0.1:9253",
				map[string]string{"redirects": "KUBE_DNS_SERVICE_HOST; steering addresses by position", "localAddresses": "the usual one of each family in redirects",
					"upstreams.cluster": "the cluster DNS addresses", "listen.metrics": "NODE_IP is not set, or is no address"}},
		},
		"the kubelet names a cache on the node": {
			world: world{env: map[string]string{"KUBE_DNS_SERVICE_HOST": "10.233.0.3"}, files: map[string]string{kubeletConfig: "clusterDNS: [169.254.25.10]\n"}},
			want: want{"cluster.local", redirect1("10.233.0.3", "169.254.20.11"), addrs("169.254.25.10"), servers("10.233.0.3:53"), "127.0.0.1:9253",
				map[string]string{"redirects": "KUBE_DNS_SERVICE_HOST; steering addresses by position", "localAddresses": kubeletConfig,
					"upstreams.cluster": "the cluster DNS addresses", "listen.metrics": "NODE_IP is not set, or is no address"}},
		},
		"the kubelet's file is JSON": {
			world: world{files: map[string]string{kubeletConfig: `{"kind": "KubeletConfiguration", "clusterDNS": ["10.96.0.10"], "clusterDomain": "x.y"}`}},
			want: want{"x.y", redirect1("10.96.0.10", "169.254.20.11"), addrs("169.254.20.10"), servers("10.96.0.10:53"), "127.0.0.1:9253",
				map[string]string{"clusterDomain": kubeletConfig, "redirects": kubeletConfig + "; steering addresses by position", "localAddresses": "the usual one of each family in redirects",
					"upstreams.cluster": "the cluster DNS addresses", "listen.metrics": "NODE_IP is not set, or is no address"}},
		},
		"on the link, a local address where the second Service has the family": {
			world: world{files: map[string]string{kubeletConfig: "clusterDNS: [10.96.0.10, fd00:96::a]\n"}},
			text:  head + "link: {clusterDNSOnLink: true}\nupstreams: {cluster: [10.96.0.50]}\nlisten: {metrics: off}\n",
			want: want{"cluster.local", redirect1("10.96.0.10", "169.254.20.11", "fd00:96::a", "fd00:90de:d95::b"), addrs("169.254.20.10"), servers("10.96.0.50:53"), "invalid AddrPort",
				map[string]string{"redirects": kubeletConfig + "; steering addresses by position", "localAddresses": "the usual one of each family in redirects"}},
		},
		"what the file gives is not looked for": {
			world: world{files: map[string]string{kubeletConfig: "denied"}},
			text: head + "clusterDomain: c.d\nredirects: [{clusterDNS: 10.0.0.10, steering: 169.254.20.99}]\nlocalAddresses: []\nlisten: {metrics: off}\n" +
				"upstreams: {cluster: [10.0.0.11]}\n",
			want: want{"c.d", redirect1("10.0.0.10", "169.254.20.99"), []netip.Addr{}, servers("10.0.0.11:53"), "invalid AddrPort", map[string]string{}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := ""
			if tc.text != "" {
				path = "/etc/node.yaml"
				tc.files[path] = tc.text
			}
			n, err := Load(path, tc.Env())
			testutil.Must(t, err)
			got := want{n.ClusterDomain, n.Redirects, n.LocalAddresses, n.Upstreams.Cluster, n.Listen.Metrics.String(), map[string]string{}}
			for _, d := range n.Detected() {
				got.sources[d.Field] = d.Source
			}
			testutil.Equal(t, "detected", tc.want, got, asValues, cmp.AllowUnexported(want{}))
		})
	}
}

// The installer's copy of the kubelet's settings replaces the kubelet's file if that is not mounted: both give the same detected values.
func TestKubeletWrittenDown(t *testing.T) {
	kubelet := "kind: KubeletConfiguration\nclusterDomain: Lab.Internal\nclusterDNS: [10.96.0.10, \"fd00:10:96::a\", 169.254.25.10]\nresolvConf: /run/systemd/resolve/resolv.conf\nsecret: x\n"
	there := world{files: map[string]string{kubeletConfig: kubelet}}
	n := load(t, head, there)
	k, ok, err := n.Kubelet(there.Env())
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	text, err := json.Marshal(k)
	if err != nil || strings.Contains(string(text), "secret") {
		t.Fatalf("%s %v", text, err)
	}
	elsewhere := world{files: map[string]string{"/state/kubelet.yaml": string(text)}}
	m := load(t, head+"stateDir: /state\n", elsewhere)
	for _, pair := range [][2]any{{n.ClusterDomain, m.ClusterDomain}, {n.Redirects, m.Redirects}, {n.LocalAddresses, m.LocalAddresses}, {n.ResolvConf.Host, m.ResolvConf.Host}} {
		testutil.Equal(t, "written down instead of the kubelet's file", pair[0], pair[1], asValues)
	}
	if m.origin["clusterDomain"] != "/state/kubelet.yaml, a copy of /var/lib/kubelet/config.yaml" {
		t.Errorf("sources: %v", m.origin)
	}
	if _, ok, err := m.Kubelet(elsewhere.Env()); ok || err != nil {
		t.Errorf("what was written down is taken for the kubelet's own file: %v %v", ok, err)
	}
}

func TestOwn(t *testing.T) {
	for text, want := range map[string][]netip.Addr{
		"redirects: [10.96.0.10]\n": addrs("169.254.20.10", "169.254.20.11"),
		"redirects: [10.96.0.10]\ninterceptNode: true\nupstreams: {cluster: [10.96.0.11]}\n": addrs("169.254.20.10", "169.254.20.11", "10.96.0.10"),
	} {
		testutil.Equal(t, text, want, load(t, head+text, world{}).Own(), asValues)
	}
}

// Each file in testdata/bad holds a faulty configuration, what surrounds it, and the one message that is wanted for it.
func TestBad(t *testing.T) {
	golden.Cases(t, "testdata/bad/*.txt", func(t *testing.T, sections map[string]string) string {
		w := world{env: map[string]string{}, files: map[string]string{}}
		for name, text := range sections {
			if name != "env" {
				w.files[name] = strings.TrimSuffix(text, "% no newline\n")
				continue
			}
			for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
				k, v, _ := strings.Cut(line, "=")
				w.env[k] = v
			}
		}
		n, err := Load("node.yaml", w.Env())
		var said string
		switch {
		case err != nil:
			said = err.Error() + "\n"
		case len(n.Unknown()) == 0:
			t.Fatalf("taken:\n%s", n.Show())
		default:
			said = strings.Join(n.Unknown(), "\n") + "\n"
		}
		// A remedy follows a colon or semicolon; a message without any is only half of one.
		for line := range strings.SplitSeq(strings.TrimSpace(said), "\n") {
			if strings.Count(line, ": ")+strings.Count(line, "; ") < 2 {
				t.Errorf("no place or no remedy: %s", line)
			}
		}
		if err == nil {
			return "taken, with\n" + said
		}
		return said
	})
}

func TestUnreadableFile(t *testing.T) {
	const path = "/etc/neardns/node.yaml"
	for _, tc := range []struct {
		err  error
		want string
	}{
		{fs.ErrNotExist, "open /etc/neardns/node.yaml: file does not exist: create the file or name another with --config"},
		{fs.ErrPermission, "open /etc/neardns/node.yaml: permission denied: run the command as root, or let this user read the file"},
		{syscall.EISDIR, "open /etc/neardns/node.yaml: is a directory: name another file with --config"},
	} {
		e := world{}.Env()
		e.ReadFile = func(path string) ([]byte, error) { return nil, &fs.PathError{Op: "open", Path: path, Err: tc.err} }
		_, err := Load(path, e)
		if want := "read configuration: " + tc.want; err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
}

func TestNothingDetectedWithoutFile(t *testing.T) {
	_, err := Load("", world{}.Env())
	if err == nil || !strings.HasSuffix(err.Error(), "the Service kube-dns into a file, and name it with --config") {
		t.Errorf("got %v", err)
	}
}

func TestShow(t *testing.T) {
	for name, w := range map[string]world{
		"detected": {env: map[string]string{"NODE_IP": "192.0.2.4"}, files: map[string]string{
			kubeletConfig: "clusterDNS: [10.96.0.10, fd00:10:96::a]\nclusterDomain: cluster.local\nresolvConf: /run/systemd/resolve/resolv.conf\n"}},
		"written": {env: map[string]string{"UP": "10.96.0.11"}, files: map[string]string{"/etc/node.yaml": head +
			"redirects: [10.96.0.10]\ninterceptNode: true\nupstreams: {cluster: [\"${UP}\"], external: [\"tls://9.9.9.9%dns.quad9.net\", \"2001:db8::1\"]}\n" +
			"stubDomains: {corp.example: [10.1.2.3], \"10.in-addr.arpa\": [\"10.1.2.3:5353\"]}\nlog: {queries: errors}\n" +
			"podDNS: {options: [\"ndots:2\"], namespaces: {shop: {policy: None, nameservers: [10.96.0.10], annotations: ignore}}}\n" +
			"snippets:\n  .: |\n    template IN ANY {\n      rcode NXDOMAIN ${1}\n    }\n  corp.example: \"log\\n\\n\\terrors # ü \\\"x\\\"\"\n"}},
		"corefile": {files: map[string]string{"/etc/node.yaml": head + "redirects: [10.96.0.10]\ncorefile: /etc/neardns/Corefile\n", "/etc/neardns/Corefile": ". {\n}\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := ""
			if w.files["/etc/node.yaml"] != "" {
				path = "/etc/node.yaml"
			}
			n, err := Load(path, w.Env())
			testutil.Must(t, err)
			golden.Check(t, "show-"+name+".yaml", n.Show())
			// The output of Show loads as the same configuration.
			again := load(t, n.Show(), world{files: w.files})
			testutil.Equal(t, "read again as shown", *n, *again, asValues)
		})
	}
}

func TestDiff(t *testing.T) {
	base := head + "redirects: [10.96.0.10]\n"
	for _, tc := range []struct {
		name, text      string
		reload, restart []string
	}{
		{"same, otherwise written", head + "redirects: [{clusterDNS: 10.96.0.10, steering: 169.254.20.11}]\nclusterDomain: CLUSTER.local.\n", nil, nil},
		{"reload", base + "cache: {entries: 2000}\nstubDomains: {a.b: [10.1.1.1]}\nlog: {level: debug}\nsnippets: {.: log}\n",
			[]string{"stubDomains", "cache.entries", "log.level", "snippets"}, nil},
		{"restart", head + "redirects: [10.96.0.20]\nlease: {renew: 100ms}\nlog: {format: json}\nstateDir: /run/other\n",
			[]string{"redirects", "upstreams.cluster", "lease.renew"}, []string{"log.format", "stateDir"}},
		{"the file behind corefile", base + "corefile: /etc/Corefile\n", []string{"corefile"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := world{files: map[string]string{"/etc/Corefile": ". {\n}\n"}}
			reload, restart := Diff(load(t, base, w), load(t, tc.text, w))
			testutil.Equal(t, "keys", [][]string{tc.reload, tc.restart}, [][]string{reload, restart})
		})
	}
	with := base + "corefile: /etc/Corefile\n"
	before := load(t, with, world{files: map[string]string{"/etc/Corefile": "a"}})
	after := load(t, with, world{files: map[string]string{"/etc/Corefile": "b"}})
	if reload, restart := Diff(before, after); fmt.Sprint(reload, restart) != "[corefile] []" {
		t.Errorf("text of the Corefile: got %v %v", reload, restart)
	}
}

func TestConflistEntry(t *testing.T) {
	for name, text := range map[string]string{
		"least": "redirects: [10.96.0.10]\n",
		"all": "redirects: [10.96.0.10, {clusterDNS: \"fd00:10:96::a\", steering: \"fd00::99\"}]\nclusterDomain: a.b\nbackend: nftables\n" +
			"kubeProxyMode: none\nstateDir: /run/x\npersistDir: /var/x\npodDNS: {options: [\"ndots:2\"], namespaces: {shop: {annotations: ignore}}}\n" +
			"resolvConf: {mode: off, paths: [\"/x/{id}/r\"], host: /run/r}\n",
	} {
		t.Run(name, func(t *testing.T) {
			entry, err := load(t, head+text, world{}).ConflistEntry()
			testutil.Must(t, err)
			golden.Check(t, "entry-"+name+".json", string(entry)+"\n")
		})
	}
}

// The mode decides whether the annotation "true" or the namespace selects a pod. Excludes does not see the annotation "false".
func TestSteerExcludes(t *testing.T) {
	for _, c := range []struct {
		mode               string
		listed, other, opt bool // whether a pod of a listed namespace is excluded, one of another, and one there that opted in
	}{
		{SteerAll, false, false, false},
		{SteerNamespaces, false, true, false},
		{SteerAnnotated, true, true, false},
		{SteerNone, true, true, true},
	} {
		s := Steer{Mode: c.mode, Namespaces: []string{"shop"}}
		for _, p := range []struct {
			namespace string
			optIn     bool
			want      bool
		}{{"shop", false, c.listed}, {"web", false, c.other}, {"web", true, c.opt}} {
			if why := s.Excludes(p.namespace, p.optIn); (why != "") != p.want || p.want && !strings.Contains(why, "steer.mode is "+c.mode) {
				t.Errorf("%s, a pod of %s, annotated %v: %q", c.mode, p.namespace, p.optIn, why)
			}
		}
	}
}
