package nft

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/nftables"
)

// table is a whole nftables table as data: what render makes of a description and what the back end compares and writes.
type table struct {
	counters []string
	sets     []set
	chains   []chain
}

// contents says who may put elements into a set.
type contents uint8

const (
	exact   contents = iota // the elements of the description and no others
	atLeast                 // the elements of the description; the plugin may have added more
	dynamic                 // packets fill it; nobody else touches it
)

type set struct {
	name     string
	key      []nftables.SetDatatype // more than one: a concatenation
	value    *nftables.SetDatatype  // nil: a set, else a map
	contents contents
	timeout  time.Duration // default of a dynamic set's elements; 0: given by the rule
	size     uint32        // bound of a dynamic set
	sweep    time.Duration // how often expired elements are freed; 0: as the kernel does
	elements []element
}

// ofLinks tells sets of interface names: the agent's to keep, since they change as links come and go.
func (s set) ofLinks() bool { return s.key[0].Name == nftables.TypeIFName.Name }

// element is one key (and value, in a map), in the byte form that the kernel keeps.
type element struct {
	key, value []byte
	text       string
	expires    time.Duration // of one that was read: until the kernel forgets it; 0: never
}

type chain struct {
	name  string
	hook  *hook // nil: a chain that others jump to
	rules []rule
	// anothers: only the chain must be there; what stands in it is not ours to know.
	anothers bool
}

type hook struct {
	kind     string // filter, route, nat
	num      uint32
	priority int32
}

// rule is its statements in kernel form and the text that nft prints for them; a test holds the two together.
type rule struct {
	phrases []phrase
	ops     []op
	hidden  bool // the text is for nobody's eyes
}

// phrase is a part of a rule's text. Texts are made where somebody reads them: an ADD that succeeds needs none.
type phrase struct {
	format string
	args   []any
}

// text is what nft prints.
func (r rule) text() string {
	words := make([]string, len(r.phrases))
	for i, p := range r.phrases {
		words[i] = fmt.Sprintf(p.format, p.args...)
	}
	return strings.Join(words, " ")
}

// String is the rule as people may see it.
func (r rule) String() string {
	if r.hidden {
		return "(a rule with the agent's secret)"
	}
	return r.text()
}
