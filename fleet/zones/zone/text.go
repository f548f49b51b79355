package zone

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// version is the first string of each TXT record below _neardns. All strings are KEY=VALUE in lower case, because PowerDNS ignores case
// when it compares TXT records with prerequisites. Unknown keys are ignored, so that a later release can add some.
const version = "v=1"

const (
	maxString = 255 // bytes in one string of a TXT record (RFC 1035 section 3.3)
	maxPath   = 80  // bytes in the path of a health check: escaped, it is at most three times as long, which fits in one string
)

// Claim is the TXT record with which a cluster describes what it publishes for one host.
type Claim struct {
	Publication
	Identity
	Generation uint64 // increases with each write, so that a new version of the claim always differs from the one that it replaces
	// the strategy that the cluster wants, if the host still has another one because its clusters do not agree; else empty
	Wants Strategy
}

// Beat is the heartbeat of one cluster, a TXT record. Other clusters and edges measure for how many of its periods it does not change.
type Beat struct {
	Counter  uint64 // increases with each heartbeat
	Instance string
	Period   time.Duration // interval of the cluster's heartbeats, in whole seconds
}

// text returns the strings of the claim's TXT record. The TTL among them is the one that the cluster wants; the host's TTL changes when
// all clusters want the same one.
func (c *Claim) text() []string {
	t := []string{version, "gen=" + strconv.FormatUint(c.Generation, 10), "inst=" + c.Instance}
	if c.Geo != "" {
		t = append(t, "geo="+c.Geo)
	}
	if c.DefaultGeo {
		t = append(t, "default=1")
	}
	t = append(t, "weight="+strconv.FormatUint(uint64(c.Weight), 10))
	if c.TTL > 0 {
		t = append(t, "ttl="+strconv.FormatUint(uint64(c.TTL), 10))
	}
	if c.Wants != "" {
		t = append(t, strategyKey(c.Wants))
	}
	if c.Target != "" {
		t = append(t, "target="+c.Target)
	}
	if h := c.Health; h != nil {
		t = append(t, "check="+strings.ToLower(string(h.Protocol))+":"+strconv.Itoa(int(h.Port)))
		if h.Path != "" {
			t = append(t, "path="+escape(h.Path))
		}
		if h.Host != "" {
			t = append(t, "name="+h.Host)
		}
	}
	return append(t, addressStrings(c.Addresses)...)
}

// addressStrings returns strings addr=ADDRESS,ADDRESS..., each with as many addresses as fit.
func addressStrings(addrs []netip.Addr) []string {
	var t []string
	line := ""
	for _, a := range addrs {
		s := a.String()
		switch {
		case line == "":
			line = "addr=" + s
		case len(line)+1+len(s) > maxString:
			t, line = append(t, line), "addr="+s
		default:
			line += "," + s
		}
	}
	if line != "" {
		t = append(t, line)
	}
	return t
}

// fields parses the strings of a TXT record, and returns the values by key. Only addr may occur more than once.
func fields(t []string) (map[string][]string, error) {
	if len(t) == 0 || t[0] != version {
		return nil, errors.New("does not begin with " + version)
	}
	f := map[string][]string{}
	for _, s := range t[1:] {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, fmt.Errorf("%q has no =", s)
		}
		for i := range len(s) {
			if c := s[i]; c <= ' ' || c > '~' || c == '\\' || c == '"' || c >= 'A' && c <= 'Z' {
				return nil, fmt.Errorf("%q has a character that no value has", s)
			}
		}
		if key != "addr" && len(f[key]) > 0 {
			return nil, fmt.Errorf("%s occurs twice", key)
		}
		f[key] = append(f[key], value)
	}
	return f, nil
}

// one returns the value of a key that occurs once, or "".
func one(f map[string][]string, key string) string {
	if v := f[key]; len(v) == 1 {
		return v[0]
	}
	return ""
}

// number parses a decimal number of at most the given bits. It refuses leading zeros, so that equal numbers have equal texts.
func number(s string, bits int) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, bits)
	if err == nil && strconv.FormatUint(n, 10) != s {
		err = strconv.ErrSyntax
	}
	return n, err
}

