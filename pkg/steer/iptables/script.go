package iptables

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// chain describes one of neardns's chains in one table.
type chain struct {
	table, name string
	from        []jump // the jumps to this chain from base chains
	rules       []string
}

// jump is a rule in a base chain that jumps to one of neardns's chains. neardns changes no other rule of a base chain.
type jump struct {
	base string
	last bool // whether the jump is appended to the base chain's rules; otherwise it is inserted before them
	// before matches rules of other programs that the jump must precede, because they would decide about neardns's packets. The
	// jump may follow any other rule, because some programs also insist on being first.
	before []foreign
}

// foreign matches a rule of another program in the form that iptables -S prints.
type foreign struct {
	about  string // a text that the rule contains
	ending string // the text that the rule ends with
}

func (f foreign) is(rule string) bool {
	return strings.Contains(rule+" ", f.about) && strings.HasSuffix(rule, f.ending)
}

// placing is whether and where a base chain has a jump to neardns's chain.
type placing uint8

const (
	inPlace placing = iota
	absent          // there is no jump
	tooLate         // after a rule that the jump must precede
	twice           // added twice, by plugin and agent at the same time: the chain would count its packets twice
)

func (c chain) jumpRule() string { return "-j " + c.name }

// stampPrefix begins the comments of counting rules, which have a counter's name, and the comment of each chain's first rule.
// That rule has no effect; its comment contains a digest of the other rules, as they were written: each version of the programs
// prints them in other words.
const stampPrefix = "neardns:"

func (c chain) stamp() string {
	sum := sha256.Sum256([]byte(strings.Join(c.rules, "\n")))
	return stampPrefix + hex.EncodeToString(sum[:6])
}

// script has neardns's chains for one IP family in one netns.
type script struct {
	is4    bool
	chains []chain
}

func (s script) family() string {
	if s.is4 {
		return "IPv4"
	}
	return "IPv6"
}

func (s script) tables() []string {
	var out []string
	for _, c := range s.chains {
		if !slices.Contains(out, c.table) {
			out = append(out, c.table)
		}
	}
	return out
}

func (s script) in(table string) []chain {
	return slices.DeleteFunc(slices.Clone(s.chains), func(c chain) bool { return c.table != table })
}

