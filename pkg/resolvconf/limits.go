package resolvconf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/strict"
)

// Kubernetes' limits: pkg/apis/core/validation, MaxDNSNameservers, MaxDNSSearchPaths, MaxDNSSearchListChars.
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048 // including the spaces between the domains
)

// fit cuts s to the limits, in the kubelet's order. It limits the number of nameservers and of search domains, then removes search
// domains that are too long, then shortens the search list to its maximum of characters. The notes name what it removed.
func (s Settings) fit() (Settings, []Note) {
	var notes []Note
	out := s.clone()
	if len(s.Nameservers) > maxNameservers {
		out.Nameservers = out.Nameservers[:maxNameservers]
		notes = append(notes, note(NameserversCut, "%d of %d nameservers are within the limit; beyond it: %s",
			maxNameservers, len(s.Nameservers), list(s.Nameservers[maxNameservers:])))
	}
	var left []string
	if len(out.Searches) > maxSearches {
		left = slices.Clone(out.Searches[maxSearches:])
		out.Searches = out.Searches[:maxSearches]
	}
	out.Searches = slices.DeleteFunc(out.Searches, func(domain string) bool {
		// glibc 2.28 aborts on a search domain of more than 255 characters. Therefore the kubelet removes those of more than 253
		// (dns.go).
		if len(domain) > strict.MaxDomain {
			left = append(left, domain)
			return true
		}
		return false
	})
	for chars := len(strings.Join(out.Searches, " ")); chars > maxSearchChars; {
		last := len(out.Searches) - 1
		left = append(left, out.Searches[last])
		chars -= len(out.Searches[last]) + 1
		out.Searches = out.Searches[:last]
	}
	if len(left) > 0 {
		notes = append(notes, note(SearchesCut, "%d of %d search domains are within the limits (%d domains, %d characters in all, %d "+
			"each); beyond them: %s",
			len(out.Searches), len(s.Searches), maxSearches, maxSearchChars, strict.MaxDomain, list(left)))
	}
	return out, notes
}

// list returns the first three words in quotes, and the number of the others.
func list(words []string) string {
	const most = 3
	var out []string
	for _, w := range words[:min(most, len(words))] {
		out = append(out, strict.Quote(w))
	}
	if len(words) > most {
		out = append(out, fmt.Sprintf("and %d more", len(words)-most))
	}
	return strings.Join(out, ", ")
}
