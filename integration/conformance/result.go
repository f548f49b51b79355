package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// On is what is on the node while the suite runs.
type On string

// The three of them, in the table's order.
const (
	Bare    On = "bare"    // nothing of ours
	Neardns On = "neardns" // as users apply it
	Killed  On = "killed"  // the same, and the agent is killed again and again
)

// Everything lists all of On, in the table's order.
func Everything() []On { return []On{Bare, Neardns, Killed} }

// Proxies lists the modes of kube-proxy, in the table's order.
func Proxies() []string { return []string{"iptables", "nftables"} }

// Column is one run of the suite.
type Column struct {
	Proxy     string `json:"proxy"` // kube-proxy's mode
	On        On     `json:"on"`
	Kills     int    `json:"kills"`     // of the agent, in the run
	Questions uint64 `json:"questions"` // of pods, that the agent answered in the run
	Seconds   int    `json:"seconds"`   // that the run took
	Tests     []Test `json:"tests"`
}

// Result is the last run of each kind, on one release of Kubernetes.
type Result struct {
	Kubernetes string   `json:"kubernetes"`
	Columns    []Column `json:"columns"`
}

// Parse reads a result that String wrote.
func Parse(data []byte) (Result, error) {
	var r Result
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Result{}, fmt.Errorf("read the result of conformance tests: %w", err)
	}
	return r, nil
}

// String is the result as JSON, to be committed.
func (r Result) String() string {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		panic(err) // nothing in it that JSON lacks
	}
	return string(text) + "\n"
}

// With returns the result with a run in the place of the last one of its kind. Runs on another release of Kubernetes are dropped.
func (r Result) With(kubernetes string, c Column) Result {
	out := Result{Kubernetes: kubernetes}
	if r.Kubernetes == kubernetes {
		out.Columns = slices.DeleteFunc(slices.Clone(r.Columns), func(old Column) bool { return old.Proxy == c.Proxy && old.On == c.On })
	}
	out.Columns = append(out.Columns, c)
	slices.SortFunc(out.Columns, func(a, b Column) int {
		if a.Proxy != b.Proxy {
			return slices.Index(Proxies(), a.Proxy) - slices.Index(Proxies(), b.Proxy)
		}
		return slices.Index(Everything(), a.On) - slices.Index(Everything(), b.On)
	})
	return out
}

// Faults names each test that failed, each that passes on the bare node and does not with neardns, and each run with neardns that shows
// nothing: without a bare run to compare with, an answered query or, where the agent is to be killed, a kill.
func (r Result) Faults() []string {
	var out []string
	for _, c := range r.Columns {
		here := c.Proxy + ", " + string(c.On) + ": "
		for _, t := range c.Tests {
			if t.Outcome == Failed {
				out = append(out, here+t.Name+" failed: "+t.Reason)
			}
		}
		bare, ok := r.column(c.Proxy, Bare)
		switch {
		case c.On == Bare:
		case !ok:
			out = append(out, here+"there is no run on the bare node to compare with")
		case c.Questions == 0:
			out = append(out, here+"the agent answered no question, so that the run shows nothing of it")
		case c.On == Killed && c.Kills == 0:
			out = append(out, here+"the agent was not killed once")
		default:
			for _, t := range bare.Tests {
				now, ran := c.test(t.Name)
				if t.Outcome == Passed && now.Outcome != Failed && now.Outcome != Passed {
					out = append(out, here+t.Name+" passes on the bare node, and "+map[bool]string{true: "is skipped here: " + now.Reason, false: "did not run here"}[ran])
				}
			}
		}
	}
	return out
}

func (r Result) column(proxy string, on On) (Column, bool) {
	for _, c := range r.Columns {
		if c.Proxy == proxy && c.On == on {
			return c, true
		}
	}
	return Column{}, false
}

func (c Column) test(name string) (Test, bool) {
	for _, t := range c.Tests {
		if t.Name == name {
			return t, true
		}
	}
	return Test{}, false
}

// Page returns the document with the table, and what it has to say of tests that did not pass, between its two marks.
func (r Result) Page(document string) (string, error) {
	const begin, end = "<!-- conformance -->\n", "<!-- end of conformance -->"
	head, rest, ok := strings.Cut(document, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", fmt.Errorf("the document has no place for the table: put the lines %q and %q into it", strings.TrimSpace(begin), end)
	}
	return head + begin + r.draw() + end + tail, nil
}

func (r Result) draw() string {
	var out strings.Builder
	row := func(first string, cell func(Column) string) {
		_, _ = fmt.Fprintf(&out, "| %s |", strings.ReplaceAll(first, "|", `\|`))
		for _, c := range r.Columns {
			_, _ = fmt.Fprintf(&out, " %s |", cell(c))
		}
		out.WriteString("\n")
	}
	titles := map[On]string{Bare: "bare node", Neardns: "neardns", Killed: "agent killed"}
	row("test of Kubernetes "+r.Kubernetes, func(c Column) string { return c.Proxy + ": " + titles[c.On] })
	row("---", func(Column) string { return "---" })
	var names []string
	for _, c := range r.Columns {
		for _, t := range c.Tests {
			names = append(names, t.Name)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		row(name, func(c Column) string {
			switch t, ran := c.test(name); {
			case !ran:
				return "–"
			case t.Outcome == Failed:
				return "**failed**"
			default:
				return string(t.Outcome)
			}
		})
	}
	row("tests that passed", func(c Column) string {
		n := 0
		for _, t := range c.Tests {
			if t.Outcome == Passed {
				n++
			}
		}
		return fmt.Sprintf("%d of %d", n, len(c.Tests))
	})
	with := func(c Column, text string) string {
		if c.On == Bare {
			return "–"
		}
		return text
	}
	row("queries of pods that the agent answered", func(c Column) string { return with(c, fmt.Sprint(c.Questions)) })
	row("times that the agent was killed", func(c Column) string { return with(c, fmt.Sprint(c.Kills)) })
	row("minutes", func(c Column) string { return fmt.Sprintf("%.1f", float64(c.Seconds)/60) })
	for _, line := range r.unpassed() {
		out.WriteString("\n" + line + "\n")
	}
	return out.String()
}

// unpassed lists why each test did not pass, once for all columns with the same reason.
func (r Result) unpassed() []string {
	var out []string
	where := map[string][]string{}
	for _, c := range r.Columns {
		for _, t := range c.Tests {
			if t.Outcome == Passed {
				continue
			}
			line := fmt.Sprintf("*%s* %s", t.Name, map[Outcome]string{Skipped: "skips itself", Failed: "fails"}[t.Outcome])
			if t.Reason != "" {
				line += ": " + strings.TrimSuffix(t.Reason, ".")
			}
			if where[line] == nil {
				out = append(out, line)
			}
			where[line] = append(where[line], c.Proxy+", "+string(c.On))
		}
	}
	for i, line := range out {
		if in := where[line]; len(in) < len(r.Columns) {
			out[i] += " (" + strings.Join(in, "; ") + ")"
		}
		out[i] += "."
	}
	slices.Sort(out)
	return out
}
