package bundle

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// leftOut replaces the text that was left out.
const leftOut = "(left out)"

var (
	// secretWord matches a word that precedes a secret in its line, or that begins an indented block with a secret. "key" alone matches
	// only as the name of a value.
	secretWord = regexp.MustCompile(`(?i)((?:secret|password|passwd|passphrase|token|credential|tsig|bearer|authorization)\w*|` +
		`(private|api|access|signing)[-_ ]?key|key-?data|"key"\s*:|\bkey\s*[:=])`)
	// yamlBlock matches what follows a YAML key whose value is the indented lines below it.
	yamlBlock = regexp.MustCompile(`^(!!\w+ +)?[|>][-+0-9]*\s*(\s#.*)?$`)
	// inURL matches the user and password in a URL.
	inURL = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^/@\s"']+@`)
	// pem matches the first line of a PEM block.
	pem    = regexp.MustCompile(`-----BEGIN [A-Z0-9 ]+-----`)
	pemEnd = regexp.MustCompile(`-----END [A-Z0-9 ]+-----`)
	// word matches text that may be a key by its form: base64, base64url, or parts of a JWT.
	word = regexp.MustCompile(`[A-Za-z0-9+/_.=-]{20,}`)
)

// withoutSecrets returns text without what looks like a secret: PEM blocks, text after words such as secret, token or tsig, users in URLs,
// and long words of mixed letters and digits. out lists what it left out, and how often.
func withoutSecrets(text string) (clean string, out []string) {
	var b strings.Builder
	counts := map[string]int{}
	note := func(what string) { counts[what]++ }
	inPEM := false
	block := -1 // indentation of the line with a secretWord whose block is being left out; -1: none
	for l := range strings.SplitAfterSeq(text, "\n") {
		l, end := strings.TrimSuffix(l, "\n"), l[len(strings.TrimSuffix(l, "\n")):]
		indent := len(l) - len(strings.TrimLeft(l, " \t"))
		bare := strings.TrimSpace(l)
		switch {
		case inPEM:
			inPEM = !pemEnd.MatchString(l)
			continue
		case pem.MatchString(l):
			inPEM = !pemEnd.MatchString(l)
			note("a PEM block")
			b.WriteString(l[:pem.FindStringIndex(l)[0]] + leftOut + end)
			continue
		case block >= 0 && bare != "" && indent > block:
			continue
		case block >= 0 && bare != "":
			block = -1
		}
		if found := secretWord.FindStringIndex(l); found != nil {
			rest := strings.TrimLeft(l[found[1]:], ` "':=`)
			switch {
			case strings.Trim(rest, ` "',}])`) == "" || yamlBlock.MatchString(rest) || rest == "{" || rest == "[":
				block = indent // the value is in the lines below, if there is one
				note("what is below a word for a secret")
			default:
				note("what follows a word for a secret")
				l = l[:found[1]] + " " + leftOut
			}
		}
		l = inURL.ReplaceAllStringFunc(l, func(found string) string {
			note("a URL's user")
			return inURL.FindStringSubmatch(found)[1] + leftOut + "@"
		})
		l = word.ReplaceAllStringFunc(l, func(found string) string {
			if !keyLike(found) {
				return found
			}
			note("a word that looks like a key")
			return leftOut
		})
		b.WriteString(l + end)
	}
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, fmt.Sprintf("%s (%d)", what, counts[what]))
	}
	return b.String(), out
}

// keyLike reports whether s looks like a key, and not like a path, a name, a version or a hexadecimal ID: it mixes capitals, small
// letters and digits more often than words do, or ends in base64's padding.
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

// CleanLog returns a log without what PutLog leaves out, except that it does not shorten a long one.
func CleanLog(text string) string {
	text, _ = withoutQueries(text)
	text, _ = withoutSecrets(text)
	return text
}

// withoutQueries returns a log without the lines that have names that pods query: the agent's query log (log.queries), and all messages of
// CoreDNS's plugins, because many are about failed queries.
func withoutQueries(text string) (clean string, out []string) {
	var b strings.Builder
	dropped := 0
	for l := range strings.Lines(text) {
		if namesQuery(strings.ReplaceAll(l, `\`, "")) { // Docker's json-file log escapes the quotes of a line that is JSON
			dropped++
		} else {
			b.WriteString(l)
		}
	}
	if dropped > 0 {
		out = append(out, fmt.Sprintf("%d of its lines, which name what pods queried", dropped))
	}
	return b.String(), out
}

func namesQuery(line string) bool {
	if strings.Contains(line, `msg=query `) || strings.Contains(line, `"msg":"query"`) {
		return true
	}
	ofCoreDNS := strings.Contains(line, `msg=coredns `) || strings.Contains(line, `"msg":"coredns"`)
	return ofCoreDNS && (strings.Contains(line, ` plugin=`) || strings.Contains(line, `"plugin":`))
}
