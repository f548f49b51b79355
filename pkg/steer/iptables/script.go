package iptables

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// chain is one of neardns's chains, in one table.
type chain struct {
	table, name string
	from        []jump // from the base chains
	rules       []string
}

// jump is the only rule of neardns's in a base chain.
type jump struct {
	base string
	last bool // after the existing rules, instead of before them
	// before matches other programs' rules that would decide about our packets if they came first. No other rule has to come
	// after ours: there are programs that insist on being first, too.
	before []foreign
}

// foreign matches a rule of another program, as iptables -S prints it.
type foreign struct {
	about  string // anywhere in it
	ending string // its end
}

func (f foreign) is(rule string) bool {
	return strings.Contains(rule+" ", f.about) && strings.HasSuffix(rule, f.ending)
}

// placing is the state of a jump in its base chain.
type placing uint8

const (
	inPlace placing = iota
	absent
	tooLate // it is after a rule that it must precede
	twice   // plugin and agent both added it at the same time: packets would be counted twice
)

func (c chain) jumpRule() string { return "-j " + c.name }

// stampPrefix begins the comment of each chain's first rule, which has no effect and contains a digest of the other rules.
// Programs print rules differently from their input, and versions differ, so printed rules can be compared only with what the
// same program printed before.
const stampPrefix = "neardns:"

func (c chain) stamp() string {
	sum := sha256.Sum256([]byte(strings.Join(c.rules, "\n")))
	return stampPrefix + hex.EncodeToString(sum[:6])
}

// script is all chains of one family in one netns.
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

// restore is the input of iptables-restore --noflush that makes the tables' chains as described, each table in one transaction:
// chains that are named are flushed first. place returns the state of a jump.
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

// tableRules is the rules of each chain in a table, by the chain's name, as iptables -S prints them.
type tableRules map[string][]string

// parse reads the output of iptables -S, of a chain or of a table.
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

// key identifies a chain with this content in one family.
func (s script) key(c chain) string {
	return s.family() + " " + c.table + " " + c.name + " " + c.stamp()
}

// verdictOf is the end of a rule, its verdict or target, which every version prints in the same words.
func verdictOf(rule string) string {
	for _, option := range []string{" -j ", " -g "} {
		if i := strings.LastIndex(" "+rule, option); i >= 0 {
			word, _, _ := strings.Cut((" " + rule)[i+len(option):], " ")
			return option + word
		}
	}
	return ""
}

// differs describes how a chain differs from the existing one, or returns "". printed is how it was printed when it was made.
// If that is unknown (nil), only verdicts are compared.
func (c chain) differs(have tableRules, printed []string) string {
	rules, ok := have[c.name]
	switch {
	case !ok:
		return "chain " + c.name + " is missing"
	case !slices.ContainsFunc(rules, func(r string) bool { return strings.Contains(r, c.stamp()) }):
		return "chain " + c.name + " has other rules"
	case len(rules) != len(c.rules)+1:
		return fmt.Sprintf("chain %s has %d rules, not %d", c.name, len(rules), len(c.rules)+1)
	}
	for i, rule := range rules {
		switch {
		case len(printed) == len(rules) && rule != printed[i], len(printed) != len(rules) && i > 0 && verdictOf(rule) != verdictOf(c.rules[i-1]):
			return fmt.Sprintf("rule %d of chain %s differs", i+1, c.name)
		}
	}
	return ""
}

// place returns the state of the jump to c in a base chain.
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

// drift describes the differences from the script, and lists their tables.
func (s script) drift(have map[string]tableRules, printed map[string][]string) (items, tables []string) {
	add := func(table, item string) {
		items = append(items, fmt.Sprintf("%s %s: %s", s.family(), table, item))
		if !slices.Contains(tables, table) {
			tables = append(tables, table)
		}
	}
	for _, c := range s.chains {
		if d := c.differs(have[c.table], printed[s.key(c)]); d != "" {
			add(c.table, d)
		}
		for _, j := range c.from {
			switch c.place(have[c.table], j) {
			case absent:
				add(c.table, j.base+" does not jump to "+c.name)
			case twice:
				add(c.table, j.base+" jumps to "+c.name+" twice")
			case tooLate:
				add(c.table, j.base+" jumps to "+c.name+" after another program's rules for neardns's addresses")
			}
		}
	}
	return items, tables
}

// missing describes the chains, rules and jumps of the script that are absent.
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

// remove is the input of iptables-restore --noflush that removes neardns's chains from a table, or "" if there are none.
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

// trialSuffix marks the chains of a trial.
const trialSuffix = "-TRY"

// asTrial is the script with other names for its chains, and without jumps into them.
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

// discard is the input of iptables-restore that deletes tables' chains, which must refer to one another only.
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
