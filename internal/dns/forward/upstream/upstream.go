// Package upstream owns the question whom the agent asks on a miss: it puts together the servers of the configuration,
// of files in the format of resolv.conf and of a mounted kube-dns ConfigMap, and follows those files.
//
// It must never resolve a name, open a socket or ask a server; and it must never let the agent become its own upstream.
//
// Failure policy: Resolve gives the whole answer or an error that names each file and line at fault and what to do; what
// it passes over without harm it says in Notes. A resolv.conf that leaves nobody to ask but ourselves is no reason to take
// the node's DNS away: the cluster's servers are asked then, and Warnings say so. Watch never fails: where the kernel cannot tell of changes, it looks.
package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
)

// Input is what Resolve goes by.
type Input struct {
	ClusterDomain string
	Cluster       []nameserver.Address            // for the cluster domain
	External      []nameserver.Source             // for everything else; none: whoever serves the cluster domain
	ExternalSet   bool                            // somebody chose External: then the ConfigMap's upstreamNameservers give way
	StubDomains   map[string][]nameserver.Address // by domain, lower case, without the final dot
	ConfigMap     string                          // folder of a mounted kube-dns ConfigMap, "" for none; it need not exist
	Own           []netip.Addr                    // where the agent itself answers
	ReadFile      func(path string) ([]byte, error)
	// Auto has the Corefile of kube-dns decide about everything else, in External's place; nil: it does not.
	Auto *Auto
	// AskStub has systemd-resolved's stub asked where a resolv.conf names it alone and UplinkFile is not to be had. For who has
	// no mount of that file, shares the node's loopback, and was asking the stub before.
	AskStub bool
	Terms   Terms
}

// Auto is what is needed to ask the node's resolvers only where kube-dns would.
type Auto struct {
	Corefile string // of kube-dns, as it is mounted here; it need not exist
	NodeFile string // names the node's resolvers, in the format of resolv.conf
	// Judge tells whether a Corefile sends names outside of the cluster to the node's resolvers and nowhere else, and why.
	Judge func(text string) (node bool, why string)
}

// By says who answers for names outside of the cluster.
type By string

// Who they are.
const (
	ByNode          By = "the node's resolvers"
	ByKubeDNS       By = "kube-dns"
	ByConfiguration By = "the servers of the configuration"
)

// Terms are how the user of the program calls what remedies name. An empty one is the NodeConfig's.
type Terms struct {
	External  string // upstreams.external
	Cluster   string // upstreams.cluster of the configuration
	ConfigMap string // kubeDNSConfigMap
}

// Upstreams is whom to ask. Its Files may differ from one Resolve to the next, so a Watch ends with the answer that it
// was made for.
type Upstreams struct {
	Cluster  []nameserver.Address
	External []nameserver.Address            // none: ask Cluster
	Found    bool                            // nobody chose External: it is what the node itself asks
	By       By                              // who answers for everything else
	Why      string                          // it is they; "" where the configuration says so
	Stub     map[string][]nameserver.Address // by domain, lower case, without the final dot
	Files    []string                        // what was read to come to this, or would have been were it there: to be followed by Watch
	Notes    []string                        // what was passed over, and why; for the log
	Warnings []string                        // what somebody should mend, although there is a way without it
}

// Resolve reads the files and puts everything together. It returns all faults joined.
func Resolve(in Input) (Upstreams, error) {
	in.Terms = Terms{cmp.Or(in.Terms.External, "upstreams.external"), cmp.Or(in.Terms.Cluster, "upstreams.cluster of the configuration"),
		cmp.Or(in.Terms.ConfigMap, "kubeDNSConfigMap")}
	r := &resolver{in: in}
	r.out.Stub = map[string][]nameserver.Address{}
	for _, a := range in.Cluster {
		r.take(&r.out.Cluster, "upstreams.cluster", a)
	}
	for _, domain := range slices.Sorted(maps.Keys(in.StubDomains)) {
		for _, a := range in.StubDomains[domain] {
			servers := r.out.Stub[domain]
			r.take(&servers, "stubDomains["+domain+"]", a)
			r.out.Stub[domain] = servers
		}
	}
	corefile, mounted := r.corefile()
	replaced := r.configMap(mounted)
	switch {
	case replaced:
	case in.Auto != nil:
		r.auto(corefile, mounted)
	default:
		for _, e := range in.External {
			if e.Path == "" {
				r.take(&r.out.External, "upstreams.external", e.Address)
			} else {
				r.resolvConf(e.Path, "")
			}
		}
	}
	if len(r.out.External) > 0 { // another of them serves
		r.out.Notes = append(r.out.Notes, r.out.Warnings...)
		r.out.Warnings = nil
	}
	r.bound("upstreams.external", &r.out.External)
	r.out.Found = !in.ExternalSet && !replaced && len(r.out.External) > 0
	r.by(replaced)
	for _, domain := range slices.Sorted(maps.Keys(r.out.Stub)) {
		servers := r.out.Stub[domain]
		r.bound("stub domain "+domain, &servers)
		r.out.Stub[domain] = servers
	}
	if err := errors.Join(r.faults...); err != nil {
		return Upstreams{}, err
	}
	return r.out, nil
}

