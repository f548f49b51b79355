package nft

import (
	"fmt"
	"maps"
	"slices"

	"github.com/neardns/neardns/pkg/steer"
)

// loaded is the table as the kernel holds it, reduced to what a description can differ in.
type loaded struct {
	chains   map[string]loadedChain
	sets     map[string]loadedSet
	counters map[string]bool
	dormant  bool
}

type loadedChain struct {
	hook  string
	rules []string
}

type loadedSet struct {
	shape    string
	elements []element
}

func (c chain) hookText() string {
	if c.hook == nil {
		return ""
	}
	return hookText(c.hook.kind, c.hook.num, c.hook.priority, nfAccept)
}

func (s set) shape() string {
	value := uint32(0)
	if s.value != nil {
		value = s.value.GetNFTMagic()
	}
	return shapeText(s.keyType(), value, s.flags(), s.timeout, s.size)
}

// compare names every point in which have differs from want, each as an operator would look for it in `nft list table`.
func compare(want table, have loaded) []string {
	var items []string
	say := func(format string, args ...any) { items = append(items, fmt.Sprintf(format, args...)) }
	if len(have.chains) == 0 && len(have.sets) == 0 && len(want.chains) > 0 {
		return []string{"table inet " + steer.TableName + " is missing or empty"}
	}
	if have.dormant {
		say("table inet %s is dormant: none of its rules is in force", steer.TableName)
	}
	for _, name := range want.counters {
		if !have.counters[name] {
			say("counter %s is missing", name)
		}
	}
	setNames := map[string]bool{}
	for _, s := range want.sets {
		setNames[s.name] = true
		items = append(items, compareSet(s, have)...)
	}
	chainNames := map[string]bool{}
	for _, c := range want.chains {
		chainNames[c.name] = true
		items = append(items, compareChain(c, have)...)
	}
	for _, name := range slices.Sorted(maps.Keys(have.chains)) {
		if !chainNames[name] {
			say("chain %s is not ours", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have.sets)) {
		if !setNames[name] {
			say("set %s is not ours", name)
		}
	}
	return items
}

func compareSet(s set, have loaded) []string {
	h, ok := have.sets[s.name]
	if !ok {
		return []string{fmt.Sprintf("set %s is missing", s.name)}
	}
	if h.shape != s.shape() {
		return []string{fmt.Sprintf("set %s has another shape: %s, not %s", s.name, h.shape, s.shape())}
	}
	if s.contents == dynamic {
		return nil
	}
	var items []string
	for _, e := range missing(s.elements, h.elements) {
		items = append(items, fmt.Sprintf("set %s lacks %s", s.name, e.text))
	}
	if extra := missing(h.elements, s.elements); s.contents == exact && len(extra) > 0 {
		items = append(items, fmt.Sprintf("set %s has %d foreign elements", s.name, len(extra)))
	}
	return items
}

func compareChain(c chain, have loaded) []string {
	h, ok := have.chains[c.name]
	if !ok {
		return []string{fmt.Sprintf("chain %s is missing", c.name)}
	}
	if h.hook != c.hookText() {
		return []string{fmt.Sprintf("chain %s hangs at %q, not %q", c.name, h.hook, c.hookText())}
	}
	if c.anothers {
		return nil
	}
	for i, r := range c.rules {
		if i >= len(h.rules) {
			return []string{fmt.Sprintf("chain %s lacks rule %d: %s", c.name, i+1, r)}
		}
		if want, err := r.canonical(); err != nil || h.rules[i] != want {
			return []string{fmt.Sprintf("chain %s, rule %d is not: %s", c.name, i+1, r)}
		}
	}
	if n := len(h.rules) - len(c.rules); n > 0 {
		return []string{fmt.Sprintf("chain %s has %d rules too many", c.name, n)}
	}
	return nil
}

// change writes what makes have equal to want. Chains that differ are emptied and filled again in the same transaction, so
// no packet ever sees half a chain; the table itself, leases, remembered connections and counters stay.
func (b *batch) change(want table, have loaded) {
	b.addTable()
	b.declare(want, have)
	keep := map[string]bool{}
	var stale []string
	for _, c := range want.chains {
		keep[c.name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(have.chains)) {
		if !keep[name] {
			b.flushChain(name)
			stale = append(stale, name)
		}
	}
	for _, c := range want.chains {
		if len(compareChain(c, have)) == 0 {
			continue
		}
		b.flushChain(c.name)
		for _, r := range c.rules {
			b.addRule(c.name, r)
		}
	}
	for _, name := range stale {
		b.deleteChain(name)
	}
	for _, s := range want.sets {
		keep["set "+s.name] = true
		if s.contents == dynamic {
			b.addElements(s.name, s.elements) // beside what packets put there
			continue
		}
		h := have.sets[s.name]
		if h.shape != s.shape() {
			h.elements = nil // declared anew
		}
		if s.contents == exact {
			b.deleteElements(s.name, missing(h.elements, s.elements))
		}
		b.addElements(s.name, missing(s.elements, h.elements))
	}
	for _, name := range slices.Sorted(maps.Keys(have.sets)) {
		if !keep["set "+name] {
			b.deleteSet(name)
		}
	}
}

// declare adds counters, sets and chains that are not there. A set or base chain of another shape (another version's) is
// deleted first, which needs every chain emptied: references hold it.
func (b *batch) declare(want table, have loaded) {
	reshaped := false
	for _, s := range want.sets {
		h, ok := have.sets[s.name]
		reshaped = reshaped || ok && h.shape != s.shape()
	}
	for _, c := range want.chains {
		h, ok := have.chains[c.name]
		reshaped = reshaped || ok && h.hook != c.hookText()
	}
	if reshaped {
		for _, name := range slices.Sorted(maps.Keys(have.chains)) {
			b.flushChain(name)
		}
		for _, name := range slices.Sorted(maps.Keys(have.chains)) {
			b.deleteChain(name)
		}
		clear(have.chains)
		for _, s := range want.sets {
			if h, ok := have.sets[s.name]; ok && h.shape != s.shape() {
				b.deleteSet(s.name)
			}
		}
	}
	for _, name := range want.counters {
		if !have.counters[name] {
			b.addCounter(name)
		}
	}
	for i, s := range want.sets {
		if h, ok := have.sets[s.name]; !ok || h.shape != s.shape() {
			b.addSet(s, uint32(i+1)) //nolint:gosec // a few dozen sets
		}
	}
	for _, c := range want.chains {
		if _, ok := have.chains[c.name]; !ok {
			b.addChain(c)
		}
	}
}

// complete adds what have lacks and leaves everything else alone. Chains that exist with any rule in them are another
// version's or the agent's business. An empty chain is filled in one transaction with its flush, so that two plugins that
// do it at once leave each rule once.
func (b *batch) complete(want table, have loaded) {
	b.addTable()
	for _, name := range want.counters {
		if !have.counters[name] {
			b.addCounter(name)
		}
	}
	for i, s := range want.sets {
		h, ok := have.sets[s.name]
		if !ok {
			b.addSet(s, uint32(i+1)) //nolint:gosec // a few dozen sets
		}
		if s.contents != dynamic && (!s.ofLinks() || !ok) {
			b.addElements(s.name, missingKeys(s.elements, h.elements))
		}
	}
	var fill []chain
	for _, c := range want.chains {
		h, ok := have.chains[c.name]
		if !ok {
			b.addChain(c)
		}
		if len(h.rules) == 0 && len(c.rules) > 0 {
			fill = append(fill, c)
		}
	}
	for _, c := range fill {
		b.flushChain(c.name)
		for _, r := range c.rules {
			b.addRule(c.name, r)
		}
	}
}

// missingKeys is missing without regard to values: what is mapped otherwise already is not ours to edit here.
func missingKeys(want, have []element) []element {
	var out []element
	for _, w := range want {
		if len(missing([]element{{key: w.key}}, have)) > 0 {
			out = append(out, w)
		}
	}
	return out
}
