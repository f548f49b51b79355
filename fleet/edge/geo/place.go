package geo

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Place is a location as a list of region codes in lower case, the smallest region first (us-ca, us, geo-na). It is never modified.
type Place []string

// ParseCode parses a region code: a continent GEO-EU, as Kuadrant writes it, a country IE (ISO 3166-1), or a part of a country US-CA
// (ISO 3166-2). It returns the code in lower case, as zones have it.
func ParseCode(text string) (string, error) {
	code := text
	if !strings.ContainsFunc(text, func(r rune) bool { return r >= utf8.RuneSelf }) { // strings.ToLower makes an ASCII i of İ
		code = strings.ToLower(text)
	}
	first, rest, parted := strings.Cut(code, "-")
	switch {
	case !parted && len(first) == 2 && letters(first):
		return code, nil
	case first == "geo" && len(rest) == 2 && letters(rest):
		return code, nil
	case parted && len(first) == 2 && letters(first) && len(rest) >= 1 && len(rest) <= 3 && lettersOrDigits(rest):
		return code, nil
	}
	return "", fmt.Errorf("%q is no geo code: write a continent as GEO-EU, a country as IE, a part of a country as US-CA", text)
}

func letters(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < 'a' || r > 'z' })
}

func lettersOrDigits(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
}
