package resolvconf

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/strict"
)

// Limits are the maximums for a pod's settings. A field that is 0 means the limit of Kubernetes.
type Limits struct {
	Nameservers int // number of nameservers
	Searches    int // number of search domains
	SearchChars int // characters in the search list, including the spaces between its domains
}

// Profile names a set of limits.
type Profile string

// The profiles. GlibcLegacy has the limits of glibc before 2.26 (2017), for older images. Later versions of glibc limit only the
// number of nameservers.
const (
	Kubernetes  Profile = "kubernetes"
	GlibcLegacy Profile = "glibc-legacy"
)

// Limits returns the limits of the profile. An unknown profile has those of Kubernetes.
func (p Profile) Limits() Limits {
	if p == GlibcLegacy {
		return Limits{Nameservers: 3, Searches: 6, SearchChars: 256} // glibc's MAXNS, MAXDNSRCH and the size of its search buffer (resolv.h)
	}
	// kubernetes/kubernetes pkg/apis/core/validation: MaxDNSNameservers, MaxDNSSearchPaths, MaxDNSSearchListChars.
	return Limits{Nameservers: 3, Searches: 32, SearchChars: 2048}
}

// ParseProfile reads a profile's name.
func ParseProfile(name string) (Profile, error) {
	switch p := Profile(name); p {
	case Kubernetes, GlibcLegacy:
		return p, nil
	}
	return "", fmt.Errorf("profile %s is not known: write %s or %s", strict.Quote(name), Kubernetes, GlibcLegacy)
}

// Excess selects what happens to settings that exceed the limits.
type Excess string

// Truncate cuts the lists at their end, as the kubelet does. Refuse drops an overlay that would make a list exceed its limit.
const (
	Truncate Excess = ""
	Refuse   Excess = "refuse"
)

func (l Limits) complete() Limits {
	full := Kubernetes.Limits()
	return Limits{cmp.Or(l.Nameservers, full.Nameservers), cmp.Or(l.Searches, full.Searches), cmp.Or(l.SearchChars, full.SearchChars)}
}

// fit cuts s to the limits, in the kubelet's order. It limits the number of nameservers and of search domains, then removes search
// domains that are too long, then shortens the search list to its maximum of characters. The notes name what it removed.
func (l Limits) fit(s Settings) (Settings, []Note) {
	l = l.complete()
	var notes []Note
	out := s.clone()
	if len(s.Nameservers) > l.Nameservers {
		out.Nameservers = out.Nameservers[:l.Nameservers]
		notes = append(notes, note(NameserversCut, "%d of %d nameservers are within the limit; beyond it: %s",
			l.Nameservers, len(s.Nameservers), list(s.Nameservers[l.Nameservers:])))
	}
	var left []string
	if len(out.Searches) > l.Searches {
		left = slices.Clone(out.Searches[l.Searches:])
		out.Searches = out.Searches[:l.Searches]
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
	for chars := len(strings.Join(out.Searches, " ")); chars > l.SearchChars; {
		last := len(out.Searches) - 1
		left = append(left, out.Searches[last])
		chars -= len(out.Searches[last]) + 1
		out.Searches = out.Searches[:last]
	}
	if len(left) > 0 {
		notes = append(notes, note(SearchesCut, "%d of %d search domains are within the limits (%d domains, %d characters in all, %d "+
			"each); beyond them: %s",
			len(out.Searches), len(s.Searches), l.Searches, l.SearchChars, strict.MaxDomain, list(left)))
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
