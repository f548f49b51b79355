package nft

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/nftables"
)

// table describes a whole nftables table as data. render makes it from a steer.Ruleset; the back end compares it with the
// kernel's and writes it.
type table struct {
	counters []string
	sets     []set
	chains   []chain
}

// contents limits which elements a set in the kernel may have besides set.elements.
type contents uint8

const (
	exact   contents = iota // no others
	atLeast                 // also others, which the plugin added
	dynamic                 // also others: packets add and remove elements; batch.change adds set.elements and removes none
)

type set struct {
	name     string
	key      []nftables.SetDatatype // types of the parts of the key; several parts are concatenated
	value    *nftables.SetDatatype  // type of a map's values; nil for a set
	contents contents
	timeout  time.Duration // lifetime of elements in a dynamic set; 0: each rule gives its own
	size     uint32        // maximum number of elements in a dynamic set
	sweep    time.Duration // how often the kernel frees expired elements; 0: its default
	of       string        // the chain with whose rules a dynamic set is emptied; "": packets' elements stay
	elements []element
}

// ofLinks reports whether a set's elements are interface names. Once such a set exists, only the agent changes it, because links
// come and go.
func (s set) ofLinks() bool { return s.key[0].Name == nftables.TypeIFName.Name }

// element is a key in a set, or a key and value in a map, in the kernel's byte form.
type element struct {
	key, value []byte
	text       string        // the element as messages show it
	expires    time.Duration // of an element in the kernel: time until it expires; 0: never
}

type chain struct {
	name  string
	hook  *hook // nil: not a base chain, so it is entered only by jumps from other chains
	rules []rule
	// filledElsewhere: another process writes the chain's rules, so they are not compared.
	filledElsewhere bool
}

type hook struct {
	kind     string // chain type: filter, route or nat
	num      uint32
	priority int32
}

// rule has a rule in the kernel's form, and the text that nft prints for it. A test checks that the two agree.
type rule struct {
	phrases []phrase
	ops     []op
	hidden  bool // the text contains the agent's secret, so never print it
}

// phrase is a part of a rule's text, formatted only when a message needs it: a CNI ADD that succeeds needs no text.
type phrase struct {
	format string
	args   []any
}

func (r rule) text() string {
	words := make([]string, len(r.phrases))
	for i, p := range r.phrases {
		words[i] = fmt.Sprintf(p.format, p.args...)
	}
	return strings.Join(words, " ")
}

// String returns the rule's text, or a note in its place if the text contains the secret.
func (r rule) String() string {
	if r.hidden {
		return "(a rule with the agent's secret)"
	}
	return r.text()
}
