package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/neardns/neardns/internal/configfile"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/platform"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/strict"
)

// The default local addresses. NodeLocal DNSCache uses the IPv4 one too, so clients of a node's cache expect it.
var (
	defaultLocal4 = netip.MustParseAddr("169.254.20.10")
	defaultLocal6 = netip.MustParseAddr("fd00:90de:d95::a")
)

// Detected is a value that was detected or has a ${NAME} in the file, with its source.
type Detected struct{ Field, Value, Source string }

// Detected lists the fields for which origins has a source, to be logged at the start.
func (n *Node) Detected() []Detected {
	var out []Detected
	for _, f := range table() {
		if source := n.origin[f.name]; source != "" {
			out = append(out, Detected{f.name, flow(f.show(n)), source})
		}
	}
	return out
}

// IsSet reports whether the file has a value for a field, given by its name in the file.
func (n *Node) IsSet(field string) bool {
	_, ok := n.at[field]
	return ok
}

// kubelet has the settings of the kubelet's configuration that neardns uses.
type kubelet struct {
	from          string // paths of the files that the settings were read from; "" if there are none
	copied        bool   // no configuration of the kubelet was found, so the installer's copy, if any, was read
	clusterDomain string
	clusterDNS    []netip.Addr // addresses in the kubelet's clusterDNS that are not link-local, without duplicates
	cache         []netip.Addr // link-local addresses in the kubelet's clusterDNS: those of a cache on the node
	resolvConf    string
}

// detect fills in values that the file leaves out and that can be found on the node.
func (n *Node) detect(env Env) error {
	k, err := n.readKubelet(env)
	// A kubelet file that cannot be read is an error only if a value from it is needed.
	if err != nil && !(n.IsSet("clusterDomain") && n.IsSet("redirects") && n.IsSet("localAddresses")) {
		return err
	}
	n.platform, n.platformBy = platform.Here(func(path string) bool {
		if env.Glob == nil || strings.Contains(k.from, path) { // k.from names the file that the installer's copy is of
			return strings.Contains(k.from, path)
		}
		found, _ := env.Glob(path)
		return len(found) > 0
	}, env.LookupEnv)
	if !n.IsSet("clusterDomain") && k.clusterDomain != "" {
		n.ClusterDomain, n.origin["clusterDomain"] = k.clusterDomain, k.from
	}
	if !n.IsSet("resolvConf.host") && k.resolvConf != "" {
		n.ResolvConf.Host, n.origin["resolvConf.host"] = k.resolvConf, k.from
	}
	if !n.IsSet("redirects") {
		if err := n.detectRedirects(env, k); err != nil {
			return err
		}
	}
	n.detectSteering()
	if !n.IsSet("localAddresses") && !n.KernelAlone() {
		n.detectLocal(k)
	}
	if !n.IsSet("upstreams.cluster") {
		for _, r := range n.Redirects {
			n.Upstreams.Cluster = append(n.Upstreams.Cluster, nameserver.At(r.ClusterDNS))
		}
		n.origin["upstreams.cluster"] = "the cluster DNS addresses"
	}
	if !n.IsSet("listen.metrics") {
		n.detectMetrics(env)
	}
	return nil
}

func (n *Node) detectRedirects(env Env, k kubelet) error {
	for _, a := range k.clusterDNS {
		n.Redirects = append(n.Redirects, steer.Redirect{ClusterDNS: a})
	}
	if len(n.Redirects) > 0 {
		n.origin["redirects"] = k.from
		return nil
	}
	// The kubelet sets such a variable, for example KUBE_DNS_SERVICE_HOST, in pods of the Service's namespace.
	var variables []string
	for _, p := range platform.All() {
		name := p.ServiceHost()
		value, _ := env.LookupEnv(name)
		if value == "" {
			variables = append(variables, name)
			continue
		}
		a, err := netip.ParseAddr(value)
		if err != nil {
			return n.fault("redirects", fmt.Sprintf("environment variable %s holds %q, which is not an IP address: set it right, or write "+
				"redirects", name, value))
		}
		n.Redirects = []steer.Redirect{{ClusterDNS: a}}
		n.origin["redirects"] = name
		return nil
	}
	where := ""
	if n.at[""].File == "" {
		where = " into a file, and name it with --config"
	}
	return n.fault("redirects", fmt.Sprintf("no cluster DNS address found: the kubelet's configuration (%s) names no Service's under "+
		"clusterDNS, and none of %s is set: write redirects: [10.96.0.10] with the address of the Service kube-dns%s",
		cmp.Or(k.from, "no file found"), strings.Join(slices.Compact(slices.Sorted(slices.Values(variables))), ", "), where))
}

// detectSteering fills in missing steering addresses, by the position of the redirect, and records that as their origin.
func (n *Node) detectSteering() {
	complete, err := steer.Complete(n.Redirects)
	if err != nil {
		return // Validate reports it, with the place
	}
	for _, r := range n.Redirects {
		if !r.Steering.IsValid() {
			n.origin["redirects"] = joinSources(n.origin["redirects"], "steering addresses by position")
			break
		}
	}
	n.Redirects = complete
}

