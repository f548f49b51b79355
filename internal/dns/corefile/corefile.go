package corefile

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/parse"
	"github.com/coredns/coredns/plugin/pkg/transport"
)

// taken returns the directives that the agent removes from an operator's Corefile, and why. The rendered text has a note about them, except
// for bind if Config.Binds is set. So an operator can use the Corefile of a NodeLocal DNSCache unchanged. A snippet may not have these
// directives.
func taken() map[string]string {
	return map[string]string{
		dirBind:      "the agent listens on its own addresses",
		dirMetrics:   "the agent adds it",
		"prometheus": "CoreDNS's metrics are served at the agent's own address",
		"health":     "the agent serves /healthz",
		"ready":      "the agent serves /readyz",
		"reload":     "the agent reloads when its configuration changes",
		"loop":       "it ends the process; the agent detects loops by itself",
		"timeouts":   "the agent's connections have bounds of their own",
		"trace":      "this program has no tracing",
		"searchpath": "it was taken out: write podDNS.options: [\"ndots:2\"] in NodeConfig",
	}
}

// snippet parses the directives for one zone, which replace the rendered directives of the same names.
func snippet(zone, text string) (map[string][]string, error) {
	field := fmt.Sprintf("snippets[%q]", zone)
	if !balanced(text) {
		return nil, fmt.Errorf("%s: braces do not match", field)
	}
	// The parser reads only whole files. With the opening brace on the snippet's first line, the line numbers in errors are the
	// snippet's.
	blocks, err := parseCorefile(field, "zone { "+text+"\n}\n")
	if err != nil {
		return nil, err
	}
	if len(blocks) != 1 || len(blocks[0].Keys) != 1 {
		return nil, fmt.Errorf("%s: directives only, without a server block", field)
	}
	for name := range blocks[0].Tokens {
		if reason, ok := taken()[name]; ok {
			return nil, fmt.Errorf("%s: %s cannot stand here: %s", field, name, reason)
		}
	}
	return printBlock(field, blocks[0])
}

// balanced reports whether the braces in text match, so that a snippet cannot end the server block that it is in. The parser itself
// accepts a missing brace at the end.
func balanced(text string) bool {
	depth := 0
	for d := caddyfile.NewDispenser("", strings.NewReader(text)); d.Next(); {
		switch d.Val() {
		case "{":
			depth++
		case "}":
			depth--
		}
		if depth < 0 {
			return false
		}
	}
	return depth == 0
}

// override makes server blocks from the operator's Corefile, without the directives that the agent removes; notes lists these, and changes
// of bufsize. The Corefile is parsed and printed again, so that imports, variables and comments cannot hide anything.
func override(cfg Config) (blocks []*block, notes []string, err error) {
	field := cmp.Or(cfg.OverrideName, "corefile")
	parsed, err := parseCorefile(field, cfg.Override)
	if err != nil {
		return nil, nil, err
	}
	if len(parsed) == 0 {
		return nil, nil, errors.New(field + ": no server block; write at least one, such as \". { forward . 192.0.2.1 }\"")
	}
	gone := map[string]bool{}
	for _, sb := range parsed {
		zones, err := blockZones(sb.Keys, cfg.Port)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", field, err)
		}
		var binds []netip.Addr
		if cfg.Binds != "" {
			if binds, err = blockBinds(sb.Tokens[dirBind], cfg); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", field, err)
			}
			if checkBufsize(sb.Tokens[dirBufsize]) != nil {
				delete(sb.Tokens, dirBufsize) // the agent's bufsize is set below
				notes = append(notes, fmt.Sprintf("Made smaller: bufsize (answers over UDP have %d bytes at most).", bufferSize))
			}
		}
		for name := range taken() {
			if _, ok := sb.Tokens[name]; ok {
				gone[name] = gone[name] || name != dirBind || cfg.Binds == ""
				delete(sb.Tokens, name)
			}
		}
		if err := checkBufsize(sb.Tokens[dirBufsize]); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", field, err)
		}
		lines, err := printBlock(field, sb)
		if err != nil {
			return nil, nil, err
		}
		b := &block{zones: zones, lines: lines}
		if len(binds) > 0 {
			b.set(dirBind, bindLine(binds))
		}
		if cfg.Binds != "" && lines[dirForward] != nil && lines[dirCancel] == nil {
			b.set(dirCancel, missLimit)
		}
		if lines[dirBufsize] == nil {
			b.set(dirBufsize, fmt.Sprintf("%s %d", dirBufsize, bufferSize))
		}
		b.set(dirMetrics, dirMetrics)
		if lines[dirLimit] == nil {
			b.set(dirLimit, limitLine(cfg))
		}
		blocks = append(blocks, b)
	}
	for name, reason := range taken() {
		if gone[name] {
			notes = append(notes, fmt.Sprintf("Taken out: %s (%s).", name, reason))
		}
	}
	slices.Sort(notes)
	return blocks, slices.Compact(notes), nil
}

