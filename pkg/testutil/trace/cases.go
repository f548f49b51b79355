package trace

import (
	_ "embed" // the list
	"fmt"
	"slices"
	"strings"
)

//go:embed cases.md
var list string

// Case is one row of the list, in its words.
type Case struct {
	Line                                           int
	Arrangement                                    Arrangement
	Place, From, Packet, To, Lease, Socket, Before string
	// Nftables and Iptables are where the packet goes. Iptables is "=" if it goes to the same place, and "-" if there is no such case.
	// Why has the reason if iptables differs, or lacks a case of an arrangement that it has.
	Nftables, Iptables, Why string
}

func (c Case) String() string {
	words := fmt.Sprintf("cases.md:%d: %s, %s, %s from %s to %s", c.Line, c.Arrangement.Name, c.Place, c.Packet, c.From, c.To)
	for _, more := range []struct{ what, word string }{{"lease", c.Lease}, {"socket", c.Socket}, {"before", c.Before}} {
		if more.word != "" {
			words += ", " + more.what + " " + more.word
		}
	}
	return words
}

// columns are the column titles of each table in the list of cases.
var columns = []string{"place", "packet", "from", "to", "lease", "socket", "before", "nftables", "iptables", "why"}

// Cases returns the cases in cases.md.
func Cases() ([]Case, error) { return parse(list) }

// parse reads a list: a heading of the second level names an arrangement, and a table under it has the cases.
func parse(text string) ([]Case, error) {
	var out []Case
	var in *Arrangement
	seen := map[string]int{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "## "); ok {
			at := slices.IndexFunc(Arrangements(), func(a Arrangement) bool { return a.Name == name })
			if at < 0 {
				return nil, fmt.Errorf("cases.md:%d: no arrangement is called %q", number, name)
			}
			in = &Arrangements()[at]
		}
		if !strings.HasPrefix(line, "|") || in == nil || strings.HasPrefix(line, "| ---") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(strings.ReplaceAll(line, "`", "")), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) != len(columns) {
			return nil, fmt.Errorf("cases.md:%d: %d columns, not %d", number, len(cells), len(columns))
		}
		if slices.Equal(cells, columns) {
			continue
		}
		c := Case{number, *in, cells[0], cells[2], cells[1], cells[3], cells[4], cells[5], cells[6], cells[7], cells[8], cells[9]}
		if err := c.check(); err != nil {
			return nil, fmt.Errorf("%s: %w", c, err)
		}
		key := in.Name + strings.Join(cells[:7], "|")
		if before, ok := seen[key]; ok {
			return nil, fmt.Errorf("%s: the same case stands in line %d", c, before)
		}
		seen[key] = number
		out = append(out, c)
	}
	return out, nil
}

// check returns an error if the columns nftables, iptables and why do not fit together, for example if a difference has no reason.
func (c Case) check() error {
	differs := c.Iptables != "=" && c.Iptables != "-"
	switch {
	case c.Nftables == "" || c.Iptables == "":
		return fmt.Errorf("no result; write = where iptables does as nftables, - where it has no such case")
	case c.Iptables == "-" && c.Arrangement.Iptables && c.Why == "":
		return fmt.Errorf("no reason why iptables has no such case")
	case c.Iptables != "-" && !c.Arrangement.Iptables:
		return fmt.Errorf("iptables has no such arrangement: write -")
	case differs && c.Why == "":
		return fmt.Errorf("no reason why iptables differs")
	case differs && c.Iptables == plain(c.Nftables):
		return fmt.Errorf("iptables does the same: write =")
	}
	return nil
}

// plain returns a result without the evidence in brackets, which only nftables has.
func plain(result string) string {
	before, rest, found := strings.Cut(result, " [")
	if !found {
		return result
	}
	_, after, _ := strings.Cut(rest, "]")
	return before + after
}

// Want returns the expected result of a case for a back end, and whether the case applies to it.
func (c Case) Want(backend string) (string, bool) {
	switch {
	case backend == "nftables":
		return c.Nftables, true
	case c.Iptables == "=":
		return plain(c.Nftables), true
	}
	return c.Iptables, c.Iptables != "-"
}
