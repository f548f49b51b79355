package nodecache

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
)

// Fill has the values that replace the placeholders of a Corefile template.
type Fill struct {
	Locals     []netip.Addr // -localip
	Upstream   netip.Addr   // the server for the cluster's names
	External   string       // servers for all other names, as arguments of forward; "": the same as Upstream
	Chosen     bool         // External comes from the kube-dns ConfigMap: forward over UDP, even if the template has force_tcp
	Prometheus string       // host:port
	Domain     string       // the cluster's domain, used if the operator left the placeholder
}

// The placeholders. The operator should fill in the first three, by the manifest's instructions. node-cache replaces the first by all
// local addresses and the second by nothing.
const (
	localDNS        = "__PILLAR__LOCAL__DNS__"
	dnsServer       = "__PILLAR__DNS__SERVER__"
	dnsDomain       = "__PILLAR__DNS__DOMAIN__"
	ClusterDNS      = "__PILLAR__CLUSTER__DNS__" // the address of -upstreamsvc
	upstreamServers = "__PILLAR__UPSTREAM__SERVERS__"
	metricsEndpoint = "__PILLAR__PROMETHEUS__ENDPOINT__"
	metricsShort    = "__PROMETHEUS__ENDPOINT__" // the end of metricsEndpoint; some templates have only this
)

var (
	placeholder = regexp.MustCompile(`__(PILLAR|PROMETHEUS)__[A-Z_]*__`)
	// Before a port, the placeholder stands for one address even if there are several: "health __PILLAR__LOCAL__DNS__:8080".
	localWithPort = regexp.MustCompile(localDNS + `:(\d+)`)
	// Matches a forward to the servers for all other names with a block of options.
	upstreamBlock = regexp.MustCompile(`(forward[ \t]+\S+[ \t]+` + upstreamServers + `[ \t]*\{)([^{}]*)\}`)
	forceTCP      = regexp.MustCompile(`(?m)^[ \t]*force_tcp[ \t]*(#.*)?\n`)
)

// Corefile returns the template with its placeholders replaced, and notes for the log.
func (f Fill) Corefile(template string) (text string, notes []string, err error) {
	text = template
	if f.Chosen {
		// node-cache does the same, but only for one kind of indentation.
		text = upstreamBlock.ReplaceAllStringFunc(text, func(m string) string { return forceTCP.ReplaceAllString(m, "") })
	}
	external := cmp.Or(f.External, f.Upstream.String())
	var locals []string
	for _, a := range f.Locals {
		locals = append(locals, a.String())
	}
	first := f.Locals[0].String()
	if f.Locals[0].Is6() {
		first = "[" + first + "]"
	}
	text = localWithPort.ReplaceAllString(text, first+":$1")
	if strings.Contains(text, dnsDomain) {
		notes = append(notes, fmt.Sprintf("the template has %s, which the instructions fill in with sed: read as %s", dnsDomain, f.Domain))
	}
	text = strings.NewReplacer(localDNS, strings.Join(locals, " "), dnsServer, "", dnsDomain, f.Domain, ClusterDNS, f.Upstream.String(),
		upstreamServers, external, metricsEndpoint, f.Prometheus, metricsShort, f.Prometheus).Replace(text)
	if left := placeholder.FindStringIndex(text); left != nil {
		line := strings.Count(text[:left[0]], "\n") + 1
		return "", notes, fmt.Errorf("line %d: %s is not a placeholder of node-cache: fill it in, or remove it", line, text[left[0]:left[1]])
	}
	return text, notes, nil
}

var (
	importLine  = regexp.MustCompile(`(?m)^([ \t]*import[ \t]+"?)([^\s"]+)`)
	snippetName = regexp.MustCompile(`(?m)^[ \t]*\(([^)\s]+)\)`)
)

// Imports makes the paths of a filled-in template's import directives absolute, and returns their patterns; it skips imports of snippets.
// node-cache resolves them relative to folder, where it writes the Corefile, and not to the template's folder.
func Imports(text, folder string) (absolute string, patterns []string) {
	snippets := map[string]bool{}
	for _, m := range snippetName.FindAllStringSubmatch(text, -1) {
		snippets[m[1]] = true
	}
	absolute = importLine.ReplaceAllStringFunc(text, func(line string) string {
		m := importLine.FindStringSubmatch(line)
		pattern := m[2]
		if snippets[pattern] {
			return line
		}
		if !path.IsAbs(pattern) {
			pattern = path.Join(folder, pattern)
		}
		if !slices.Contains(patterns, pattern) {
			patterns = append(patterns, pattern)
		}
		return m[1] + pattern
	})
	return absolute, patterns
}

// stubTTL is the maximum TTL in seconds for answers of stub domains, as in node-cache.
const stubTTL = 30

// Stubs returns server blocks for the stub domains, except for domains that have a block in the template or no server.
func Stubs(domains map[string][]nameserver.Address, served []string) (text string, notes []string) {
	var b strings.Builder
	for _, domain := range slices.Sorted(maps.Keys(domains)) {
		if slices.Contains(served, domain) {
			notes = append(notes, fmt.Sprintf("stub domain %s of the kube-dns ConfigMap: the template's own block for it serves", domain))
			continue
		}
		if len(domains[domain]) == 0 {
			notes = append(notes, fmt.Sprintf("stub domain %s of the kube-dns ConfigMap names no server: it has no effect", domain))
			continue
		}
		fmt.Fprintf(&b, "\n%s:53 {\n    errors\n    cache %d\n    forward . %s\n}\n", domain, stubTTL, nameserver.Join(domains[domain]))
	}
	return b.String(), notes
}

// Domain returns the cluster's domain, guessed from the zones of a template: the first zone that is neither the root nor a reverse zone,
// else cluster.local.
func Domain(zones []string) string {
	for _, z := range zones {
		if z != "." && !strings.HasSuffix(z, "arpa") {
			return z
		}
	}
	return "cluster.local"
}
