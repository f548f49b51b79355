package docs

import (
	"regexp"
	"strings"
	"testing"
)

// Tests that look for a text in what a program printed: in Output(), in a variable that holds it, or with awaitLog. The text is prose in
// lower case, as the messages of the products are; those of other programs, values and attributes are not matched.
var (
	printed  = regexp.MustCompile(`(\w+) :?= [\w.]+\.Output\(\)`)
	searched = regexp.MustCompile(`(?:strings\.(?:Contains|Count)\(([\w.]+)[^,"]*, |waitLog\([^"(\n]*)"([a-z][a-z,;'-]* [a-z ,;'-]+)"`)
	comments = regexp.MustCompile(`(?m)(^|\s)//.*`)
)

// TestOutputTexts: a text that a test searches in a product's output is in the product's sources. If it were not, a test that counts it,
// forbids it, or waits for it up to a limit would go on without it.
func TestOutputTexts(t *testing.T) {
	var products strings.Builder
	in := map[string]string{} // the file, by text
	for _, name := range files(t, ".go") {
		source := comments.ReplaceAllString(read(t, name), "")
		if folder, _, _ := strings.Cut(name, "/"); !strings.HasSuffix(name, "_test.go") && folder != "integration" && folder != "hack" {
			products.WriteString(source)
			continue
		}
		holds := map[string]bool{"": true}
		for _, m := range printed.FindAllStringSubmatch(source, -1) {
			holds[m[1]] = true
		}
		for _, m := range searched.FindAllStringSubmatch(source, -1) {
			if holds[m[1]] || strings.HasSuffix(m[1], ".Output") {
				in[m[2]] = name
			}
		}
	}
	if len(in) < 20 {
		t.Errorf("tests search for %d texts: the expressions above miss some", len(in))
	}
	for text, name := range in {
		if !strings.Contains(products.String(), text) {
			t.Errorf("%s searches for %q in a program's output, and no product prints it", name, text)
		}
	}
}
