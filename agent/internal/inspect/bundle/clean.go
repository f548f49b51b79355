package bundle

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Out stands where something was taken out.
const Out = "(left out)"

var (
	// secretWord is a word that a secret stands behind, on the same line or in the block below. "key" alone is one as the name of a value.
	secretWord = regexp.MustCompile(`(?i)((?:secret|password|passwd|passphrase|token|credential|tsig|bearer|authorization)\w*|` +
		`(private|api|access|signing)[-_ ]?key|key-?data|"key"\s*:|\bkey\s*[:=])`)
	// inURL is the user's part of a URL.
	inURL = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^/@\s"']+@`)
	// pem begins a block of keys or certificates.
	pem    = regexp.MustCompile(`-----BEGIN [A-Z0-9 ]+-----`)
	pemEnd = regexp.MustCompile(`-----END [A-Z0-9 ]+-----`)
	// word is what may be a key by its looks: base64, base64url, or parts of a JWT.
	word = regexp.MustCompile(`[A-Za-z0-9+/_.=-]{20,}`)
)

// Secrets returns text without what is or looks like a secret, and says by line what it took out: PEM blocks, what stands behind words
// such as secret, token or tsig, users of URLs, and long words of mixed letters and digits.
func Secrets(text string) (clean string, out []string) {
	var b strings.Builder
	at := map[string][]int{}
	said := func(i int, what string) { at[what] = append(at[what], i+1) }
	inPEM := false
	block := -1 // the indentation of a line that opened a block by a secret word; -1: none
	for i, l := range strings.SplitAfter(text, "\n") {
		l, end := strings.TrimSuffix(l, "\n"), l[len(strings.TrimSuffix(l, "\n")):]
		indent := len(l) - len(strings.TrimLeft(l, " \t"))
		bare := strings.TrimSpace(l)
		switch {
		case inPEM:
			inPEM = !pemEnd.MatchString(l)
			continue
		case pem.MatchString(l):
			inPEM = !pemEnd.MatchString(l)
			said(i, "a PEM block")
			b.WriteString(l[:pem.FindStringIndex(l)[0]] + Out + end)
			continue
		case block >= 0 && bare != "" && indent > block:
			continue
		case block >= 0 && bare != "":
			block = -1
		}
		if found := secretWord.FindStringIndex(l); found != nil {
			rest := strings.TrimLeft(l[found[1]:], ` "':=`)
			switch {
			case strings.Trim(rest, ` "',}])`) == "" || rest == "|" || rest == ">" || rest == "|-" || rest == "{" || rest == "[":
				block = indent // what follows is the value, if anything does
				said(i, "what stands below a word for a secret")
			default:
				said(i, "what stands behind a word for a secret")
				l = l[:found[1]] + " " + Out
			}
		}
		l = inURL.ReplaceAllStringFunc(l, func(found string) string {
			said(i, "a URL's user")
			return inURL.FindStringSubmatch(found)[1] + Out + "@"
		})
		l = word.ReplaceAllStringFunc(l, func(found string) string {
			if !keyLike(found) {
				return found
			}
			said(i, "a word that looks like a key")
			return Out
		})
		b.WriteString(l + end)
	}
	for _, what := range slices.Sorted(maps.Keys(at)) {
		out = append(out, what+" in "+inLines(slices.Compact(at[what])))
	}
	return b.String(), out
}

// inLines names some of the lines.
func inLines(lines []int) string {
	const most = 5
	if len(lines) == 1 {
		return fmt.Sprintf("line %d", lines[0])
	}
	words := make([]string, 0, most)
	for _, l := range lines[:min(most, len(lines))] {
		words = append(words, strconv.Itoa(l))
	}
	text := "lines " + strings.Join(words, ", ")
	if more := len(lines) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// keyLike tells a key by its looks from a path, a name, a version or an ID in hexadecimal: it mixes capitals, small letters and digits without
// the order that words have, or ends as base64 does.
func keyLike(s string) bool {
	bare := strings.TrimRight(s, "=")
	var upper, lower, digit, mark, changes int
	before := ' '
	for _, r := range bare {
		class := 'x'
		switch {
		case unicode.IsUpper(r):
			upper++
			class = 'A'
		case unicode.IsLower(r):
			lower++
			class = 'a'
		case unicode.IsDigit(r):
			digit++
			class = '0'
		default:
			mark++
		}
		if class != before && class != 'x' {
			changes++
		}
		before = class
	}
	if mark*8 > len(bare) {
		return false
	}
	return bare != s && upper+digit > 0 || upper > 0 && lower > 0 && digit > 1 && changes*3 >= len(bare)
}

// Questions returns a log without the lines that tell what pods ask for: the agent's own of `log: {queries}`, and those of CoreDNS's plugins,
// which name what they failed at.
func Questions(text string) (clean string, out []string) {
	var b strings.Builder
	dropped := 0
	for l := range strings.Lines(text) {
		if namesQuestion(l) {
			dropped++
			continue
		}
		b.WriteString(l)
	}
	if dropped > 0 {
		out = append(out, fmt.Sprintf("%d of its lines, which name what pods asked for", dropped))
	}
	return b.String(), out
}

func namesQuestion(line string) bool {
	for _, mark := range []string{`msg=query `, `"msg":"query"`} {
		if strings.Contains(line, mark) {
			return true
		}
	}
	ofCoreDNS := strings.Contains(line, `msg=coredns `) || strings.Contains(line, `"msg":"coredns"`)
	return ofCoreDNS && (strings.Contains(line, ` plugin=`) || strings.Contains(line, `"plugin":`))
}
