package zone

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// Labels of the names that clusters add to the zone: of the TXT records with which they coordinate (bookkeeping), and klb. None of them
// can be part of a published host: a hostname has no underscore, and checkHost refuses klb.
const (
	bookkeeping = "_neardns"
	shared      = "_shared"
	wildcard    = "_any"  // stands for *
	apex        = "_apex" // stands for the zone itself
	levels      = "klb"   // in the names LABEL.klb.HOST of a host's regions and clusters, as in Kuadrant's records
)

// maxHost is the maximum length of a host, so that the names of its bookkeeping have at most 255 octets in wire form (RFC 1035). The
// longest of these names is that of the references to an IPv6 address, for a wildcard at the apex.
const maxHost = 253 - len("2001-0db8-ffff-ffff-ffff-ffff-ffff-ffff.") - len(wildcard+"."+apex+".r."+shared+"."+bookkeeping)

func lower(name string) string {
	if name == "" {
		return ""
	}
	return dns.CanonicalName(name)
}

// checkName returns an error unless a name is absolute, in lower case, so short that it fits in one string of a claim (target=NAME), and
// has only labels of RFC 1123; punycode is allowed.
func checkName(name string) error {
	if name == "." || !strings.HasSuffix(name, ".") {
		return fmt.Errorf("%q is no absolute name", name)
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		if !validLabel(label) {
			return fmt.Errorf("label %q of %s: write 1 to 63 of a-z, 0-9 and -, without - at either end", label, name)
		}
	}
	if most := maxString - len("target="); len(name) > most {
		return fmt.Errorf("%s has %d characters; at most %d fit in a TXT record", name, len(name), most)
	}
	return nil
}