// resolver collects an answer.
type resolver struct {
	in     Input
	out    Upstreams
	faults []error
}

func (r *resolver) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Errorf(format, args...))
}

func (r *resolver) warn(format string, args ...any) {
	r.out.Warnings = append(r.out.Warnings, fmt.Sprintf(format, args...))
}

func (r *resolver) note(format string, args ...any) {
	r.out.Notes = append(r.out.Notes, fmt.Sprintf(format, args...))
}

// take adds a server that somebody named on purpose. The agent's own address there is a mistake that has to be mended:
// nobody can know who was meant.
func (r *resolver) take(to *[]nameserver.Address, where string, s nameserver.Address) {
	if err := s.Refuse(r.in.Own); err != nil {
		r.fault("%s: %w", where, err)
		return
	}
	if !slices.Contains(*to, s) {
		*to = append(*to, s)
	}
}

// bound cuts a list to what CoreDNS takes. Files are not ours to refuse for a length that is theirs to choose.
func (r *resolver) bound(where string, servers *[]nameserver.Address) {
	if extra := len(*servers) - nameserver.Most; extra > 0 {
		r.note("%s: the last %d servers are not asked: %d are the most", where, extra, nameserver.Most)
		*servers = (*servers)[:nameserver.Most]
	}
}

// configMap reads the two keys of kube-dns's ConfigMap that matter here, and reports whether upstreamNameservers took
// the place of the external servers, as it does with kube-dns.
//
// CoreDNS does not read upstreamNameservers: where it is kube-dns, which its Corefile shows, they mean nothing under auto.
func (r *resolver) configMap(coreDNS bool) (replaced bool) {
	if r.in.ConfigMap == "" {
		return false
	}
	file := path.Join(r.in.ConfigMap, "stubDomains")
	if data, ok := r.readKey(file); ok {
		stubs, err := parseStubDomains(file, data)
		if err != nil {
			r.faults = append(r.faults, err)
		}
		for _, domain := range slices.Sorted(maps.Keys(stubs)) {
			if _, ok := r.in.StubDomains[domain]; ok {
				r.note("%s: %s: the configuration's own servers are asked instead", file, domain)
				continue
			}
			if slices.Contains([]string{r.in.ClusterDomain, "in-addr.arpa", "ip6.arpa"}, domain) {
				r.fault("%s: %s belongs to the cluster: take it out; its servers are %s", file, domain, r.in.Terms.Cluster)
				continue
			}
			var servers []nameserver.Address
			for _, a := range stubs[domain] {
				r.take(&servers, file+": "+domain, a)
			}
			r.out.Stub[domain] = servers
		}
	}
	file = path.Join(r.in.ConfigMap, "upstreamNameservers")
	data, ok := r.readKey(file)
	if !ok {
		return false
	}
	addrs, err := parseNameservers(file, data)
	switch {
	case err != nil:
		r.faults = append(r.faults, err)
	case len(addrs) == 0:
	case r.in.ExternalSet:
		r.note("%s: upstreams.external of the configuration is asked instead", file)
	case coreDNS:
		r.note("%s: passed over, since %s says that kube-dns is CoreDNS, which does not read it", file, r.in.Auto.Corefile)
	default:
		for _, a := range addrs {
			r.take(&r.out.External, file, a)
		}
		return true
	}
	return false
}

// corefile reads kube-dns's own, where it is wanted and mounted. One that cannot be read is not there.
func (r *resolver) corefile() (text string, ok bool) {
	if r.in.Auto == nil {
		return "", false
	}
	file := r.in.Auto.Corefile
	r.out.Files = append(r.out.Files, file)
	data, err := r.in.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.out.Why = "its Corefile is not mounted here, at " + file
	case err != nil:
		r.out.Why = fmt.Sprintf("its Corefile cannot be read: %v", err)
	}
	return string(data), err == nil
}

// auto takes the node's resolvers where kube-dns would ask them, too. Whatever is in the way of that is no fault: kube-dns is
// asked then, as it would be without us.
func (r *resolver) auto(corefile string, mounted bool) {
	if !mounted {
		return // Why is said
	}
	node, why := r.in.Auto.Judge(corefile)
	r.out.Why = why
	if !node {
		return
	}
	r.out.Why = "kube-dns's Corefile asks them, too: " + why
	faults, warnings := len(r.faults), len(r.out.Warnings)
	r.resolvConf(r.in.Auto.NodeFile, "")
	if len(r.faults) > faults {
		r.out.Why = "the node's resolvers are not to be had: " + strings.ReplaceAll(errors.Join(r.faults[faults:]...).Error(), "\n", "; ")
		r.faults, r.out.External = r.faults[:faults], nil
	}
	if len(r.out.External) == 0 && len(r.out.Warnings) > warnings {
		r.out.Why = "the node's resolvers are not to be had: " + strings.Join(r.out.Warnings[warnings:], "; ")
		r.out.Warnings = r.out.Warnings[:warnings]
	}
}

