package cache_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// scenarios reads all files.
func scenarios(t *testing.T) []*scenario {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "scenarios", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	all := make([]*scenario, 0, len(files))
	names := make(map[string]string)
	for _, f := range files {
		sc, err := parseScenario(filepath.Base(f), testutil.ReadFile(t, f))
		testutil.Must(t, err)
		if other, ok := names[sc.name]; ok {
			t.Fatalf("%s and %s have one name", sc.file, other)
		}
		names[sc.name] = sc.file
		all = append(all, sc)
	}
	return all
}

// TestScenariosCoreDNS plays the scenarios with CoreDNS's cache: it must meet the expectations except where a scenario states that it
// differs, and there it must differ.
func TestScenariosCoreDNS(t *testing.T) {
	for _, sc := range scenarios(t) {
		t.Run(strings.TrimSuffix(sc.file, ".txt"), func(t *testing.T) {
			if _, err := serve(stockProcess{}.setup(), sc.block, new(scripted)); (err != nil) != (sc.lacks != "") {
				t.Fatalf("%s: the block, with %q: %v", sc.file, sc.lacks, err)
			}
			if sc.lacks != "" {
				return
			}
			found := play(t, sc, stock())
			for i, s := range sc.steps {
				switch errs := found[i]; {
				case len(errs) > 0 && s.differs == "":
					t.Error(describe(sc, s, errs))
				case len(errs) == 0 && s.differs != "":
					t.Errorf("%s:%d: %s: CoreDNS does not differ", sc.file, s.line, s.text)
				}
			}
		})
	}
}

// TestScenarios plays the scenarios with our cache.
func TestScenarios(t *testing.T) {
	for _, sc := range scenarios(t) {
		t.Run(strings.TrimSuffix(sc.file, ".txt"), func(t *testing.T) {
			for i, errs := range play(t, sc, ours()) {
				t.Error(describe(sc, sc.steps[i], errs))
			}
		})
	}
}

// describe formats a failed step for people.
func describe(sc *scenario, s step, errs []error) string {
	return fmt.Sprintf("%s:%d: %s\n%v", sc.file, s.line, s.text, errors.Join(errs...))
}

// TestScenarioGrammar reads the example of the grammar's page, whose right half is for people, and plays it.
func TestScenarioGrammar(t *testing.T) {
	_, rest, _ := strings.Cut(testutil.ReadFile(t, "testdata/scenarios/README.md"), "```\n")
	example, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("no example in the page")
	}
	const column = 57 // where the right half begins
	var lines []string
	for l := range strings.Lines(example) {
		lines = append(lines, strings.TrimRight(l[:min(len(l), column)], " \n"))
	}
	sc, err := parseScenario("README.md", strings.Join(lines, "\n"))
	testutil.Must(t, err)
	for i, errs := range play(t, sc, stock()) {
		t.Error(describe(sc, sc.steps[i], errs))
	}
}
