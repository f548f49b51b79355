package plan_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/config/nodecache"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

// pods are those of a node: one still uses an address that is no longer configured, one opted out.
type pods struct{}

func (pods) FallbackOnly([]steer.Redirect) []steer.Redirect {
	return []steer.Redirect{{ClusterDNS: netip.MustParseAddr("10.96.0.99"), Steering: netip.MustParseAddr("169.254.20.99")}}
}
func (pods) Locals([]steer.Local, []steer.Redirect) []steer.Local {
	return []steer.Local{{Address: netip.MustParseAddr("169.254.20.98"), ClusterDNS: netip.MustParseAddr("10.96.0.10")}}
}
func (pods) HostInterfaces() []string { return []string{"veth1"} }
func (pods) OptedOut() []netip.Addr   { return []netip.Addr{netip.MustParseAddr("10.244.1.7")} }

// uplinks finds eth0, and returns the links that it must not take for an uplink.
func uplinks(podSide ...string) ([]string, error) {
	return append([]string{"eth0"}, slices.Repeat([]string{"not:" + strings.Join(podSide, ",")}, min(1, len(podSide)))...), nil
}

const head = "apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\n"

// Files that every configuration of the table finds.
var files = map[string]string{
	"/etc/resolv.conf":                "nameserver 192.0.2.53\n",
	"/etc/kube-dns-corefile/Corefile": ". {\n forward . /etc/resolv.conf\n}\n",
	"/etc/kube-dns/stubDomains":       `{"corp.example": ["192.0.2.7"]}`,
}

