// Package upstream finds the servers to which the agent forwards misses. It combines those of the configuration, of files in the format of
// resolv.conf and of a mounted kube-dns ConfigMap.
//
// The agent never becomes its own upstream. The package resolves no name, opens no socket and queries no server.
//
// On failure: Resolve returns an error that names the place and the remedy of each fault. Entries that it can skip without harm are in
// Notes. If a resolv.conf names only the agent itself, queries go to the cluster's servers, so that the node keeps its DNS, and Warnings
// (with Auto, Why) has the reason.
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

// Input has the inputs of Resolve.
type Input struct {
	ClusterDomain string
	Cluster       []nameserver.Address            // for the cluster domain
	External      []nameserver.Source             // for all other names; none: the servers in Cluster
	ExternalSet   bool                            // the configuration sets External, so the ConfigMap's upstreamNameservers are ignored
	StubDomains   map[string][]nameserver.Address // by domain, in lower case and without the final dot
	ConfigMap     string                          // folder of a mounted kube-dns ConfigMap, "" for none; it need not exist
	Own           []netip.Addr                    // the addresses at which the agent itself serves
	ReadFile      func(path string) ([]byte, error)
	// Auto, if not nil, chooses the servers for all other names by kube-dns's Corefile, in place of External.
	Auto *Auto
	// AskStub allows systemd-resolved's stub listener as upstream, if a resolv.conf lists no other server and UplinkFile cannot be read. It
	// is for a cache that does not mount that file, shares the node's loopback, and used the stub before.
	AskStub bool
	Terms   Terms
}

// Auto has the inputs for using the node's resolvers only if kube-dns uses them too.
type Auto struct {
	Corefile string // path of kube-dns's Corefile as mounted in this container; it need not exist
	NodeFile string // path of the file that lists the node's resolvers, in the format of resolv.conf
	// Judge reports whether a Corefile sends names outside the cluster to the node's resolvers and nowhere else, and why.
	Judge func(text string) (node bool, why string)
}

// By names the servers that answer for names outside the cluster.
type By string

// The values of By.
const (
	ByNode          By = "the node's resolvers"
	ByKubeDNS       By = "kube-dns"
	ByConfiguration By = "the servers of the configuration"
)

// Terms has the names of settings for remedies in messages, as the user of the program knows them. For an empty one, NodeConfig's name is
// used.
type Terms struct {
	External  string // upstreams.external
	Cluster   string // upstreams.cluster of the configuration
	ConfigMap string // kubeDNSConfigMap
}

// Upstreams has the servers to which the agent forwards. Files may change from one Resolve to the next, so each result has a list of its
// own to watch.
type Upstreams struct {
	Cluster  []nameserver.Address
	External []nameserver.Address            // none: use Cluster
	Found    bool                            // External has the node's own resolvers, because the configuration does not set it
	By       By                              // which servers answer for names outside the cluster and the stub domains
	Why      string                          // the reason for By; "" if neither kube-dns's Corefile nor its ConfigMap decides
	Stub     map[string][]nameserver.Address // by domain, in lower case and without the final dot
	Files    []string                        // the files to watch, missing ones included
	Notes    []string                        // remarks for the log, for example which entries were skipped and why
	Warnings []string                        // problems that an operator should fix, although the cluster's servers are used instead
}

// Resolve reads the files, and combines them with the configuration. The error joins all faults; the result then has only Files.
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
	if len(r.out.External) > 0 { // another source has servers, so the warnings need no action
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
		return Upstreams{Files: r.out.Files}, err
	}
	return r.out, nil
}

// resolver collects the result of one Resolve.
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

// take adds a server that the configuration or the ConfigMap lists. An address of the agent itself is a fault, because it is unknown which
// server was meant.
func (r *resolver) take(to *[]nameserver.Address, where string, s nameserver.Address) {
	if err := s.Refuse(r.in.Own); err != nil {
		r.fault("%s: %w", where, err)
		return
	}
	if !slices.Contains(*to, s) {
		*to = append(*to, s)
	}
}

// bound cuts a list to the number of servers that CoreDNS accepts. It is no fault, because a longer list is valid in another program's
// file.
func (r *resolver) bound(where string, servers *[]nameserver.Address) {
	if extra := len(*servers) - nameserver.MaxServers; extra > 0 {
		r.note("%s: the last %d servers are not used: the maximum is %d", where, extra, nameserver.MaxServers)
		*servers = (*servers)[:nameserver.MaxServers]
	}
}