// restore returns the input for iptables-restore --noflush that makes the tables' chains as described. Each table is one
// transaction, which first empties the chains that it names. place returns where a base chain has a jump now.
func (s script) restore(tables []string, place func(c chain, j jump) placing) string {
	var b strings.Builder
	for _, table := range tables {
		fmt.Fprintf(&b, "*%s\n", table)
		for _, c := range s.in(table) {
			fmt.Fprintf(&b, ":%s - [0:0]\n", c.name)
		}
		for _, c := range s.in(table) {
			fmt.Fprintf(&b, "-A %s -m comment --comment %s\n", c.name, c.stamp())
			for _, r := range c.rules {
				fmt.Fprintf(&b, "-A %s %s\n", c.name, r)
			}
		}
		for _, c := range s.in(table) {
			for _, j := range c.from {
				at := place(c, j)
				if at == tooLate || at == twice {
					fmt.Fprintf(&b, "-D %s %s\n", j.base, c.jumpRule())
				}
				switch {
				case at == inPlace, at == twice:
				case j.last:
					fmt.Fprintf(&b, "-A %s %s\n", j.base, c.jumpRule())
				default:
					fmt.Fprintf(&b, "-I %s 1 %s\n", j.base, c.jumpRule())
				}
			}
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

// tableRules has the rules of a table by the name of their chain, in the form that iptables -S prints.
type tableRules map[string][]string

// parse parses what iptables -S prints about one chain or a whole table.
func parse(text string) tableRules {
	have := tableRules{}
	for line := range strings.Lines(text) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, rule, _ := strings.Cut(rest, " ")
		switch kind {
		case "-N", "-P":
			have[name] = slices.Clip(have[name])
		case "-A":
			have[name] = append(have[name], rule)
		}
	}
	return have
}

// differs describes how the kernel's chain differs from c in its stamp or its number of rules, or returns "".
func (c chain) differs(have tableRules) string {
	rules, ok := have[c.name]
	switch {
	case !ok:
		return "chain " + c.name + " is missing"
	case !slices.ContainsFunc(rules, func(r string) bool { return strings.Contains(r, c.stamp()) }):
		return "chain " + c.name + " has other rules"
	case len(rules) != len(c.rules)+1:
		return fmt.Sprintf("chain %s has %d rules, not %d", c.name, len(rules), len(c.rules)+1)
	}
	return ""
}

// place returns whether and where a base chain has the jump to c.
func (c chain) place(have tableRules, j jump) placing {
	at := slices.Index(have[j.base], c.jumpRule())
	if at < 0 {
		return absent
	}
	for _, rule := range have[j.base][:at] {
		if slices.ContainsFunc(j.before, func(f foreign) bool { return f.is(rule) }) {
			return tooLate
		}
	}
	if slices.Contains(have[j.base][at+1:], c.jumpRule()) {
		return twice
	}
	return inPlace
}

// drift describes how the kernel's chains differ from the script, and lists the tables with differences.
func (s script) drift(have map[string]tableRules) (items, tables []string) {
	add := func(table, item string) {
		items = append(items, fmt.Sprintf("%s %s: %s", s.family(), table, item))
		if !slices.Contains(tables, table) {
			tables = append(tables, table)
		}
	}
	for _, c := range s.chains {
		if d := c.differs(have[c.table]); d != "" {
			add(c.table, d)
		}
		for _, j := range c.from {
			switch c.place(have[c.table], j) {
			case absent:
				add(c.table, j.base+" does not jump to "+c.name)
			case twice:
				add(c.table, j.base+" jumps to "+c.name+" twice")
			case tooLate:
				add(c.table, j.base+" jumps to "+c.name+" after another program's rules that it must precede")
			}
		}
	}
	return items, tables
}

// missing describes the script's chains that are missing or empty in the kernel, and the jumps that are missing.
func (s script) missing(have map[string]tableRules) []string {
	var out []string
	for _, c := range s.chains {
		if len(have[c.table][c.name]) == 0 {
			out = append(out, fmt.Sprintf("%s %s: rules of chain %s", s.family(), c.table, c.name))
		}
		for _, j := range c.from {
			if !slices.Contains(have[c.table][j.base], c.jumpRule()) {
				out = append(out, fmt.Sprintf("%s %s: the jump from %s to %s", s.family(), c.table, j.base, c.name))
			}
		}
	}
	return out
}

// remove returns the input for iptables-restore --noflush that removes the named chains from a table, with the jumps to them;
// "" if the table has none of them.
func remove(table string, have tableRules, names []string) string {
	var jumps, flush, gone strings.Builder
	for base, rules := range have {
		for _, r := range rules {
			target := r[strings.LastIndexByte(r, ' ')+1:]
			if slices.Contains(names, target) && !slices.Contains(names, base) {
				fmt.Fprintf(&jumps, "-D %s %s\n", base, r)
			}
		}
	}
	for _, name := range names {
		if _, ok := have[name]; ok {
			fmt.Fprintf(&flush, "-F %s\n", name)
			fmt.Fprintf(&gone, "-X %s\n", name)
		}
	}
	if gone.Len() == 0 {
		return ""
	}
	return "*" + table + "\n" + jumps.String() + flush.String() + gone.String() + "COMMIT\n"
}

// trialSuffix ends the names of chains that only test whether the kernel accepts the rules.
const trialSuffix = "-TRY"

// asTrial returns the script with trialSuffix in its chains' names, also where one chain jumps to another, but without the jumps from
// base chains, so that no packet passes them.
func (s script) asTrial() script {
	out := script{is4: s.is4}
	names := map[string]string{}
	for _, c := range s.chains {
		names[c.name] = c.name + trialSuffix
	}
	for _, c := range s.chains {
		trial := chain{table: c.table, name: names[c.name]}
		for _, r := range c.rules {
			at := strings.LastIndexByte(r, ' ') + 1
			if to, ok := names[r[at:]]; ok {
				r = r[:at] + to
			}
			trial.rules = append(trial.rules, r)
		}
		out.chains = append(out.chains, trial)
	}
	return out
}

// discard returns the input for iptables-restore that deletes the script's chains in these tables. No other chain may refer to
// them.
func (s script) discard(tables ...string) string {
	var b strings.Builder
	for _, table := range tables {
		have := tableRules{}
		for _, c := range s.in(table) {
			have[c.name] = nil
		}
		b.WriteString(remove(table, have, slices.Sorted(maps.Keys(have))))
	}
	return b.String()
}
