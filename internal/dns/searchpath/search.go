package searchpath

import (
	"slices"
	"strconv"
	"strings"

	"github.com/neardns/neardns/internal/dns/msg"
)

// maxName is the length of the longest name in its written form with the final dot (RFC 1035, section 3.1: 255 bytes on the wire).
const maxName = 254

// Limits within which all resolvers read a search list alike: glibc before 2.26 takes the first six domains and 255 characters, and musl
// skips a line of more than 255, its end included, so that its list is empty.
const (
	maxDomains = 6
	maxLine    = 255
)

// Search is how one pod turns a short name into full ones. It does not change. Decisions are remembered by the Search itself, so pods do
// not share one, and a pod keeps its own as long as it stays the Same.
type Search struct {
	suffixes []string // lower case, with the final dot; "." is the name as it was typed
	first    []byte   // the first of them in wire form; nil: it has none
	ndots    int
	noTLD    bool
	cluster  string // the cluster's domain, in lower case and with the final dot, as suffixes has it
	id       string // equal for all that walk in the same way
}

// NewSearch makes a Search from a search list, the two options that steer its use, and the cluster's domain. It returns nil if no query
// shows that a walk begins (without a list, or with one that begins with the root), and if resolvers read the list differently. noTLD: a
// name without a dot is never queried as it is (no-tld-query, resolv.conf(5)).
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

// Same reports whether both walk in the same way.
func (s *Search) Same(other *Search) bool { return s != nil && other != nil && s.id == other.id }

// nameOf returns the name that a client looks up if its first query is for queried: queried without the first suffix and without a final
// dot.
func (s *Search) nameOf(queried string) (name string, ok bool) {
	return cutSuffix(queried, s.suffixes[0])
}

// walks reports whether the list is tried before the name itself, so that the walk's first query is the first of all.
func (s *Search) walks(name string) bool { return strings.Count(name, ".") < s.ndots }

// steps lists the names that a resolver queries for a name, in its order.
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

// parentOf returns the name whose denial also denies a step of the walk: the last label of name and the suffix, if the suffix is one of the
// cluster's. Below a name that does not exist, no name does (RFC 8020), and the cluster's zone keeps to that: a missing Service has no
// endpoints, and a missing namespace no Services (Kubernetes' DNS specification). For other suffixes, and for a name of one label, it
// returns "".
func (s *Search) parentOf(name, step string) string {
	at := strings.LastIndexByte(name, '.')
	if at < 0 || !strings.HasSuffix("."+step[min(len(name)+1, len(step)):], "."+s.cluster) {
		return ""
	}
	return step[at+1:]
}

// earlier lists the names whose walks query this name after their first step.
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

// cutSuffix removes a suffix and the dot before it from a name.
func cutSuffix(name, suffix string) (string, bool) {
	at := len(name) - len(suffix)
	if at < 2 || name[at-1] != '.' || !strings.EqualFold(name[at:], suffix) {
		return "", false
	}
	return name[:at-1], true
}