// configMap reads stubDomains and upstreamNameservers of kube-dns's ConfigMap. It reports whether upstreamNameservers replaced the
// external servers, as they do in kube-dns.
//
// CoreDNS reads neither. If coreDNS is true (kube-dns's Corefile is mounted), upstreamNameservers is ignored, and stubDomains gets a note.
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
		if coreDNS && len(stubs) > 0 {
			r.note("%s: used, as by NodeLocal DNSCache; but kube-dns is CoreDNS (%s), which does not read it", file, r.in.Auto.Corefile)
		}
		for _, domain := range slices.Sorted(maps.Keys(stubs)) {
			if _, ok := r.in.StubDomains[domain]; ok {
				r.note("%s: %s: the configuration's own servers are used instead", file, domain)
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
		r.note("%s: upstreams.external of the configuration is used instead", file)
	case coreDNS:
		r.note("%s: ignored: %s shows that kube-dns is CoreDNS, which does not read it", file, r.in.Auto.Corefile)
	default:
		for _, a := range addrs {
			r.take(&r.out.External, file, a)
		}
		return true
	}
	return false
}

// corefile returns kube-dns's Corefile if Auto is set and the file is mounted. An unreadable file counts as missing.
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

// auto uses the node's resolvers if kube-dns does so too. If something prevents it, that is no fault: queries go to kube-dns, as without
// neardns.
func (r *resolver) auto(corefile string, mounted bool) {
	if !mounted {
		return // corefile has set Why
	}
	node, why := r.in.Auto.Judge(corefile)
	r.out.Why = why
	if !node {
		return
	}
	r.out.Why = "kube-dns's Corefile forwards to them, too: " + why
	faults, warnings := len(r.faults), len(r.out.Warnings)
	r.resolvConf(r.in.Auto.NodeFile, "")
	if len(r.faults) > faults {
		r.out.Why = "the node's resolvers are not available: " + strings.ReplaceAll(errors.Join(r.faults[faults:]...).Error(), "\n", "; ")
		r.faults, r.out.External = r.faults[:faults], nil
	}
	if len(r.out.External) == 0 && len(r.out.Warnings) > warnings {
		r.out.Why = "the node's resolvers are not available: " + strings.Join(r.out.Warnings[warnings:], "; ")
		r.out.Warnings = r.out.Warnings[:warnings]
	}
}

// by sets By of the result: which servers answer for names outside the cluster. If replaced is true, it sets Why too.
func (r *resolver) by(replaced bool) {
	switch {
	case replaced:
		r.out.By, r.out.Why = ByConfiguration, "upstreamNameservers of "+r.in.Terms.ConfigMap+" names them"
	case r.in.Auto == nil && len(r.out.External) > 0:
		r.out.By = ByConfiguration
	case len(r.out.External) > 0:
		r.out.By = ByNode
	default:
		r.out.By = ByKubeDNS
	}
}

// Outside describes in one line which servers answer for names outside the cluster, and why.
func (u Upstreams) Outside() string {
	if u.Why == "" {
		return string(u.By)
	}
	return string(u.By) + ", because " + u.Why
}

// readKey reads one key of the ConfigMap. It returns false if the key is missing or empty, and after a fault if it cannot be read. The
// ConfigMap's folder may be missing too.
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

// resolvConf adds the servers of a file in the format of resolv.conf. The file was written for the node, so servers that the agent cannot
// query are skipped; if none is left, that is a warning. via is a text for errors: how the agent found the file, if the configuration
// does not name it.
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
		// The stub would be a second cache behind this one, and it may forward to the agent.
		r.note("%s names systemd-resolved's stub %s: its servers are read from %s", file, addrs[stub].addr, UplinkFile)
		r.resolvConf(UplinkFile, fmt.Sprintf("%s:%d: %s is systemd-resolved's stub, and its servers are not available: ",
			file, addrs[stub].line, addrs[stub].addr))
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
			// Such a server comes from a router advertisement. It cannot be queried; see nameserver.ErrLinkLocal.
			passed = append(passed, fmt.Sprintf("%s:%d: %s is link-local and cannot be queried from here", file, a.line, a.addr))
		default:
			left++
			if !slices.Contains(r.out.External, s) {
				r.out.External = append(r.out.External, s)
			}
		}
	}
	if askStub {
		r.note("%s names systemd-resolved's stub %s: it is queried itself, because its own servers are not available here (%s)",
			file, addrs[stub].addr, UplinkFile)
	}
	remedy := fmt.Sprintf("without other upstreams, the cluster's servers are used: name a server in it, or others under %s",
		r.in.Terms.External)
	if r.in.Terms.External == "upstreams.external" {
		remedy += " (if that is intended, write external: [])"
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
