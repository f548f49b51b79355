package msg

import (
	"bytes"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// TestQuestionAsTheLibraryPacks compares our reading of names to miekg/dns.
func TestQuestionAsTheLibraryPacks(t *testing.T) {
	label := strings.Repeat("x", 63)
	for _, name := range []string{
		".", "a.", "www.Example.ORG.", `a\.b.example.`, `a\\b.`, `\065b.`, `\000\255.`, `a\ b.`,
		label + ".", label + "." + label + "." + label + "." + strings.Repeat("y", 61) + ".",
		// not names
		"..", "a..", ".a.", "a", `a\`, `a\.`, label + "x.",
	} {
		want := make([]byte, 600)
		n, err := dns.PackDomainName(name, want, 0, nil, false)
		if strings.TrimSuffix(name, ".") == name || name == `a\.` { // the library takes names without their dot
			err = ErrName
		}
		got, ours := AppendQuestion(nil, name, 28, 1)
		if (err == nil) != (ours == nil) {
			t.Errorf("%q: library: %v, msg: %v", name, err, ours)
			continue
		}
		if err == nil && !bytes.Equal(got, append(want[:n:n], 0, 28, 0, 1)) {
			t.Errorf("%q: want % x, got % x", name, want[:n], got)
		}
	}
}

// TestQuestionStrict: names that the library accepts although no message can hold them, or that it reads differently.
func TestQuestionStrict(t *testing.T) {
	label := strings.Repeat("x", 63)
	for _, name := range []string{"", `\25.`, `\256.`, `\2x5.`, label + "." + label + "." + label + "." + strings.Repeat("y", 62) + "."} {
		if q, err := AppendQuestion(nil, name, 1, 1); err == nil {
			t.Errorf("%q became % x", name, q)
		}
	}
}

// TestName: only ASCII letters have another case (RFC 4343), and each byte stays one.
func TestName(t *testing.T) {
	for name, want := range map[string]string{
		".":                 "\x00",
		"WWW.Example.":      "\x03www\x07example\x00",
		`\200\195\128\065.`: "\x04\xc8\xc3\x80a\x00",
		"\u00dc.":           "\x02\xc3\x9c\x00",
	} {
		if got, err := Name(name); err != nil || string(got) != want {
			t.Errorf("%q: %q, %v, want %q", name, got, err, want)
		}
	}
}

func FuzzQuestion(f *testing.F) {
	for _, s := range []string{".", "a.b.", `\.\000.`, "..", `\9`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		q, err := AppendQuestion(nil, name, 1, 1)
		if err != nil {
			if len(q) != 0 {
				t.Fatalf("an error and % x", q)
			}
			return
		}
		back, off, err := dns.UnpackDomainName(q, 0)
		if err != nil || off != len(q)-4 {
			t.Fatalf("%q became % x: %v", name, q, err)
		}
		again, err := AppendQuestion(nil, back, 1, 1)
		if err != nil || !bytes.Equal(q, again) {
			t.Fatalf("%q: % x and again % x, %v", name, q, again, err)
		}
	})
}
