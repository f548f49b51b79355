package searchpath

import (
	"slices"
	"strconv"
	"strings"

	"github.com/neardns/neardns/internal/dns/msg"
)

// maxName is the maximum length of a name in presentation form, with the final dot (RFC 1035, section 3.1: 255 bytes in wire form).
const maxName = 254

// Limits within which all resolvers read a search list in the same way. glibc before 2.26 uses only the first six domains and 255
// characters. musl ignores a line of more than 255 characters, line end included, so that its list is empty.
const (
	maxDomains = 6
	maxLine    = 255
)

// Search is how one pod turns a short name into full ones: its search list and options. It does not change. Decisions are stored by the
// pointer to a Search, so pods do not share them, and a pod keeps them while its Search stays the Same.
type Search struct {
	suffixes []string // in lower case, with the final dot; "." stands for the name as it was typed
	first    []byte   // the first suffix in wire form; nil if it has no wire form
	ndots    int
	noTLD    bool
	cluster  string // the cluster's domain, in lower case and with the final dot
	id       string // equal for all Searches that walk in the same way
}

// NewSearch returns a Search for a search list, the two options that affect its use, and the cluster's domain. With noTLD, a name without
// a dot is never queried as it is (no-tld-query, resolv.conf(5)). It returns nil if resolvers read the list differently. It also returns
// nil if the first query of a walk cannot be recognised: without a list, or if the list begins with the root.
func NewSearch(list []string, ndots int, noTLD bool, cluster string) *Search {
	if len(list) > maxDomains || len("search "+strings.Join(list, " ")+"\n") > maxLine {
		return nil
	}
	s := &Search{ndots: ndots, noTLD: noTLD, cluster: strings.ToLower(strings.TrimSuffix(cluster, ".")) + "."}
	for _, suffix := range list {
		suffix = strings.ToLower(strings.TrimSuffix(suffix, ".")) + "."
		if strings.ContainsAny(suffix, `\ `) || len(suffix) > maxName || suffix != "." && (suffix[0] == '.' || strings.Contains(suffix, "..")) {
			return nil // resolvers may differ
		}
		s.suffixes = append(s.suffixes, suffix)
	}
	if len(s.suffixes) == 0 || s.suffixes[0] == "." {
		return nil
	}
	s.first, _ = msg.Name(s.suffixes[0]) // nil with an error
	s.id = strings.Join(s.suffixes, " ") + " " + strconv.Itoa(ndots) + " " + strconv.FormatBool(noTLD) + " " + s.cluster
	return s
}

// Same reports whether both have the same list, options and cluster's domain.
func (s *Search) Same(other *Search) bool { return s != nil && other != nil && s.id == other.id }

// nameOf returns the name that a client looks up if its first query is for queried: queried without the first suffix and without a final
// dot.
func (s *Search) nameOf(queried string) (name string, ok bool) {
	return cutSuffix(queried, s.suffixes[0])
}

// walks reports whether a resolver tries the search list before the name itself, so that the walk's first query is the first of all.
func (s *Search) walks(name string) bool { return strings.Count(name, ".") < s.ndots }

// steps returns the names that a resolver queries for a name, in order.
func (s *Search) steps(name string) []string {
	out := make([]string, 0, len(s.suffixes)+1)
	for _, suffix := range s.suffixes {
		out = append(out, join(name, suffix))
	}
	if slices.Contains(s.suffixes, ".") || s.noTLD && !strings.Contains(name, ".") {
		return out
	}
	return append(out, name+".")
}

// parentOf returns a name whose denial also denies a step of the walk: the last label of name with the step's suffix, if the suffix is in
// the cluster's domain. Below a name that does not exist, no name exists (RFC 8020), and the cluster's zone follows that: a missing
// Service has no endpoints, and a missing namespace no Services (Kubernetes' DNS specification). For other suffixes, and for a name of
// one label, it returns "".
func (s *Search) parentOf(name, step string) string {
	at := strings.LastIndexByte(name, '.')
	if at < 0 || !strings.HasSuffix("."+step[min(len(name)+1, len(step)):], "."+s.cluster) {
		return ""
	}
	return step[at+1:]
}

// earlier returns the names whose walks query this name after their first step.
func (s *Search) earlier(queried string) []string {
	out := []string{strings.TrimSuffix(queried, ".")}
	for _, suffix := range s.suffixes[1:] {
		if name, ok := cutSuffix(queried, suffix); ok && suffix != "." {
			out = append(out, name)
		}
	}
	return out
}

func join(name, suffix string) string {
	if suffix == "." {
		return name + "."
	}
	return name + "." + suffix
}

// cutSuffix removes a suffix and the dot before it from a name. It returns false if the name is not below the suffix.
func cutSuffix(name, suffix string) (string, bool) {
	at := len(name) - len(suffix)
	if at < 2 || name[at-1] != '.' || !strings.EqualFold(name[at:], suffix) {
		return "", false
	}
	return name[:at-1], true
}