// parseClaim parses a cluster's claim, its TXT record for a host. The result has no strategy, and its TTL is 0 if an older version wrote
// the claim; derive then takes these from the host.
func parseClaim(t []string, cluster, host string) (Claim, error) {
	c := Claim{Publication: Publication{Host: host}, Identity: Identity{Cluster: cluster}}
	f, err := fields(t)
	if err != nil {
		return c, err
	}
	if c.Generation, err = number(one(f, "gen"), 64); err != nil {
		return c, fmt.Errorf("gen: %w", err)
	}
	if c.Instance = one(f, "inst"); !validInstance(c.Instance) {
		return c, fmt.Errorf("inst=%s is not valid", c.Instance)
	}
	w, err := number(one(f, "weight"), 32)
	if err != nil || w > MaxWeight {
		return c, fmt.Errorf("weight=%s is not valid", one(f, "weight"))
	}
	c.Weight = uint32(w)
	if f["ttl"] != nil {
		if c.TTL, err = parseTTL(f); err != nil {
			return c, err
		}
	}
	c.Wants, _ = parseStrategy(f) // if a later version wants a strategy that is unknown here, count that as agreement with the host's
	if c.Geo = one(f, "geo"); c.Geo != "" && !validGeo(c.Geo) {
		return c, fmt.Errorf("geo=%s is not valid", c.Geo)
	}
	c.DefaultGeo = one(f, "default") == "1" && c.Geo != ""
	if c.Target = one(f, "target"); c.Target != "" {
		if err := checkName(c.Target); err != nil {
			return c, err
		}
	}
	if c.Addresses, err = parseAddresses(f["addr"]); err != nil {
		return c, err
	}
	if len(c.Addresses) > 0 && c.Target != "" {
		return c, errors.New("has addresses and a target")
	}
	c.Health, err = parseHealth(f)
	return c, err
}

func parseAddresses(lines []string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, line := range lines {
		for s := range strings.SplitSeq(line, ",") {
			a, err := netip.ParseAddr(s)
			if err != nil || a.Zone() != "" || a.Is4In6() || a.String() != s {
				return nil, fmt.Errorf("addr: %q is not valid", s)
			}
			addrs = append(addrs, a)
		}
	}
	if len(addrs) > MaxAddresses {
		return nil, fmt.Errorf("%d addresses are more than %d", len(addrs), MaxAddresses)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil
}

func parseHealth(f map[string][]string) (*Health, error) {
	check := one(f, "check")
	if check == "" {
		return nil, nil
	}
	protocol, port, _ := strings.Cut(check, ":")
	n, err := number(port, 16)
	if err != nil {
		return nil, fmt.Errorf("check=%s has no port", check)
	}
	path, err := unescape(one(f, "path"))
	if err != nil {
		return nil, err
	}
	h := &Health{Protocol: Protocol(strings.ToUpper(protocol)), Port: uint16(n), Path: path, Host: one(f, "name")}
	var faults []error
	p := Publication{Health: h}
	p.validateHealth(func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf(field+": "+format, args...))
	})
	return h, errors.Join(faults...)
}

// escape returns a path in which all bytes except lower-case letters, digits and /-._~ are written as %xx, because paths are case-sensitive
// and TXT records must not depend on case.
func escape(path string) string {
	var b strings.Builder
	for i := range len(path) {
		if c := path[i]; plain(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02x", c)
		}
	}
	return b.String()
}

func plain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("/-._~", c) >= 0
}

func unescape(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if plain(s[i]) {
			b.WriteByte(s[i])
			continue
		}
		if s[i] != '%' || i+3 > len(s) {
			return "", fmt.Errorf("path=%s is not escaped", s)
		}
		n, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil || plain(byte(n)) {
			return "", fmt.Errorf("path=%s is not escaped", s)
		}
		b.WriteByte(byte(n))
		i += 2
	}
	return b.String(), nil
}

func (b Beat) text() []string {
	return []string{version, "n=" + strconv.FormatUint(b.Counter, 10), "inst=" + b.Instance,
		"every=" + strconv.FormatInt(int64(b.Period/time.Second), 10)}
}

// MaxPeriod is the longest heartbeat period that is accepted. With a longer one, a dead cluster would be noticed too late.
const MaxPeriod = time.Hour

