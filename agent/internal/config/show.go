package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
)

// Show returns the configuration in effect as the text of a NodeConfig file, with comments about values that are not from the file. It does
// not use go-yaml, which writes some texts (with a tab, a carriage return or a leading space) so that they read back differently.
func (n *Node) Show() string {
	var b strings.Builder
	var open []string // groups that we are in
	for _, f := range table() {
		value := f.show(n)
		if value == nil {
			continue
		}
		steps := strings.Split(f.name, ".")
		into, key := steps[:len(steps)-1], steps[len(steps)-1]
		for i, group := range into {
			if i >= len(open) || open[i] != group {
				open = slices.Clone(into[:i+1])
				fmt.Fprintf(&b, "%s%s:\n", indent(i), group)
			}
		}
		open = open[:len(into)]
		fmt.Fprintf(&b, "%s%s:%s", indent(len(into)), key, n.value(f.name, value, len(into)))
	}
	return b.String() + n.showPlatform()
}

// showPlatform returns a comment about detected facts for which NodeConfig has no key: the folders that the installer edits, and
// kube-dns's ConfigMap.
func (n *Node) showPlatform() string {
	p, how := n.platform, "found by "+n.platformBy
	if n.platformBy == "" {
		how = "the default, because no other platform's files are visible here"
	}
	return fmt.Sprintf("# Platform: %s, %s. CNI plugins: %s. Network configurations: %s.\n"+
		"# kube-dns's Corefile: ConfigMap %s in %s.\n", p.Name, how, p.CNIBin, p.CNIConf, p.Corefile, p.Namespace)
}

func indent(depth int) string { return strings.Repeat("  ", depth) }

// value returns the text after "key:", which may have several lines.
func (n *Node) value(name string, value any, depth int) string {
	comment := n.comment(name)
	switch v := value.(type) {
	case []yaml.MapSlice: // redirects
		s := comment + "\n"
		for _, m := range v {
			s += indent(depth) + "- " + flow(m) + "\n"
		}
		return s
	case yaml.MapSlice:
		s := comment + "\n"
		for _, item := range v {
			s += indent(depth+1) + flow(item.Key) + ":" + block(item.Value, depth+2) + "\n"
		}
		return s
	}
	return " " + flow(value) + comment + "\n"
}

// Remark sets a text that Show adds to its comment for a field.
func (n *Node) Remark(field, text string) {
	if n.remarks == nil {
		n.remarks = map[string]string{}
	}
	n.remarks[field] = text
}

func (n *Node) comment(name string) string {
	comment := n.source(name)
	if more := n.remarks[name]; more != "" {
		comment = strings.TrimPrefix(comment+": "+more, ": ")
	}
	if comment == "" {
		return ""
	}
	return "  # " + strings.ReplaceAll(comment, "\n", "; ")
}

func (n *Node) source(name string) string {
	switch {
	case name == "apiVersion", name == "kind":
		return ""
	case n.origin[name] != "":
		return n.origin[name]
	case !n.IsSet(name):
		return "default"
	}
	return ""
}

// block returns a text that ends with a newline as a literal block if that reads back as the same text, and any other value in one line.
func block(value any, depth int) string {
	s, ok := value.(string)
	if !ok {
		return " " + flow(value)
	}
	if !strings.HasSuffix(s, "\n") || !plainLines(s) {
		return " " + strconv.Quote(s) // ${NAME} is not replaced in snippets, so it needs no escape
	}
	lines := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
	return " |\n" + indent(depth) + strings.Join(lines, "\n"+indent(depth))
}

// plainLines reports whether a literal block reads back as s. If YAML would trim s, or take its spaces for indentation, s must be quoted.
func plainLines(s string) bool {
	for line := range strings.SplitSeq(strings.TrimSuffix(s, "\n"), "\n") {
		if line == "" || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfeff || r == 0x85 }) {
			return false
		}
	}
	return !strings.HasPrefix(s, " ")
}

// flow renders a value in one line.
func flow(value any) string {
	switch v := value.(type) {
	case string:
		return scalar(v)
	case []string:
		return inside("[]", v, scalar)
	case []any:
		return inside("[]", v, flow)
	case []yaml.MapSlice:
		return inside("[]", v, func(m yaml.MapSlice) string { return flow(m) })
	case yaml.MapSlice:
		return inside("{}", v, func(item yaml.MapItem) string { return flow(item.Key) + ": " + flow(item.Value) })
	}
	return fmt.Sprint(value)
}

// inside renders values between two brackets.
func inside[T any](brackets string, values []T, show func(T) string) string {
	return brackets[:1] + strings.Join(each(values, show), ", ") + brackets[1:]
}

// scalar returns text as a YAML value, quoted unless every YAML reader reads it as text. Go's escape sequences are valid in YAML. It
// escapes ${ so that the file reads back as the same text.
func scalar(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789./-_"
	letter := s != "" && strings.Trim(s, plain) == "" && strings.ContainsAny(s[:1],
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ/0123456789")
	if letter && !ambiguous(s) {
		return s
	}
	return strconv.Quote(strings.ReplaceAll(s, "${", "$${"))
}

// ambiguous reports whether some YAML reader takes text for a number, a boolean or null.
func ambiguous(s string) bool {
	switch strings.ToLower(s) {
	case "true", "false", "yes", "no", "on", "off", "null", "y", "n":
		return true
	}
	// Texts such as 150ms and IPv4 addresses are no numbers in YAML; texts that are closer to a number are quoted.
	return strings.Trim(s, "0123456789._-xXeEoObBaAcCdDfF") == "" && strings.Count(s, ".") != 3
}

// Diff returns the fields in which two configurations differ: those that a running agent can change, and those that need a restart.
func Diff(before, after *Node) (reloadable, restart []string) {
	for _, f := range table() {
		same := flow(f.show(before)) == flow(f.show(after))
		if f.name == "corefile" {
			same = same && before.CorefileText == after.CorefileText
		}
		switch {
		case same:
		case f.reload:
			reloadable = append(reloadable, f.name)
		default:
			restart = append(restart, f.name)
		}
	}
	return reloadable, restart
}
