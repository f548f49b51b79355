package nft

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/nftables"
)

// table is a complete nftables table as data: render makes it from a description, and the back end compares and writes it.
type table struct {
	counters []string
	sets     []set
	chains   []chain
}

// contents is which elements a set may have.
type contents uint8

const (
	exact   contents = iota // only the elements of the description
	atLeast                 // the elements of the description, and any that the plugin added
	dynamic                 // packets add and remove elements; a reconcile adds those described and removes none
)

type set struct {
	name     string
	key      []nftables.SetDatatype // several: a concatenation
	value    *nftables.SetDatatype  // nil: a set, else a map
	contents contents
	timeout  time.Duration // default of a dynamic set's elements; 0: each rule sets its own
	size     uint32        // maximum elements of a dynamic set
	sweep    time.Duration // how often expired elements are freed; 0: the kernel's default
	elements []element
}

// ofLinks reports whether a set has interface names. The agent alone maintains those, since they change as links come and go.
func (s set) ofLinks() bool { return s.key[0].Name == nftables.TypeIFName.Name }

// element is one key (and value, in a map), in the kernel's byte form.
type element struct {
	key, value []byte
	text       string
	expires    time.Duration // of an element that was read: time until it expires; 0: never
}

type chain struct {
	name  string
	hook  *hook // nil: a chain that others jump to
	rules []rule
	// filledElsewhere: another process fills the chain. It must exist, and its rules are not compared.
	filledElsewhere bool
}

type hook struct {
	kind     string // filter, route, nat
	num      uint32
	priority int32
}

// rule is a rule in kernel form and the text that nft prints for it; a test checks that both agree.
type rule struct {
	phrases []phrase
	ops     []op
	hidden  bool // the text contains the secret and must not be shown
}

// phrase is a part of a rule's text. It is formatted only for an error: a CNI ADD that succeeds needs no text.
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

// String is the rule's text, without the secret.
func (r rule) String() string {
	if r.hidden {
		return "(a rule with the agent's secret)"
	}
	return r.text()
}
