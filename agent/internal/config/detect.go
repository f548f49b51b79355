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

// The address that clients of a node's cache expect, from NodeLocal DNSCache.
var (
	defaultLocal4 = netip.MustParseAddr("169.254.20.10")
	defaultLocal6 = netip.MustParseAddr("fd00:90de:d95::a")
)

// Detected is a value that the file leaves out, and where it comes from instead.
type Detected struct{ Field, Value, Source string }

// Detected lists what was found on the node, to be printed once. Plain defaults are not in it.
func (n *Node) Detected() []Detected {
	var out []Detected
	for _, f := range table() {
		if source := n.origin[f.name]; source != "" {
			out = append(out, Detected{f.name, flow(f.show(n)), source})
		}
	}
	return out
}

// IsSet reports whether the file itself gives the field, by its name in the file.
func (n *Node) IsSet(field string) bool {
	_, ok := n.at[field]
	return ok
}

// kubelet is what we look for in the kubelet's configuration. Everything else in there is the kubelet's own.
type kubelet struct {
	from          string // the files that it was read from
	copied        bool   // from the installer's copy
	clusterDomain string
	clusterDNS    []netip.Addr // Services' addresses
	cache         []netip.Addr // link-local ones: those of a cache on the node, from which pods were not spared
	resolvConf    string
}

// detect fills in what the file leaves out and the node has.
func (n *Node) detect(env Env) error {
	k, err := n.readKubelet(env)
	// A file that cannot be read is a fault only where the node cannot do without it.
	if err != nil && !(n.IsSet("clusterDomain") && n.IsSet("redirects") && n.IsSet("localAddresses")) {
		return err
	}
	if all := platform.All(); k.from != "" {
		if i := slices.IndexFunc(all, func(p platform.Platform) bool { return p.Kubelet != "" && strings.Contains(k.from, p.Kubelet) }); i >= 0 {
			n.platform = all[i]
		}
	}
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
	// Set by Kubernetes in every pod of the namespace that the Service is in.
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

// detectSteering fills in steering addresses by position, and notes that as their origin.
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

// detectLocal takes the address at which the kubelet already sends pods to a cache on the node, else the usual ones; one
// for each family that has a fallback.
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
			continue // there a local address falls back to the second Service, which may have one family alone
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
	const port = 9253 // what the node-local-dns manifests use, so that dashboards find it
	address, source := netip.AddrFrom4([4]byte{127, 0, 0, 1}), "NODE_IP holds no address"
	if value, ok := env.LookupEnv("NODE_IP"); ok {
		if a, err := netip.ParseAddr(value); err == nil {
			address, source = a, "NODE_IP"
		}
	}
	n.Listen.Metrics = netip.AddrPortFrom(address, port)
	n.origin["listen.metrics"] = source
}

// Kubelet returns the detected settings of the kubelet's own files, for programs that cannot read them; ok is false if there are none.
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

// readKubelet reads our part of the kubelet's configuration: of the first platform that has one here, or, if that is not mounted, of the
// installer's copy in the state folder. A missing file is no fault: not every distribution has one.
func (n *Node) readKubelet(env Env) (kubelet, error) {
	const instead = "name clusterDomain, redirects and localAddresses in the configuration, so that it is not asked"
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

// addKubelet reads a file of the kubelet's over what was read before, as the kubelet does with its drop-ins. It passes over a file that is
// not there, or is of another kind.
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
	for _, m := range d.pairs(body) {
		switch m.Key {
		case "kind":
			if m.Value.Text != "KubeletConfiguration" {
				return nil // /etc/kubernetes/kubelet.conf is the kubelet's credentials on most platforms
			}
		case "from":
			from = file + ", a copy of " + m.Value.Text
		case "clusterDomain":
			if s, ok := d.text(m.Value, "text"); ok && s != "" {
				if next.clusterDomain, err = configfile.ParseDomain(s); err != nil {
					d.fail(m.Value, "%v", err)
				}
			}
		case "clusterDNS":
			d.kubeletDNS(&next, m.Value)
		case "resolvConf":
			if m.Value.Kind == strict.String && path.IsAbs(m.Value.Text) {
				next.resolvConf = path.Clean(m.Value.Text) // with "" the kubelet uses none; set resolvConf.host for the policy Default
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
	for _, e := range d.ItemsOf(v, "a list of addresses", "") {
		s, ok := d.text(e, "an address")
		if !ok {
			continue
		}
		a, err := netip.ParseAddr(s)
		switch {
		case err != nil:
			d.fail(e, "%q is not an IP address", s)
		case a.IsLinkLocalUnicast():
			k.cache = append(k.cache, a)
		case !slices.Contains(k.clusterDNS, a): // twice does the kubelet no harm
			k.clusterDNS = append(k.clusterDNS, a)
		}
	}
}