func joinSources(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// detectLocal fills in the local addresses, one for each IP family that has a fallback: the address of a cache on the node to which the
// kubelet points pods, or else the usual ones.
func (n *Node) detectLocal(k kubelet) {
	for _, family := range []struct {
		is4     bool
		address netip.Addr
	}{{true, defaultLocal4}, {false, defaultLocal6}} {
		if !slices.ContainsFunc(n.Redirects, func(r steer.Redirect) bool { return r.ClusterDNS.IsValid() && r.Is4() == family.is4 }) {
			continue
		}
		upstream := func(u nameserver.Address) bool { return u.Addr.Addr().Is4() == family.is4 }
		if n.Link.ClusterDNSOnLink && !slices.ContainsFunc(n.Upstreams.Cluster, upstream) {
			continue // a local address then falls back to upstreams.cluster, which may have only one family
		}
		address := family.address
		if i := slices.IndexFunc(k.cache, func(a netip.Addr) bool { return a.Is4() == family.is4 }); i >= 0 {
			address = k.cache[i]
			n.origin["localAddresses"] = k.from
		}
		n.LocalAddresses = append(n.LocalAddresses, address)
	}
	if n.origin["localAddresses"] == "" {
		n.origin["localAddresses"] = "the usual one of each family in redirects"
	}
}

func (n *Node) detectMetrics(env Env) {
	const port = 9253 // the port in NodeLocal DNSCache's manifests, so that existing dashboards work
	address, source := netip.AddrFrom4([4]byte{127, 0, 0, 1}), "NODE_IP is not set, or is no address"
	if value, ok := env.LookupEnv("NODE_IP"); ok {
		if a, err := netip.ParseAddr(value); err == nil {
			address, source = a, "NODE_IP"
		}
	}
	n.Listen.Metrics = netip.AddrPortFrom(address, port)
	n.origin["listen.metrics"] = source
}

// Kubelet returns the settings that were detected in the kubelet's files, for programs that cannot read these. ok is false if no such file
// was found.
func (n *Node) Kubelet(env Env) (out nodestate.Kubelet, ok bool, err error) {
	k, err := n.readKubelet(env)
	if err != nil || k.from == "" || k.copied {
		return out, false, err
	}
	out.From, out.ClusterDomain, out.ResolvConf = k.from, k.clusterDomain, k.resolvConf
	for _, a := range slices.Concat(k.clusterDNS, k.cache) {
		out.ClusterDNS = append(out.ClusterDNS, a.String())
	}
	return out, true, nil
}

// readKubelet reads the settings that neardns uses from the kubelet's configuration: from the first platform's files that exist here; if
// none is mounted, from the installer's copy in the state folder. A missing file is no error, because not every distribution has one.
func (n *Node) readKubelet(env Env) (kubelet, error) {
	const instead = "name clusterDomain, redirects and localAddresses in the configuration, which then needs no file of the kubelet"
	var k kubelet
	for _, p := range platform.All() {
		for _, file := range p.KubeletFiles(env.Glob) {
			if err := n.addKubelet(&k, env, file); err != nil {
				return kubelet{}, fmt.Errorf("detect settings: %w; or %s", err, instead)
			}
		}
		if k.from != "" {
			return k, nil
		}
	}
	if n.StateDir != "" {
		k.copied = true
		if err := n.addKubelet(&k, env, nodestate.KubeletFile(n.StateDir).Path); err != nil {
			return kubelet{}, fmt.Errorf("detect settings: %w; or %s", err, instead)
		}
	}
	return k, nil
}

// addKubelet reads one of the kubelet's files. Its values replace earlier ones, as in the kubelet's drop-ins. A file that is missing or
// of another kind is skipped.
func (n *Node) addKubelet(k *kubelet, env Env, file string) error {
	data, err := env.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: run the command as root", err)
	case err != nil:
		return fmt.Errorf("%w: repair it", err)
	}
	body, err := configfile.Parse(file, data)
	if err != nil {
		return err
	}
	if body.Kind == "" {
		k.from = joinSources(k.from, file)
		return nil
	}
	from, next := file, *k
	d := n.decoder(nil)
	for _, m := range d.Plain(body) {
		switch m.Key {
		case "kind":
			if m.Value.Text != "KubeletConfiguration" {
				return nil // on most platforms /etc/kubernetes/kubelet.conf has the kubelet's credentials instead
			}
		case "from":
			from = file + ", a copy of " + m.Value.Text
		case "clusterDomain":
			if s, ok := d.TextOf(m.Value, "text"); ok && s != "" {
				if next.clusterDomain, err = configfile.ParseDomain(s); err != nil {
					d.fail(m.Value, "%v", err)
				}
			}
		case "clusterDNS":
			d.kubeletDNS(&next, m.Value)
		case "resolvConf":
			// "" means that the kubelet uses no file. It is skipped: an earlier file's value stays, else the default.
			if m.Value.Kind == strict.String && path.IsAbs(m.Value.Text) {
				next.resolvConf = path.Clean(m.Value.Text)
			}
		}
	}
	if err := d.Err(0); err != nil {
		return fmt.Errorf("%w: repair it", err)
	}
	next.from = joinSources(k.from, from)
	*k = next
	return nil
}

func (d *decoder) kubeletDNS(k *kubelet, v strict.Value) {
	if v.IsNull() {
		return
	}
	k.clusterDNS, k.cache = nil, nil
	for _, e := range d.ItemsOf(v, "a list of addresses") {
		s, ok := d.TextOf(e, "an address")
		if !ok {
			continue
		}
		a, err := netip.ParseAddr(s)
		switch {
		case err != nil:
			d.fail(e, "%q is not an IP address", s)
		case a.IsLinkLocalUnicast():
			k.cache = append(k.cache, a)
		case !slices.Contains(k.clusterDNS, a): // a duplicate does the kubelet no harm
			k.clusterDNS = append(k.clusterDNS, a)
		}
	}
}
