package nft

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
)

// This file exports what the tests in package nft_test need.

// Constants for tests of the kernel's behaviour.
const (
	DrainTime   = drainTime
	LeaseBound  = leaseBound
	AskedBound  = askedBound
	AskedMemory = askedMemory
)

// Listing prints a description as `nft -s list table inet neardns` prints the table made from it: same objects, same
// order, same words. Elements are sorted in both texts (see normalize in render_test.go).
func Listing(rs steer.Ruleset) string {
	t := render(rs)
	var s strings.Builder
	fmt.Fprintf(&s, "table inet %s {\n", steer.TableName)
	var blocks []string
	for _, name := range t.counters {
		blocks = append(blocks, fmt.Sprintf("\tcounter %s {\n\t}\n", name))
	}
	for _, st := range t.sets {
		blocks = append(blocks, st.listing())
	}
	for _, c := range t.chains {
		blocks = append(blocks, c.listing())
	}
	s.WriteString(strings.Join(blocks, "\n"))
	s.WriteString("}\n")
	return s.String()
}

func (s set) listing() string {
	var b strings.Builder
	kind, types := "set", make([]string, 0, len(s.key))
	for _, k := range s.key {
		types = append(types, k.Name)
	}
	key := strings.Join(types, " . ")
	if s.value != nil {
		kind, key = "map", key+" : "+s.value.Name
	}
	fmt.Fprintf(&b, "\t%s %s {\n\t\ttype %s\n", kind, s.name, key)
	if s.size > 0 {
		fmt.Fprintf(&b, "\t\tsize %d\n", s.size)
	}
	if s.contents == dynamic {
		b.WriteString("\t\tflags dynamic,timeout\n")
	}
	if s.timeout > 0 {
		fmt.Fprintf(&b, "\t\ttimeout %s\n", nftDuration(s.timeout))
	}
	if s.sweep > 0 {
		fmt.Fprintf(&b, "\t\tgc-interval %s\n", nftDuration(s.sweep))
	}
	if len(s.elements) > 0 {
		var texts []string
		for _, e := range s.elements {
			text := e.text
			if s.key[0].Name == "ifname" {
				text = fmt.Sprintf("%q", text)
			}
			texts = append(texts, text)
		}
		slices.Sort(texts)
		fmt.Fprintf(&b, "\t\telements = { %s }\n", strings.Join(texts, ", "))
	}
	b.WriteString("\t}\n")
	return b.String()
}

func (c chain) listing() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\tchain %s {\n", c.name)
	if h := c.hook; h != nil {
		hooks := map[uint32]string{unix.NF_INET_PRE_ROUTING: "prerouting", unix.NF_INET_LOCAL_IN: "input", unix.NF_INET_LOCAL_OUT: "output", unix.NF_INET_POST_ROUTING: "postrouting"}
		priority := fmt.Sprint(h.priority)
		if named, ok := map[int32]string{prioRaw: "raw", prioBeforeRaw: "raw - 1", prioSrcNAT: "srcnat"}[h.priority]; ok {
			priority = named
		}
		fmt.Fprintf(&b, "\t\ttype %s hook %s priority %s; policy accept;\n", h.kind, hooks[h.num], priority)
	}
	for _, r := range c.rules {
		fmt.Fprintf(&b, "\t\t%s\n", r.text())
	}
	b.WriteString("\t}\n")
	return b.String()
}

// Digests calls each with the digest and the text of every rule.
func Digests(rs steer.Ruleset, each func(digest, text string)) error {
	for _, c := range render(rs).chains {
		for _, r := range c.rules {
			sum, err := r.digest()
			if err != nil {
				return err
			}
			each(sum, r.text())
		}
	}
	return nil
}

// RuleMessages are the payloads of the messages that add a description's rules.
func RuleMessages(rs steer.Ruleset) [][]byte {
	var b batch
	for _, c := range render(rs).chains {
		for _, r := range c.rules {
			b.addRule(c.name, r)
		}
	}
	var out [][]byte
	for _, m := range b.messages {
		out = append(out, m.Data)
	}
	return out
}

// ReadRule is readRule.
func ReadRule(data []byte) (chain, userData string, err error) { return readRule(data) }

// Touches is changesTable for the messages of one read.
func Touches(msgs []netlink.Message) bool { return changesTable(msgs) }

// TouchesUs is changesTable for one message.
func TouchesUs(data []byte) bool { return changesTable([]netlink.Message{{Data: data}}) }