// by says who answers for everything else.
func (r *resolver) by(replaced bool) {
	switch {
	case replaced:
		r.out.By, r.out.Why = ByConfiguration, "upstreamNameservers of "+r.in.Terms.ConfigMap
	case r.in.Auto == nil && len(r.out.External) > 0:
		r.out.By = ByConfiguration
	case len(r.out.External) > 0:
		r.out.By = ByNode
	default:
		r.out.By = ByKubeDNS
	}
}

// Outside says in one line who answers for names outside of the cluster, and why.
func (u Upstreams) Outside() string {
	if u.Why == "" {
		return string(u.By)
	}
	return string(u.By) + ", because " + u.Why
}

// readKey reads one key of the ConfigMap. The ConfigMap, the folder and the key may all be absent.
func (r *resolver) readKey(file string) (string, bool) {
	r.out.Files = append(r.out.Files, file)
	data, err := r.in.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false
	}
	if err != nil {
		r.fault("read kube-dns ConfigMap: %w: make it readable, or point %s elsewhere", err, r.in.Terms.ConfigMap)
		return "", false
	}
	return string(data), strings.TrimSpace(string(data)) != ""
}

// resolvConf adds the servers of a file in the format of resolv.conf. Its entries were not written for us: what cannot be
// asked from here is passed over, as long as one is left.
// via says how we came to the file, where it is not the one that was named.
func (r *resolver) resolvConf(file, via string) {
	addrs, notes, ok := r.readResolvConf(file, via)
	if !ok {
		return
	}
	stub := slices.IndexFunc(addrs, entry.isStub)
	other := slices.ContainsFunc(addrs, func(a entry) bool { return !a.isStub() && nameserver.At(a.addr).Refuse(r.in.Own) == nil })
	stubAlone := file != UplinkFile && stub >= 0 && !other
	askStub := stubAlone && r.in.AskStub && !r.readable(UplinkFile)
	if stubAlone && !askStub {
		// One cache behind the other would keep answers longer than their owners said, and the stub may ask us.
		r.note("%s names systemd-resolved's stub %s: its servers are read from %s", file, addrs[stub].addr, UplinkFile)
		r.resolvConf(UplinkFile, fmt.Sprintf("%s:%d: %s is systemd-resolved's stub, and its servers are not to be had: ", file, addrs[stub].line, addrs[stub].addr))
		return
	}
	r.out.Notes = append(r.out.Notes, notes...)
	var passed []string
	left := 0
	for _, a := range addrs {
		s := nameserver.At(a.addr)
		switch {
		case s.Refuse(r.in.Own) != nil:
			passed = append(passed, fmt.Sprintf("%s:%d: %s is an address of the agent itself", file, a.line, a.addr))
		case a.isStub() && !askStub:
			passed = append(passed, fmt.Sprintf("%s:%d: %s is systemd-resolved's stub", file, a.line, a.addr))
		case a.addr.Zone() != "" || a.addr.Is6() && a.addr.IsLinkLocalUnicast():
			// Routers announce themselves this way; CoreDNS's forward drops the interface and could never reach it.
			passed = append(passed, fmt.Sprintf("%s:%d: %s is link-local and cannot be asked from here", file, a.line, a.addr))
		default:
			left++
			if !slices.Contains(r.out.External, s) {
				r.out.External = append(r.out.External, s)
			}
		}
	}
	if askStub {
		r.note("%s names systemd-resolved's stub %s: it is asked, since its own servers are not to be had here (%s)", file, addrs[stub].addr, UplinkFile)
	}
	remedy := fmt.Sprintf("the cluster's servers are asked for everything: name a server in it, or others under %s", r.in.Terms.External)
	if r.in.Terms.External == "upstreams.external" {
		remedy += " (external: [] says that this is meant)"
	}
	switch {
	case left == 0 && len(passed) > 0:
		r.warn("%s: it names no other server, so %s", strings.Join(passed, "; "), remedy)
	case left == 0:
		r.warn("%s: no line nameserver, so %s", file, remedy)
	default:
		r.out.Notes = append(r.out.Notes, passed...)
	}
}

func (r *resolver) readable(file string) bool {
	_, err := r.in.ReadFile(file)
	return err == nil
}

func (r *resolver) readResolvConf(file, via string) ([]entry, []string, bool) {
	if slices.Contains(r.out.Files, file) {
		return nil, nil, false
	}
	r.out.Files = append(r.out.Files, file)
	data, err := r.in.ReadFile(file)
	if err != nil {
		r.fault("read upstreams: %s%w: mount the node's own there, or name servers under %s", via, err, r.in.Terms.External)
		return nil, nil, false
	}
	addrs, notes, err := parseResolvConf(file, string(data))
	if err != nil {
		r.faults = append(r.faults, err)
		return nil, nil, false
	}
	return addrs, notes, true
}
