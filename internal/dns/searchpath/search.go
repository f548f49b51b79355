package searchpath

import (
	"slices"
	"strconv"
	"strings"

	"github.com/neardns/neardns/internal/dns/msg"
)

// nameMost is the longest name in its written form with the final dot (RFC 1035, section 3.1: 255 bytes on the wire).
const nameMost = 254

// Lists that all resolvers read alike: glibc before 2.26 takes the first six domains and 255 characters of them, and musl passes
// over a line of more than 255, its end included, so that its list is empty.
const (
	domainsMost = 6
	lineMost    = 255
)

// Search is how one pod turns a short name into full ones. It does not change. What is decided is remembered by the Search itself,
// so pods do not share one, and a pod keeps its own as long as it stays the Same.
type Search struct {
	suffixes []string // lower case, with the final dot; "." stands for the name as it was typed
	first    []byte   // the first of them in wire form; nil: it has none
	ndots    int
	noTLD    bool
	cluster  string // the cluster's domain in the form of the suffixes
	id       string // the same for all that walk in the same way
}

// NewSearch takes a search list, the two options that steer its use, and the cluster's domain. It returns nil if no query
// shows that a walk begins (without a list, or with one that begins with the root), and if resolvers read the list differently. noTLD: a
// name without a dot is never queried as it is (no-tld-query, resolv.conf(5)).
func NewSearch(list []string, ndots int, noTLD bool, cluster string) *Search {
	if len(list) > domainsMost || len("search "+strings.Join(list, " ")+"\n") > lineMost {
		return nil
	}
	s := &Search{ndots: ndots, noTLD: noTLD, cluster: strings.ToLower(strings.TrimSuffix(cluster, ".")) + "."}
	for _, suffix := range list {
		suffix = strings.ToLower(strings.TrimSuffix(suffix, ".")) + "."
		if strings.ContainsAny(suffix, `\ `) || len(suffix) > nameMost || suffix != "." && (suffix[0] == '.' || strings.Contains(suffix, "..")) {
			return nil // who knows what its resolver makes of that
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

// begins takes the question with which the walk of a name begins apart and returns the name, without a final dot.
func (s *Search) begins(question string) (name string, ok bool) {
	return cut(question, s.suffixes[0])
}

// walks reports whether the list is tried before the name itself is, so that the walk's first question is the first of all.
func (s *Search) walks(name string) bool { return strings.Count(name, ".") < s.ndots }

// questions lists what a resolver asks for a name, in its order.
func (s *Search) questions(name string) []string {
	out := make([]string, 0, len(s.suffixes)+1)
	for _, suffix := range s.suffixes {
		out = append(out, join(name, suffix))
	}
	if slices.Contains(s.suffixes, ".") || s.noTLD && !strings.Contains(name, ".") {
		return out
	}
	return append(out, name+".")
}

// top returns the name whose denial denies a question of the walk too: what stands right below the suffix, where that is one of
// the cluster's. Below a name that does not exist nothing does (RFC 8020), and the cluster's zone keeps to that: a Service that
// is not there has no endpoints, and a namespace that is not there no Services (Kubernetes' DNS specification). Elsewhere, and
// for a name of one label, it is "".
func (s *Search) top(name, question string) string {
	at := strings.LastIndexByte(name, '.')
	if at < 0 || !strings.HasSuffix("."+question[min(len(name)+1, len(question)):], "."+s.cluster) {
		return ""
	}
	return question[at+1:]
}

// later lists the names whose walks come by this question after their first step.
func (s *Search) later(question string) []string {
	out := []string{strings.TrimSuffix(question, ".")}
	for _, suffix := range s.suffixes[1:] {
		if name, ok := cut(question, suffix); ok && suffix != "." {
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

// cut takes a suffix and the dot before it off a name.
func cut(name, suffix string) (string, bool) {
	at := len(name) - len(suffix)
	if at < 2 || name[at-1] != '.' || !strings.EqualFold(name[at:], suffix) {
		return "", false
	}
	return name[:at-1], true
}
