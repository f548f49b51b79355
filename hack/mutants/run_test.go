//go:build mutants

package mutants

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

var (
	seed  = flag.Uint64("seed", 1, "the order in which mutants are drawn")
	n     = flag.Int("n", 200, "how many mutants that compile are tried")
	root  = flag.String("root", "../..", "the top of the `repository`")
	out   = flag.String("out", "", "the `file` of results, JSON lines; a mutant that it has is not tried again")
	list  = flag.String("list", "", "take the mutants of this `file` of results, of another commit, in place of drawing")
	whole = flag.Bool("whole", false, "try survivors again with kernel tests, also those of packages that import theirs")
)

const areas = "./pkg/steer/... ./internal/dns/cache/... ./internal/dns/forward/... " +
	"./agent/internal/node/... ./agent/internal/pods/... ./fleet/zones/..."

func TestMutants(t *testing.T) {
	fmt.Printf("seed %d\n", *seed)
	drawn, known := draw(product(t), *seed), results(t, *out)
	if *list != "" {
		drawn = sameIn(drawn, results(t, *list))
	}
	clean := map[string]bool{}
	var tried []mutant
	for _, m := range drawn {
		if len(tried) == *n {
			break
		}
		if old, ok := known[m.key()]; ok {
			m.Result, m.Tests = old.Result, old.Tests
		}
		if m.Result == "" || *whole && m.Result == "survived" {
			pkg := "./" + filepath.Dir(m.File)
			if !clean[pkg] {
				if text, err := test(t, with(t, pkg), ""); err != nil {
					t.Fatalf("%s fails without a mutant:\n%s", pkg, text)
				}
				clean[pkg] = true
			}
			try(t, &m, pkg)
			record(t, m)
			fmt.Printf("%3d %-8s %s\n", len(tried)+1, m.Result, m)
		}
		if m.Result != "invalid" {
			tried = append(tried, m)
		}
	}
	table(tried)
}

// sameIn returns the mutants of an earlier run, those that this commit has first.
func sameIn(all []mutant, earlier map[string]mutant) (found []mutant) {
	for _, m := range all {
		if e, ok := earlier[m.key()]; ok && e.Result != "invalid" {
			found = append(found, m)
			delete(earlier, m.key())
		}
	}
	for _, e := range earlier {
		if e.Result != "invalid" {
			e.Result, e.Tests = "gone", ""
			found = append(found, e)
		}
	}
	return found
}

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d %s %s: %.70q -> %.70q  %s", m.File, m.Line, m.Func, m.Kind, m.Old, m.New, m.Tests)
}

// product returns the mutants of all files of areas that are compiled on this machine and are no tests.
func product(t *testing.T) (all []mutant) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-f", "{{range .GoFiles}}{{$.Dir}}/{{.}}\n{{end}}"}, strings.Fields(areas)...)...)
	cmd.Dir, cmd.Stderr = *root, os.Stderr
	files, err := cmd.Output()
	testutil.Must(t, err)
	for _, file := range strings.Fields(string(files)) {
		name, src := relative(t, file), read(t, file)
		found, err := sites(name, src)
		testutil.Must(t, err)
		all = append(all, found...)
	}
	fmt.Printf("%d mutants in the tree\n", len(all))
	return all
}

func relative(t *testing.T, file string) string {
	t.Helper()
	top, err := filepath.Abs(*root)
	testutil.Must(t, err)
	name, err := filepath.Rel(top, file)
	testutil.Must(t, err)
	return name
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	testutil.Must(t, err)
	return text
}

var (
	failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	broken = regexp.MustCompile(`\[(build|setup) failed\]`)
)

func try(t *testing.T, m *mutant, pkg string) {
	t.Helper()
	file, err := filepath.Abs(filepath.Join(*root, m.File))
	testutil.Must(t, err)
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{file: changed}})
	testutil.Must(t, err)
	for name, text := range map[string]string{changed: m.apply(read(t, file)), overlay: string(text)} {
		testutil.Must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	output, err := test(t, with(t, pkg), overlay)
	m.Result, m.Tests = "killed", ""
	switch {
	case err == nil:
		m.Result = "survived"
	case broken.MatchString(output):
		m.Result = "invalid"
	case strings.Contains(output, "panic: test timed out"):
		m.Result = "timeout"
	}
	for _, f := range failed.FindAllStringSubmatch(output, -1) {
		m.Tests = strings.TrimSpace(m.Tests + " " + f[1])
	}
}

// with returns a package, and with -whole those of the areas that import it.
func with(t *testing.T, pkg string) []string {
	t.Helper()
	pkgs := []string{pkg}
	if !*whole {
		return pkgs
	}
	const format = `{{.ImportPath}} {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}`
	cmd := exec.Command("go", append([]string{"list", "-f", format}, strings.Fields(areas)...)...)
	cmd.Dir, cmd.Stderr = *root, os.Stderr
	lines, err := cmd.Output()
	testutil.Must(t, err)
	for line := range strings.Lines(string(lines)) {
		f := strings.Fields(line)
		path := "github.com/neardns/neardns/" + strings.TrimPrefix(pkg, "./")
		if f[0] != path && slices.Contains(f, path) {
			pkgs = append(pkgs, f[0])
		}
	}
	return pkgs
}

// test stops at the first failure. The limit ends loops without end; a package takes seconds, its kernel tests minutes.
func test(t *testing.T, pkgs []string, overlay string) (string, error) {
	t.Helper()
	args := []string{"test", "-p=1", "-count=1", "-vet=off", "-failfast", "-overlay", overlay, "-timeout"}
	if *whole {
		args = append(args, "20m")
	} else {
		args = append(args, "3m", "-short")
	}
	cmd := exec.Command("go", append(args, pkgs...)...)
	cmd.Dir = *root
	output, err := cmd.CombinedOutput()
	return string(output), err
}

// results reads a file of results; the last line about a mutant holds.
func results(t *testing.T, file string) map[string]mutant {
	t.Helper()
	found := map[string]mutant{}
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var m mutant
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		found[m.key()] = m
	}
	return found
}

func record(t *testing.T, m mutant) {
	t.Helper()
	if *out == "" {
		return
	}
	f, err := os.OpenFile(*out, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	testutil.Must(t, err)
	defer func() { _ = f.Close() }()
	testutil.Must(t, json.NewEncoder(f).Encode(m))
}

func table(tried []mutant) {
	counts, sum := map[string]map[string]int{}, map[string]int{}
	for _, m := range tried {
		pkg := filepath.Dir(m.File)
		if counts[pkg] == nil {
			counts[pkg] = map[string]int{}
		}
		counts[pkg][m.Result]++
		sum[m.Result]++
	}
	counts["all"] = sum
	fmt.Println("| package | killed | timeout | survived | gone |\n| --- | --- | --- | --- | --- |")
	for _, pkg := range slices.Sorted(maps.Keys(counts)) {
		c := counts[pkg]
		fmt.Printf("| %s | %d | %d | %d | %d |\n", pkg, c["killed"], c["timeout"], c["survived"], c["gone"])
	}
	for _, m := range tried {
		if m.Result == "survived" {
			fmt.Println("survived", m)
		}
	}
}
