package nft

import (
	"fmt"
	"maps"
	"slices"

	"github.com/neardns/neardns/pkg/steer"
)

// loaded has those properties of the kernel's table in which it can differ from a description.
type loaded struct {
	chains   map[string]loadedChain
	sets     map[string]loadedSet
	counters map[string]steer.Counter
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
	return c.hook.text(nfAccept)
}

func (s set) shape() string {
	value := uint32(0)
	if s.value != nil {
		value = s.value.GetNFTMagic()
	}
	return shapeText(s.keyType(), value, s.flags(), s.timeout, s.size)
}

func (t table) hasSet(name string) bool {
	return slices.ContainsFunc(t.sets, func(s set) bool { return s.name == name })
}

func (t table) hasChain(name string) bool {
	return slices.ContainsFunc(t.chains, func(c chain) bool { return c.name == name })
}

// compare lists the differences between the table in the kernel and want, in the terms of `nft list table`.
func compare(want table, have loaded) []string {
	var items []string
	add := func(format string, args ...any) { items = append(items, fmt.Sprintf(format, args...)) }
	if len(have.chains) == 0 && len(have.sets) == 0 && len(want.chains) > 0 {
		return []string{"table inet " + steer.TableName + " is missing or empty"}
	}
	if have.dormant {
		add("table inet %s is dormant: none of its rules is in force", steer.TableName)
	}
	for _, name := range want.counters {
		if _, ok := have.counters[name]; !ok {
			add("counter %s is missing", name)
		}
	}
	for _, s := range want.sets {
		items = append(items, compareSet(s, have)...)
	}
	for _, c := range want.chains {
		items = append(items, compareChain(c, have)...)
	}
	for _, name := range slices.Sorted(maps.Keys(have.chains)) {
		if !want.hasChain(name) {
			add("chain %s is not one of this version's", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have.sets)) {
		if !want.hasSet(name) {
			add("set %s is not one of this version's", name)
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
		items = append(items, fmt.Sprintf("set %s has %d unexpected elements", s.name, len(extra)))
	}
	return items
}

func compareChain(c chain, have loaded) []string {
	h, ok := have.chains[c.name]
	if !ok {
		return []string{fmt.Sprintf("chain %s is missing", c.name)}
	}
	if h.hook != c.hookText() {
		return []string{fmt.Sprintf("chain %s is attached at %q, not %q", c.name, h.hook, c.hookText())}
	}
	if c.filledElsewhere {
		return nil
	}
	for i, r := range c.rules {
		if i >= len(h.rules) {
			return []string{fmt.Sprintf("chain %s lacks rule %d: %s", c.name, i+1, r)}
		}
		if want, err := r.digest(); err != nil || h.rules[i] != want {
			return []string{fmt.Sprintf("chain %s, rule %d is not: %s", c.name, i+1, r)}
		}
	}
	if n := len(h.rules) - len(c.rules); n > 0 {
		return []string{fmt.Sprintf("chain %s has %d rules too many", c.name, n)}
	}
	return nil
}

// change adds the messages that make the kernel's table equal to want. It empties a chain that differs, and fills it in the
// same transaction, so that no packet passes half of the chain. The table itself and counters stay, and so do leases and
// remembered connections, except in sets that reshape deletes.
func (b *batch) change(want table, have loaded) {
	b.addTable()
	b.reshape(want, have)
	b.declare(want, have)
	var stale []string
	for _, name := range slices.Sorted(maps.Keys(have.chains)) {
		if !want.hasChain(name) {
			b.flushChain(name)
			stale = append(stale, name)
		}
	}
	changed := map[string]bool{}
	for _, c := range want.chains {
		if len(compareChain(c, have)) == 0 && len(stale) == 0 {
			continue // with a stale chain, which may be one of these under another name, rules refer to what is deleted below
		}
		changed[c.name] = true
		b.fill(c)
	}
	for _, name := range stale {
		b.deleteChain(name)
	}
	for _, s := range want.sets {
		h, ok := have.sets[s.name]
		if s.contents == dynamic && changed[s.of] && ok {
			b.flushSet(s.name)
		}
		if s.contents == exact {
			b.deleteElements(s.name, missing(h.elements, s.elements))
		}
		b.addElements(s.name, missing(s.elements, h.elements)) // in a dynamic set, in addition to the elements that packets added
	}
	for _, name := range slices.Sorted(maps.Keys(have.sets)) {
		if !want.hasSet(name) {
			b.deleteSet(name)
		}
	}
}

// reshape deletes sets of another shape and base chains at another hook, which another version or program wrote. Because rules refer to
// sets and chains, it first empties and deletes all chains. All that it deletes leaves have.
func (b *batch) reshape(want table, have loaded) {
	var sets []string
	for _, s := range want.sets {
		if h, ok := have.sets[s.name]; ok && h.shape != s.shape() {
			sets = append(sets, s.name)
		}
	}
	if len(sets) == 0 && !slices.ContainsFunc(want.chains, func(c chain) bool {
		h, ok := have.chains[c.name]
		return ok && h.hook != c.hookText()
	}) {
		return
	}
	chains := slices.Sorted(maps.Keys(have.chains))
	for _, name := range chains {
		b.flushChain(name)
	}
	for _, name := range chains {
		b.deleteChain(name)
	}
	clear(have.chains)
	for _, name := range sets {
		b.deleteSet(name)
		delete(have.sets, name)
	}
}

// declare adds the counters, sets and chains that have lacks.
func (b *batch) declare(want table, have loaded) {
	for _, name := range want.counters {
		if _, ok := have.counters[name]; !ok {
			b.addCounter(name)
		}
	}
	for i, s := range want.sets {
		if _, ok := have.sets[s.name]; !ok {
			b.addSet(s, uint32(i+1)) //nolint:gosec // a few dozen sets
		}
	}
	for _, c := range want.chains {
		if _, ok := have.chains[c.name]; !ok {
			b.addChain(c)
		}
	}
}

// fill empties a chain and adds its rules.
func (b *batch) fill(c chain) {
	b.flushChain(c.name)
	for _, r := range c.rules {
		b.addRule(c.name, r)
	}
}

// complete adds only what have lacks. It leaves a chain with any rule as it is, because another version may have written it. It
// empties an empty chain before filling it, in one transaction, so that each rule is there once even if two plugins do this at
// the same time.
func (b *batch) complete(want table, have loaded) {
	b.addTable()
	b.declare(want, have)
	for _, s := range want.sets {
		h, ok := have.sets[s.name]
		if s.contents != dynamic && (!s.ofLinks() || !ok) {
			b.addElements(s.name, missingKeys(s.elements, h.elements))
		}
	}
	for _, c := range want.chains {
		if len(have.chains[c.name].rules) == 0 && len(c.rules) > 0 {
			b.fill(c)
		}
	}
}

// missingKeys lists the elements of want whose key is not in have. An element with another value there does not count: another
// version wrote it, and complete must not change it.
func missingKeys(want, have []element) []element {
	var out []element
	for _, w := range want {
		if len(missing([]element{{key: w.key}}, have)) > 0 {
			out = append(out, w)
		}
	}
	return out
}
