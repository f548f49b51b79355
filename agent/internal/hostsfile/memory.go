// Package hostsfile keeps names of Services in the node's hosts file, for programs on the node that do not use cluster DNS. The most
// important one is the container runtime, which pulls images from a registry's Service name.
//
// It queries kube-dns, never this node's cache, and needs no API server, agent or controller. It changes only its own lines in the file
// (pkg/hostsfile). Failing queries never remove a line, and a denial does so only after kube-dns has authoritatively denied the name for
// some time.
//
// Failure policy: on any failure, the lines stay as they are. If the file cannot be read or replaced, the status and the metrics show the
// fault, it is logged once, and the next round or change of the file is the next try.
package hostsfile

import (
	"errors"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/hostsfile"
)

// Config has the names to keep in the hosts file, and the servers to query.
type Config struct {
	Services []string         // namespace/name
	Domain   string           // the cluster's, without the final dot
	Servers  []netip.AddrPort // servers of the cluster DNS, without TLS; if one fails, the next is queried
}

// Times of the role `hosts`.
const (
	defaultEarly = time.Second // pause after a first round in which a query got no answer: a booting node may have no network yet
	// A name counts as deleted after enoughDenials denials over defaultPatience, because kube-dns without its API server may deny
	// existing names for a while.
	defaultPatience = 3 * time.Minute
	enoughDenials   = 3
)

// maxAddresses is the maximum number of addresses of one family that are kept for a name. A headless Service has one for each pod.
const maxAddresses = 16

// sentinel is a Service that exists in every cluster. A server that does not know it cannot cause the removal of lines.
const sentinel = "kubernetes.default.svc"

// Names returns the two names that the hosts file has for a Service: without and with the cluster's domain.
func Names(service, domain string) []string {
	namespace, name, _ := strings.Cut(service, "/")
	short := name + "." + namespace + ".svc"
	return []string{short, short + "." + domain}
}

// qtypes returns the query types for the two address families.
func qtypes() []uint16 { return []uint16{dns.TypeA, dns.TypeAAAA} }

// possible reports whether a Service can have the address. Loopback, multicast, link-local and similar addresses are a mistake or an
// attack.
func possible(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.Is4In6() && !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast() &&
		!a.IsLinkLocalUnicast() &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// key identifies a query: a Service and the address family.
type key struct {
	service string
	qtype   uint16
}

// fact is what is known about the addresses of a key.
type fact struct {
	addrs    []netip.Addr // addresses of the last good answer, sorted; empty if there was none, or the name counts as deleted
	answered time.Time    // time of the last answer that set addrs, also to none; zero: none yet, addrs come from the file
	denials  int          // denials by servers that know the sentinel, since the last good answer or a denial by one that does not
	denied   time.Time    // time of the first of these denials
	failed   string       // why the last query had no answer that counts; "" if it had one
	ends     time.Time    // until then the server may answer the same from its cache; zero: unknown
}

// memory has the facts about all keys.
type memory map[key]fact

// recall takes the addresses in the file's lines as the last good answers, for keys without an answer so far.
func (m memory) recall(conf Config, lines []hostsfile.Entry) {
	services := map[string]string{}
	for _, s := range conf.Services {
		for _, name := range Names(s, conf.Domain) {
			services[name] = s
		}
	}
	for _, line := range lines {
		for _, name := range line.Names {
			k := key{services[name], dns.TypeAAAA}
			if line.Addr.Is4() {
				k.qtype = dns.TypeA
			}
			f := m[k]
			if k.service == "" || !possible(line.Addr) || !f.answered.IsZero() {
				continue
			}
			f.addrs = sorted(append(f.addrs, line.Addr))
			m[k] = f
		}
	}
}

// learn updates the fact about k with a reply. trusted means that the server that denied the name knows the sentinel.
func (m memory) learn(k key, r reply, trusted bool, now time.Time, patience time.Duration) {
	f := m[k]
	f.failed = ""
	defer func() {
		if f.ends = (time.Time{}); r.err == nil && r.ttl > 0 {
			f.ends = now.Add(r.ttl)
		}
		m[k] = f
	}()
	switch {
	// Without an address to lose, an alias alone is no failure: usually the target has addresses of the other family alone.
	case r.err != nil && (len(f.addrs) > 0 || !errors.Is(r.err, errNoAddress)):
		f.failed = strings.ReplaceAll(r.err.Error(), "\n", "; ") // addresses and denials so far are kept
	case len(r.addrs) > 0:
		f = fact{addrs: r.addrs, answered: now}
	case len(f.addrs) == 0:
		f = fact{answered: now}
	case !trusted:
		f.denials, f.failed = 0, "the name is denied, and so is "+sentinel+": is clusterDomain right?"
	default:
		if f.denials == 0 {
			f.denied = now
		}
		if f.denials++; f.denials >= enoughDenials && now.Sub(f.denied) >= patience {
			f = fact{answered: now}
		}
	}
}

// entries returns the lines that the hosts file should have.
func (m memory) entries(conf Config) (out []hostsfile.Entry) {
	for _, k := range conf.keys() {
		for _, a := range m[k].addrs {
			out = append(out, hostsfile.Entry{Addr: a, Names: Names(k.service, conf.Domain)})
		}
	}
	return out
}

// keys returns the queries of a full round.
func (c Config) keys() (out []key) {
	for _, s := range c.Services {
		for _, qtype := range qtypes() {
			out = append(out, key{s, qtype})
		}
	}
	return out
}
