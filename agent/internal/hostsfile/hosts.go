// Package hostsfile keeps names of Services in the node's hosts file, for programs on the node that do not use cluster DNS: above all the
// container runtime, which pulls images by them.
//
// It queries kube-dns, never this node's cache, and needs no API server, agent or controller. It changes its own lines in the file and
// nothing else (pkg/hostsfile). Only an authoritative denial that lasts removes a line.
//
// Failure policy: whatever fails, the lines stay as they are. A file that cannot be read or replaced is a fault in the status and the
// metrics, is logged once, and is tried again at the next round or change.
package hostsfile

import (
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/hostsfile"
)

// Config lists the names to keep.
type Config struct {
	Services []string         // namespace/name
	Domain   string           // the cluster's, without the final dot
	Servers  []netip.AddrPort // of the cluster DNS, without TLS; the next one is queried if one fails
}

// Times of the role. Those of rounds are in pace.go.
const (
	defaultEarly = time.Second // after a first round without an answer: a booting node gets its network last
	// A denial counts after enoughDenials over this time: kube-dns without its API server may deny for a while.
	defaultPatience = 3 * time.Minute
	enoughDenials   = 3
)

// maxAddresses limits a name's addresses of one family: a Service has one, a headless one has its pods'.
const maxAddresses = 16

// sentinel is a Service that every cluster has. A server that does not know it knows nothing of Services.
const sentinel = "kubernetes.default.svc"

// Names are the names of a Service in the file: without and with the cluster's domain.
func Names(service, domain string) []string {
	namespace, name, _ := strings.Cut(service, "/")
	short := name + "." + namespace + ".svc"
	return []string{short, short + "." + domain}
}

// qtypes are the two families of addresses.
func qtypes() []uint16 { return []uint16{dns.TypeA, dns.TypeAAAA} }

// possible reports whether a Service can have the address. One that leads back to the node, or nowhere, is a mistake or an attack.
func possible(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.Is4In6() && !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast() &&
		!a.IsLinkLocalUnicast() &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// key is one query of a round: a Service's addresses of one family.
type key struct {
	service string
	qtype   uint16
}

// fact is what is known about a key.
type fact struct {
	addrs    []netip.Addr // the last good answer, in order; empty: none yet, or a denial that lasted
	answered time.Time    // zero: these are from the file
	denials  int          // since the last answer, by a server that knows the sentinel
	denied   time.Time    // the first of them
	failed   string       // why the last query had no answer; "" if it had one
	ends     time.Time    // until when the server may answer the same from its cache; zero: not known
}

// memory has all facts.
type memory map[key]fact

// recall takes the lines of the file as the last good answers of keys that have had none yet.
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

// learn keeps an answer. trusted reports whether the server that denied knows the sentinel.
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
	case r.err != nil:
		f.failed = strings.ReplaceAll(r.err.Error(), "\n", "; ") // and denials so far still count
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

// entries lists the lines that the file should have.
func (m memory) entries(conf Config) (out []hostsfile.Entry) {
	for _, k := range conf.keys() {
		for _, a := range m[k].addrs {
			out = append(out, hostsfile.Entry{Addr: a, Names: Names(k.service, conf.Domain)})
		}
	}
	return out
}

// keys lists all queries of a round.
func (c Config) keys() (out []key) {
	for _, s := range c.Services {
		for _, qtype := range qtypes() {
			out = append(out, key{s, qtype})
		}
	}
	return out
}