func validLabel(l string) bool {
	return len(l) >= 1 && len(l) <= 63 && l[0] != '-' && l[len(l)-1] != '-' &&
		strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func checkHost(host, origin string) error {
	plain := strings.TrimPrefix(host, "*.")
	if plain == origin {
		return nil
	}
	if err := checkName(plain); err != nil {
		return err
	}
	if !dns.IsSubDomain(origin, plain) {
		return fmt.Errorf("%s is not in the zone %s", host, origin)
	}
	for _, l := range dns.SplitDomainName(plain)[:dns.CountLabel(plain)-dns.CountLabel(origin)] {
		if l == levels {
			return fmt.Errorf("%s: the label %s is kept for regions and clusters of a host", host, levels)
		}
	}
	if len(host) > maxHost {
		return fmt.Errorf("%s has %d characters; at most %d leave room for its bookkeeping", host, len(host), maxHost)
	}
	return nil
}

// CheckOrigin returns an error if the name, which must be canonical, cannot be a shared zone.
func CheckOrigin(origin string) error {
	if err := checkName(origin); err != nil {
		return err
	}
	if len(origin) > maxHost {
		return errors.New(origin + " is too long for a shared zone")
	}
	return nil
}

// names composes and parses the names in one zone.
type names struct{ origin string }

// word returns the labels that stand for a host in the names of its TXT records below _neardns: the host relative to the zone, with
// _any for * and _apex for the zone itself.
func (n names) word(host string) string {
	switch host {
	case n.origin:
		return apex
	case "*." + n.origin:
		return wildcard + "." + apex
	}
	rel := strings.TrimSuffix(host, "."+n.origin)
	if rest, ok := strings.CutPrefix(rel, "*."); ok {
		return wildcard + "." + rest
	}
	return rel
}

// host is the inverse of word: it returns the host for which the labels stand, or false if they stand for none.
func (n names) host(labels []string) (string, bool) {
	star := ""
	if len(labels) > 0 && labels[0] == wildcard {
		star, labels = "*.", labels[1:]
	}
	var host string
	switch {
	case len(labels) == 0:
		return "", false
	case len(labels) == 1 && labels[0] == apex:
		host = star + n.origin
	default:
		host = star + strings.Join(labels, ".") + "." + n.origin
	}
	return host, checkHost(host, n.origin) == nil
}

func (n names) beat(cluster string) string { return cluster + "." + bookkeeping + "." + n.origin }

func (n names) claim(host, cluster string) string { return n.word(host) + "." + n.beat(cluster) }

func (n names) set(kind, host string) string {
	return n.word(host) + "." + kind + "." + shared + "." + bookkeeping + "." + n.origin
}

func (n names) owners(host string) string   { return n.set("o", host) }
func (n names) strategy(host string) string { return n.set("s", host) }

func (n names) references(host string, a netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(a.String()) + "." + n.set("r", host)
}

// level returns the name LABEL.klb.HOST, which has the addresses of one region or one cluster of a host. For a wildcard host *.REST it is
// LABEL.klb.klb.REST, which no other host has, because klb cannot be a host's label. (With the label _any in its place, BIND would by
// default refuse addresses at the name: check-names.)
func (n names) level(host, label string) string {
	if rest, ok := strings.CutPrefix(host, "*."); ok {
		host = levels + "." + rest
	}
	return label + "." + levels + "." + host
}

// oldLevel returns the name that an older version used in place of level for a wildcard host. The planner deletes what is left there. For
// other hosts oldLevel returns "".
func (n names) oldLevel(host, label string) string {
	if rest, ok := strings.CutPrefix(host, "*."); ok {
		return label + "." + levels + "." + wildcard + "." + rest
	}
	return ""
}

// address parses the label that references makes of an address: 192-0-2-1, 2001-db8--1.
func address(label string) (netip.Addr, bool) {
	for _, with := range []string{".", ":"} {
		a, err := netip.ParseAddr(strings.ReplaceAll(label, "-", with))
		if err == nil && a.Unmap() == a && a.Zone() == "" && strings.NewReplacer(".", "-", ":", "-").Replace(a.String()) == label {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// kind is the use of a name in the zone.
type kind int

const (
	other kind = iota // neither below _neardns nor LABEL.klb.HOST; it may be a host
	broken
	beatName
	claimName
	ownersName
	strategyName
	referencesName
	levelName
)

// place is a parsed name of the zone: its kind, and the host, cluster, region or address that the name contains.
type place struct {
	kind    kind
	host    string
	cluster string     // for claimName and beatName
	label   string     // for levelName: a region code or a cluster ID
	addr    netip.Addr // for referencesName
}

// place parses a canonical name, which must be in the zone.
func (n names) place(name string) place {
	if name == n.origin {
		return place{kind: other, host: name}
	}
	labels := strings.Split(strings.TrimSuffix(name, "."+n.origin), ".")
	last := len(labels) - 1
	if labels[last] == bookkeeping {
		return n.book(labels[:last])
	}
	if len(labels) >= 2 && labels[1] == levels {
		rest := slices.Clone(labels[2:])
		if len(rest) > 0 && rest[0] == levels {
			rest[0] = wildcard
		}
		if len(rest) == 0 || len(rest) == 1 && rest[0] == wildcard {
			rest = append(rest, apex)
		}
		if host, ok := n.host(rest); ok && (validCluster(labels[0]) || validGeo(labels[0])) {
			return place{kind: levelName, host: host, label: labels[0]}
		}
	}
	return place{kind: other, host: name}
}

// book parses the labels that a bookkeeping name has before _neardns.
func (n names) book(labels []string) place {
	last := len(labels) - 1
	if last < 0 {
		return place{kind: broken}
	}
	if labels[last] != shared {
		if !validCluster(labels[last]) {
			return place{kind: broken}
		}
		if last == 0 {
			return place{kind: beatName, cluster: labels[0]}
		}
		if host, ok := n.host(labels[:last]); ok {
			return place{kind: claimName, host: host, cluster: labels[last]}
		}
		return place{kind: broken}
	}
	if last < 2 {
		return place{kind: broken}
	}
	kinds := map[string]kind{"o": ownersName, "s": strategyName, "r": referencesName}
	p, labels := place{kind: kinds[labels[last-1]]}, labels[:last-1]
	if p.kind == other {
		return place{kind: broken}
	}
	ok := true
	if p.kind == referencesName {
		p.addr, ok = address(labels[0])
		labels = labels[1:]
	}
	if ok {
		p.host, ok = n.host(labels)
	}
	if !ok {
		return place{kind: broken}
	}
	return p
}
