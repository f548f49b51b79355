package docs

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/integration/cited"
	"github.com/neardns/neardns/pkg/testutil"
)

// testCommand is a part of `make test-all` that runs tests and holds them to the requirements.
type testCommand struct {
	packages []string          // folders, "/..." at the end: with those below
	flags    map[string]string // of go test or testrun
}

var runsTests = regexp.MustCompile(`(?:cd (\S+) && .*)?(?:go test|tools/testrun) (.*)`)

// testCommands reads what make would run for each part of test-all. Those without -cited show nothing: their tests may be skipped.
func testCommands(t *testing.T) (out []testCommand) {
	t.Helper()
	parts, err := all(t, "echo")
	testutil.Must(t, err)
	args := []string{"-n"}
	for line := range strings.Lines(parts) {
		if !strings.HasPrefix(line, "== ") {
			args = append(args, strings.Fields(line)...)
		}
	}
	for line := range strings.Lines(runIn(t, root, "make", args...)) {
		first, counted, piped := strings.Cut(line, " | ")
		m := runsTests.FindStringSubmatch(first)
		if m == nil || !strings.Contains(line, " -cited ") {
			continue
		}
		words, flags := flagsOf(m[2])
		c := testCommand{flags: flags}
		if _, also := flagsOf(counted); piped && (also["-tags"] != flags["-tags"] || also["-run"] != flags["-run"]) {
			t.Errorf("testrun holds other tests to the requirements than go test runs: %s", line)
		}
		for _, word := range words {
			if p := strings.TrimPrefix(word, "github.com/neardns/neardns/"); p != word || strings.HasPrefix(p, ".") {
				c.packages = append(c.packages, path.Join(m[1], p))
			}
		}
		out = append(out, c)
	}
	return out
}

// flagsOf splits a command at spaces. A flag without a value has the next word as its value.
func flagsOf(command string) (words []string, flags map[string]string) {
	words, flags = strings.Fields(strings.ReplaceAll(strings.TrimRight(command, ") \n"), "'", "")), map[string]string{}
	for i, word := range words {
		if strings.HasPrefix(word, "-") {
			flags[word] = append(words, "")[i+1]
		}
	}
	return words, flags
}

func (c testCommand) runs(test cited.Test, s cited.Source) bool {
	skip, skips := c.flags["-skip"]
	return s.Built(strings.Split(c.flags["-tags"], ",")) && regexp.MustCompile(c.flags["-run"]).MatchString(test.Name) &&
		!(skips && regexp.MustCompile(skip).MatchString(test.Name)) && slices.ContainsFunc(c.packages, func(p string) bool {
		p, below := strings.CutSuffix(p, "/...")
		return p == test.Folder || below && strings.HasPrefix(test.Folder, p+"/")
	})
}

// A part of `make test-all` runs each test that a requirement names, by its folder, name and build tags, and fails if it is skipped: a run
// of test-all that passed has run them all.
func TestCitedRun(t *testing.T) {
	all := testCommands(t)
	runs := func(test cited.Test) bool {
		source, err := cited.Find(root, test)
		testutil.Must(t, err)
		return slices.ContainsFunc(all, func(c testCommand) bool { return c.runs(test, source) })
	}
	for _, page := range requirements {
		for _, test := range cited.InText(read(t, page)) {
			if !runs(test) {
				t.Errorf("%s names %s, and no part of make test-all runs it with -cited", page, test)
			}
		}
	}
	// A tag of another target; -skip; a part without -cited.
	for of, name := range map[string]string{"steering": "TestCutOff", "cluster/endtoend": "TestEarlier", "cluster/node": "TestBackOff"} {
		if test := (cited.Test{Folder: "integration/" + of, Name: name}); runs(test) {
			t.Errorf("%s is found to run", test)
		}
	}
}