// Token is a word of a Corefile with its file and line.
type Token = caddyfile.Token

// Block is one server block of a Corefile.
type Block struct {
	Zones      []string                     // in lower case, without the final dot; the root is "."
	Directives map[string][]caddyfile.Token // the words of each directive; the first is its name
}

// Blocks parses a Corefile for port 53, and sets up no plugin. name is the Corefile's name in errors.
func Blocks(name, text string) ([]Block, error) {
	parsed, err := parseCorefile(name, text)
	if err != nil {
		return nil, err
	}
	var out []Block
	for _, sb := range parsed {
		zones, err := blockZones(sb.Keys, 53)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, Block{zones, sb.Tokens})
	}
	return out, nil
}

func parseCorefile(name, text string) ([]caddyfile.ServerBlock, error) {
	valid := slices.Sorted(slices.Values(append(Directives(), dirMetrics)))
	blocks, err := caddyfile.Parse(name, strings.NewReader(text), valid)
	if err != nil {
		return nil, fmt.Errorf("%w (known directives: %s)", err, strings.Join(valid, ", "))
	}
	return blocks, nil
}

// blockZones returns the zones of a server block's keys. If a key has a port, it must be the agent's.
func blockZones(keys []string, port uint16) ([]string, error) {
	var zones []string
	for _, key := range keys {
		scheme, rest := parse.Transport(key)
		if scheme != transport.DNS {
			return nil, fmt.Errorf("server block %s: the agent serves plain DNS only: take out %s://", key, scheme)
		}
		hosts, p, err := plugin.SplitHostPort(rest)
		if err != nil {
			return nil, fmt.Errorf("server block %s: %w", key, err)
		}
		if p != "" && p != strconv.Itoa(int(port)) {
			return nil, fmt.Errorf("server block %s: the agent serves port %d: take out the port", key, port)
		}
		for _, h := range hosts {
			z, err := parseZone(h)
			if err != nil {
				return nil, fmt.Errorf("server block %s: %w", key, err)
			}
			if z == probeZone || strings.HasSuffix(z, "."+probeZone) {
				return nil, fmt.Errorf("server block %s: this zone is the agent's prober's: take it out", key)
			}
			zones = append(zones, z)
		}
	}
	return zones, nil
}

// checkBufsize returns an error if an operator's bufsize exceeds the maximum size of UDP answers to pods.
func checkBufsize(tokens []caddyfile.Token) error {
	if len(tokens) < 2 { // without a number, CoreDNS takes bufferSize
		return nil
	}
	if n, _ := strconv.Atoi(tokens[1].Text); n > bufferSize { // CoreDNS refuses a word
		return fmt.Errorf("line %d: bufsize %d: answers over UDP may have %d bytes at most", tokens[0].Line, n, bufferSize)
	}
	return nil
}

// printBlock returns the directives of a server block as lines of a Corefile. It returns an error if a directive would be read back
// differently.
func printBlock(field string, sb caddyfile.ServerBlock) (map[string][]string, error) {
	lines := make(map[string][]string, len(sb.Tokens))
	for name, tokens := range sb.Tokens {
		lines[name] = printTokens(tokens)
		text := "zone {\n" + strings.Join(lines[name], "\n") + "\n}\n"
		again, err := caddyfile.Parse(field, strings.NewReader(text), nil)
		if err != nil || len(again) != 1 || !sameTokens(tokens, again[0].Tokens[name]) {
			// For example, a word in quotes cannot have a backslash before a quote.
			return nil, fmt.Errorf("%s: line %d: %s: cannot be carried over: write it without backslashes, quotes and {$ within one word",
				field, tokens[0].Line, name)
		}
	}
	return lines, nil
}

func sameTokens(a, b []caddyfile.Token) bool {
	return slices.EqualFunc(a, b, func(x, y caddyfile.Token) bool { return x.Text == y.Text })
}

func printTokens(tokens []caddyfile.Token) []string {
	var lines []string
	var line strings.Builder
	depth := 0
	for i, t := range tokens {
		if i > 0 && startsLine(tokens[i-1], t) {
			lines = append(lines, line.String())
			line.Reset()
		}
		if t.Text == "}" {
			depth--
		}
		if line.Len() == 0 {
			line.WriteString(strings.Repeat("    ", max(depth, 0)))
		} else {
			line.WriteByte(' ')
		}
		if t.Text == "{" {
			depth++
		}
		line.WriteString(quote(t.Text))
	}
	return append(lines, line.String())
}

func startsLine(before, t caddyfile.Token) bool {
	return before.File != t.File || before.Line+strings.Count(before.Text, "\n") < t.Line
}

// quote returns a word so that the lexer reads it back: in quotes if it is empty, contains white space or #, or begins with a quote.
func quote(s string) string {
	if s != "" && s[0] != '"' && !strings.Contains(s, "#") && !strings.ContainsFunc(s, unicode.IsSpace) {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `\"`) + `"`
}