func read(more map[string]string) func(string) ([]byte, error) {
	return func(path string) ([]byte, error) {
		for _, in := range []map[string]string{more, files} {
			if text, ok := in[path]; ok {
				return []byte(text), nil
			}
		}
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
}

// TestPlans holds every arrangement to what it makes of a node: the whole plan, what is probed, and the host's rules.
func TestPlans(t *testing.T) {
	const dual = `redirects: [10.96.0.10, "fd00:96::a"]` + "\n"
	const locals = `localAddresses: [169.254.20.10, "fd00:90de:d95::a"]` + "\n"
	const alone = "upstreams: {cluster: [10.96.0.50], external: []}\n"
	const second = `upstreams: {cluster: [10.96.0.50, "fd00:96::50"], external: []}` + "\n"
	for name, tc := range map[string]struct {
		config   string // lines of a NodeConfig
		flags    string // node-cache's, in place of them
		template plan.Template
		env      map[string]string
		backend  rules.Kind
	}{
		"steered":              {config: "redirects: [10.96.0.10]\n"},
		"steered-dual":         {config: dual + locals + "lease: {renew: 200ms, lifetime: 1s}\n"},
		"steered-iptables":     {config: "redirects: [10.96.0.10]\nbackend: iptables\n", backend: rules.OfVariant(iptables.NFT, nil)},
		"steered-intercepting": {config: "redirects: [10.96.0.10]\ninterceptNode: true\n" + alone},
		"transparent":          {config: dual + "arrangement: transparent\nkernelHits: {mode: \"on\"}\n"},
		"untranslated":         {config: "redirects: [10.96.0.10]\nkubeProxyMode: none\nupstreams: {cluster: [10.96.0.50]}\n"},
		"corefile":             {config: "redirects: [10.96.0.10]\ncorefile: /etc/own\n"},
		"on-link":              {config: "redirects: [10.96.0.10]\nlink: {clusterDNSOnLink: true}\nlocalAddresses: []\n" + second},
		"on-link-dual":         {config: dual + "link: {clusterDNSOnLink: true, name: near0}\n" + locals + second},
		"on-link-iptables": {
			config:  "redirects: [10.96.0.10]\nlink: {clusterDNSOnLink: true}\n" + second,
			backend: rules.OfVariant(iptables.Legacy, nil),
		},
		"nodecache": {
			flags:    "-localip 169.254.20.10,10.96.0.10 -conf /etc/Corefile -upstreamsvc kube-dns-upstream -health-port 8080",
			env:      map[string]string{"KUBE_DNS_UPSTREAM_SERVICE_HOST": "10.96.0.50", "KUBE_DNS_SERVICE_HOST": "10.96.0.10"},
			template: plan.Template{Text: "cluster.local:53 {\n forward . 10.96.0.50\n}\n", Domain: "cluster.local", Warnings: []string{"a warning"}},
		},
		"nodecache-nothing-set-up": {
			flags:    "-localip 169.254.20.10 -setupinterface=false -setupiptables=false -interfacename near1 -syncinterval 5s",
			env:      map[string]string{"KUBE_DNS_SERVICE_HOST": "10.96.0.10"},
			template: plan.Template{Fault: errors.New("read the template: no such file")},
		},
		"nodecache-iptables": {
			flags: "-localip 169.254.20.10 -skipteardown -backend iptables", env: map[string]string{"KUBE_DNS_SERVICE_HOST": "10.96.0.10"},
			template: plan.Template{Text: ". {\n forward . 10.96.0.10\n}\n", Domain: "corp.example"}, backend: rules.OfVariant(iptables.NFT, nil),
		},
		"nodecache-ipv6": {
			flags:    "-localip fd00:90de:d95::a,fd00:96::a -upstreamsvc kube-dns-upstream",
			env:      map[string]string{"KUBE_DNS_UPSTREAM_SERVICE_HOST": "fd00:96::50", "KUBE_DNS_SERVICE_HOST": "fd00:96::a"},
			template: plan.Template{Text: ". {\n forward . /etc/resolv.conf\n}\n", Domain: "cluster.local"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			lookup := func(name string) (string, bool) { v, ok := tc.env[name]; return v, ok }
			var p plan.Plan
			if tc.flags != "" {
				o, err := nodecache.Parse(strings.Fields(tc.flags), os.Stderr)
				must(t, err)
				a, err := o.Resolve(lookup, netip.Addr{})
				must(t, err)
				n := config.Default()
				n.Backend = o.Backend
				p = plan.OfNodeCache(o, a, tc.template, &n, "instance")
			} else {
				readFile := read(map[string]string{"/node.yaml": head + tc.config, "/etc/own": ". {\n whoami\n}\n"})
				n, err := config.Load("/node.yaml", config.Env{LookupEnv: lookup, ReadFile: readFile})
				must(t, err)
				p, _, err = plan.Read(n, readFile, "instance")
				must(t, err)
			}
			p, err := p.ForBackend(tc.backend)
			must(t, err)
			host, err := p.Host(pods{}, uplinks)
			must(t, err)
			golden.Check(t, name+".plan", show("", reflect.ValueOf(p))+probes(p)+show("host", reflect.ValueOf(host)))
		})
	}
}

// probes lists the probe of each lease and of each fallback check.
func probes(p plan.Plan) string {
	var b strings.Builder
	for _, t := range p.Targets() {
		fmt.Fprintf(&b, "lease %s: asked at %s, else %s answers\n", t, t.Queried, p.ClusterDNSOf(t.Address))
	}
	for _, f := range p.Fallbacks() {
		fmt.Fprintf(&b, "fallback %s: asked at %s\n", f.ClusterDNS, f.Queried)
	}
	return b.String()
}

// show prints every field that is set, by its path.
func show(path string, v reflect.Value) string {
	if v.IsZero() {
		return ""
	}
	_, text := v.Interface().(fmt.Stringer)
	_, fault := v.Interface().(error)
	if v.Kind() != reflect.Struct || text || fault {
		return fmt.Sprintf("%s: %s\n", path, strings.ReplaceAll(fmt.Sprintf("%+v", v.Interface()), "\n", `\n`))
	}
	out := ""
	for i := range v.NumField() {
		f, at := v.Type().Field(i), path
		if !f.Anonymous {
			at = strings.TrimPrefix(path+"."+f.Name, ".")
		}
		out += show(at, v.Field(i))
	}
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	testutil.Must(t, err)
}

// With an error, a plan lacks only the part at fault: the doctor compares the node with such a plan.
func TestPlanWithAFault(t *testing.T) {
	const onLink = "redirects: [10.96.0.10]\nlink: {clusterDNSOnLink: true}\n"
	for name, tc := range map[string]struct {
		config string
		want   string // part of the error
		at     []netip.Addr
	}{
		"nobody to ask":              {"redirects: [10.96.0.10]\nupstreams: {external: [/none]}\n", "/none", addrs("169.254.20.10", "169.254.20.11")},
		"on the link, nobody to ask": {onLink + "upstreams: {cluster: [10.96.0.50], external: [/none]}\n", "/none", addrs("10.96.0.10", "169.254.20.10")},
		"no fallback": {
			strings.Replace(onLink, "]", `, "fd00:96::a"]`, 1) + "localAddresses: [\"fd00:90de:d95::a\"]\nupstreams: {cluster: [10.96.0.50], external: []}\n",
			"localAddresses[0]: upstreams.cluster has no address of fd00:90de:d95::a's family", addrs("10.96.0.10", "fd00:96::a"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			readFile := read(map[string]string{"/node.yaml": head + tc.config})
			n, err := config.Load("/node.yaml", config.Env{LookupEnv: func(string) (string, bool) { return "", false }, ReadFile: readFile})
			must(t, err)
			p, _, err := plan.Read(n, readFile, "instance")
			testutil.WantError(t, err, tc.want)
			testutil.Equal(t, "addresses", tc.at, p.Addresses())
		})
	}
}

// A plan that needs more than the back end can do is refused, with the name of the setting.
func TestPlanThatABackEndCannotHave(t *testing.T) {
	_, err := plan.Plan{InterceptNode: true}.ForBackend(rules.OfVariant(iptables.NFT, nil))
	if err == nil || !strings.HasPrefix(err.Error(), "interceptNode: the iptables-nft back end") {
		t.Errorf("error: %v", err)
	}
}

// Between two plans the link has the addresses of both, and each once.
func TestBeside(t *testing.T) {
	at := func(a string) plan.Plan {
		return plan.Plan{Redirects: []steer.Redirect{{ClusterDNS: netip.MustParseAddr("10.96.0.10"), Steering: netip.MustParseAddr(a)}},
			Locals: []steer.Local{{Address: netip.MustParseAddr("169.254.20.10"), ClusterDNS: netip.MustParseAddr("10.96.0.10")}}}
	}
	got := fmt.Sprint(at("169.254.20.12").WithAddressesOf(at("169.254.20.11")).Addresses())
	testutil.Equal(t, "order", "[169.254.20.10 169.254.20.12 169.254.20.11]", got)
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}