func parseBeat(t []string) (Beat, error) {
	f, err := fields(t)
	if err != nil {
		return Beat{}, err
	}
	b := Beat{Instance: one(f, "inst")}
	if b.Counter, err = number(one(f, "n"), 64); err != nil {
		return Beat{}, fmt.Errorf("n: %w", err)
	}
	every, err := number(one(f, "every"), 32)
	if b.Period = time.Duration(every) * time.Second; err != nil || b.Period <= 0 || b.Period > MaxPeriod {
		return Beat{}, fmt.Errorf("every=%s is no number of seconds from 1 to %d", one(f, "every"), MaxPeriod/time.Second)
	}
	if !validInstance(b.Instance) {
		return Beat{}, fmt.Errorf("inst=%s is not valid", b.Instance)
	}
	return b, nil
}

func ownerText(cluster string) []string { return []string{version, "c=" + cluster} }

func parseOwner(t []string) (string, error) {
	f, err := fields(t)
	if err != nil {
		return "", err
	}
	if c := one(f, "c"); validCluster(c) {
		return c, nil
	}
	return "", fmt.Errorf("c=%s is not valid", one(f, "c"))
}

// Reference is a TXT record that names a cluster that publishes an address of a host, and the region for which the cluster does. The zero
// Reference records that the host had the address before any cluster published it, so the address stays when all clusters leave.
type Reference struct{ Cluster, Geo string }

const stoodBefore = "before=1"

func (r Reference) text() []string {
	if r == (Reference{}) {
		return []string{version, stoodBefore}
	}
	if r.Geo == "" {
		return ownerText(r.Cluster)
	}
	return append(ownerText(r.Cluster), "geo="+r.Geo)
}

func parseReference(t []string) (Reference, error) {
	if slices.Equal(t, Reference{}.text()) {
		return Reference{}, nil
	}
	c, err := parseOwner(t)
	if err != nil {
		return Reference{}, err
	}
	f, _ := fields(t) // parseOwner has already checked the error
	r := Reference{Cluster: c, Geo: one(f, "geo")}
	if r.Geo != "" && !validGeo(r.Geo) {
		return Reference{}, fmt.Errorf("geo=%s is not valid", r.Geo)
	}
	return r, nil
}

// ttlBefore has, by record type, the key in a strategy's TXT record. The key's value is the TTL of the A or AAAA records that the host had
// before the first cluster published it.
var ttlBefore = map[uint16]string{dns.TypeA: "a", dns.TypeAAAA: "aaaa"}

func strategyText(s Strategy, ttl uint32, before map[uint16]uint32) []string {
	t := []string{version, strategyKey(s), "ttl=" + strconv.FormatUint(uint64(ttl), 10)}
	for _, rrtype := range slices.Sorted(maps.Keys(before)) {
		t = append(t, ttlBefore[rrtype]+"="+strconv.FormatUint(uint64(before[rrtype]), 10))
	}
	return t
}

// parseBefore parses the values of the keys in ttlBefore from a strategy's TXT record, and returns them by record type.
func parseBefore(t []string) map[uint16]uint32 {
	f, _ := fields(t)
	before := map[uint16]uint32{}
	for rrtype, key := range ttlBefore {
		if ttl, err := number(one(f, key), 31); err == nil {
			before[rrtype] = uint32(ttl)
		}
	}
	return before
}

// parseHost parses the TXT record with a host's strategy and TTL, which all clusters share.
func parseHost(t []string) (Strategy, uint32, error) {
	f, err := fields(t)
	if err != nil {
		return "", 0, err
	}
	ttl, err := parseTTL(f)
	if err != nil {
		return "", 0, err
	}
	s, err := parseStrategy(f)
	return s, ttl, err
}

func strategyKey(s Strategy) string { return "strategy=" + strings.ToLower(string(s)) }

func parseStrategy(f map[string][]string) (Strategy, error) {
	for _, s := range []Strategy{Simple, LoadBalanced} {
		if one(f, "strategy") == strings.ToLower(string(s)) {
			return s, nil
		}
	}
	return "", fmt.Errorf("strategy=%s is neither %s nor %s", one(f, "strategy"), Simple, LoadBalanced)
}

func parseTTL(f map[string][]string) (uint32, error) {
	ttl, err := number(one(f, "ttl"), 32)
	if err != nil || ttl == 0 || ttl > MaxTTL {
		return 0, fmt.Errorf("ttl=%s is not valid", one(f, "ttl"))
	}
	return uint32(ttl), nil
}

// bookTTL is the TTL, in seconds, of the TXT records below _neardns. It hardly matters, because clients do not query these records.
const bookTTL = 60

func txt(name string, t []string) *dns.TXT {
	return &dns.TXT{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: bookTTL}, Txt: t}
}
