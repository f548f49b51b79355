package docs

import (
	"cmp"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/neardns/neardns/integration/cited"
	"github.com/neardns/neardns/pkg/testutil"
)

// A document that names a test names one that exists, by its whole name.
func TestNamedTests(t *testing.T) {
	tests := map[string]bool{}
	for _, name := range files(t, "_test.go") {
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+|Benchmark\w+|Fuzz\w+)\(`).FindAllStringSubmatch(read(t, name), -1) {
			tests[m[1]] = true
		}
	}
	for _, name := range documents(t) {
		text := read(t, name)
		for _, m := range regexp.MustCompile("`((?:Test|Benchmark|Fuzz)[A-Z]\\w*)`").FindAllStringSubmatch(text, -1) {
			if !tests[m[1]] {
				t.Errorf("%s: there is no test %s", name, m[1])
			}
		}
		for _, test := range cited.InText(text) {
			_, err := cited.Find(root, test)
			testutil.Check(t, err, name)
		}
	}
}

// requirements are the pages with the node's rows and with fleet's. Rows of one design may be in both.
var requirements = []string{"docs/project/requirements.md", "fleet/docs/requirements.md"}

var (
	requirement = regexp.MustCompile(`(?m)^\| ([KDRCPZ])(\d+)([a-z]?) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$`)
	target      = regexp.MustCompile("`make ([a-z-]+)")
	asRow       = regexp.MustCompile(`^as ([KDRCPZ]\d+)$`)
)

// requirementRows returns the rows of all pages, by design and number. On each page a design's rows are in order.
func requirementRows(t *testing.T) (rows [][]string) {
	t.Helper()
	number := func(row []string) int {
		n, err := strconv.Atoi(row[2])
		testutil.Must(t, err)
		return n
	}
	for _, name := range requirements {
		of := requirement.FindAllStringSubmatch(read(t, name), -1)
		for i, r := range of {
			if i > 0 && r[1] == of[i-1][1] && number(r) < number(of[i-1]) {
				t.Errorf("%s: row %s%s is below row %s%s", name, r[1], r[2], r[1], of[i-1][2])
			}
		}
		rows = append(rows, of...)
	}
	slices.SortStableFunc(rows, func(a, b []string) int { return cmp.Or(strings.Compare(a[1], b[1]), number(a)-number(b)) })
	return rows
}

// Each requirement has its row, in order. One that works names the tests that show it, each by its folder and whole name; testrun -cited
// holds that they run. One that differs links its reason: of shared zones a decision.
func TestRequirements(t *testing.T) {
	last, shown := map[string]int{}, map[string]bool{}
	for _, r := range requirementRows(t) {
		number, err := strconv.Atoi(r[2])
		testutil.Must(t, err)
		name, verdict, text := r[1]+r[2]+r[3], r[4], r[5]
		if follows := number == last[r[1]]+1 && r[3] == "" || number == last[r[1]] && r[3] != ""; !follows {
			t.Errorf("row %s does not follow %s%d", name, r[1], last[r[1]])
		}
		last[r[1]] = number
		shown[name] = len(cited.InText(text)) > 0 || text == "none of it is built" || checked(t, text)
		switch as := asRow.FindStringSubmatch(text); verdict {
		case "works":
			if !shown[name] && (as == nil || !shown[as[1]]) {
				t.Errorf("row %s works, and names no test by its folder and whole name: %s", name, text)
			}
		case "differs":
			if reason := map[bool]string{true: "decisions/D-", false: "]("}[r[1] == "Z"]; !strings.Contains(text, reason) {
				t.Errorf("row %s differs, and links no reason: %s", name, text)
			}
		case "n/a":
		default:
			t.Errorf("row %s: %q is no verdict", name, verdict)
		}
	}
	testutil.Equal(t, "the last rows", map[string]int{"K": 55, "D": 25, "R": 23, "C": 17, "P": 39, "Z": 57}, last)
	for _, page := range requirements {
		if bare := regexp.MustCompile("`(Test|Fuzz)[A-Z]\\w*`").FindAllString(read(t, page), -1); len(bare) > 0 {
			t.Errorf("%s names tests without their folders: %v", page, bare)
		}
	}
}

// checked reports whether a text names a target that is no Go test, and that `make test-all` runs and judges.
func checked(t *testing.T, text string) bool {
	t.Helper()
	_, all, _ := strings.Cut(read(t, "Makefile"), "\ntest-all:")
	all, _, _ = strings.Cut(all, "; do")
	for _, m := range target.FindAllStringSubmatch(text, -1) {
		if slices.Contains(strings.Fields(all), m[1]) {
			return true
		}
	}
	return false
}

// The libraries that the project's plan names are direct requirements, and product code imports each.
func TestLibraries(t *testing.T) {
	module := read(t, "go.mod")
	used := map[string]bool{}
	for _, name := range files(t, ".go") {
		if folder := strings.Split(name, "/")[0]; strings.HasSuffix(name, "_test.go") || strings.Contains(name, "/testutil/") ||
			!slices.Contains([]string{"agent", "install", "internal", "pkg", "plugins"}, folder) {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.ImportsOnly)
		testutil.Must(t, err)
		for _, i := range file.Imports {
			used[strings.Trim(i.Path.Value, `"`)] = true
		}
	}
	for library, of := range map[string]string{
		"github.com/containernetworking/cni/pkg/skel":            "github.com/containernetworking/cni",
		"github.com/containernetworking/plugins/pkg/netlinksafe": "github.com/containernetworking/plugins",
		"github.com/vishvananda/netlink":                         "github.com/vishvananda/netlink",
		"github.com/coreos/go-iptables/iptables":                 "github.com/coreos/go-iptables",
		"github.com/miekg/dns":                                   "github.com/miekg/dns",
		"github.com/coredns/coredns/core/dnsserver":              "github.com/coredns/coredns",
	} {
		if !regexp.MustCompile(`(?m)^\t` + regexp.QuoteMeta(of) + ` v\S+$`).MatchString(module) {
			t.Errorf("go.mod does not require %s directly", of)
		}
		if !used[library] {
			t.Errorf("no product code imports %s", library)
		}
	}
}

// The folders and files that the project's plan names are there, and each that ARCHITECTURE.md's tree names at its top.
func TestTree(t *testing.T) {
	names := []string{"plugins", "agent", "pkg", "conf", "install", "integration",
		"Dockerfile.plugin", "Dockerfile.agent", "go.mod", "Makefile"}
	tops := regexp.MustCompile(`(?m)^([a-z]+(?:/[a-z]+)*)/ `).FindAllStringSubmatch(section(t, read(t, "ARCHITECTURE.md"), "## The tree"), -1)
	if len(tops) < 5 {
		t.Errorf("the tree has %d folders", len(tops))
	}
	for _, top := range tops {
		names = append(names, top[1])
	}
	for _, name := range names {
		_, err := os.Stat(filepath.Join(root, name))
		testutil.Check(t, err)
	}
}

// A page with tables prints the commit that they were taken at: as .ci/lanes.txt has it, or as a cell of the table of integration/compat
// has it. None claims to be current and is stale, which .ci/lanes computes from git: a page that is marked stale stays so until its lane
// runs, so only the first change after a run edits it. A clone without that commit does not know.
func TestLanes(t *testing.T) {
	taken := regexp.MustCompile("(?m)^Taken by `([^`]+)` at commit ([\\w-]+): (current|stale)\\.")
	want, got := map[string]string{}, map[string]string{}
	for _, name := range documents(t) {
		for _, m := range taken.FindAllStringSubmatch(read(t, name), -1) {
			got[name+" "+m[1]] = m[2]
		}
	}
	for line := range strings.SplitSeq(read(t, ".ci/lanes.txt"), "\n") {
		fields := strings.Split(line, "|")
		if strings.HasPrefix(line, "#") || len(fields) < 5 {
			continue
		}
		for page := range strings.FieldsSeq(fields[4]) {
			page, table, ofTable := strings.Cut(page, ":")
			key, commit := page+" "+strings.TrimSpace(fields[0]), strings.TrimSpace(fields[1])
			if ofTable {
				commit = "one of a cell of " + table
				if strings.Contains(read(t, "integration/compat/results/"+table+".json"), `"commit":"`+got[key]+`"`) {
					commit = got[key]
				}
			}
			want[key] = commit
		}
	}
	if len(want) < 5 || !maps.Equal(want, got) {
		t.Errorf("the pages have %v, .ci/lanes.txt has %v: run .ci/lanes -mark", got, want)
	}
	if wrong := runIn(t, root, ".ci/lanes", "-check"); wrong != "" {
		t.Errorf("run .ci/lanes -mark: these are stale:\n%s", wrong)
	}
}

// all runs the weekly target with another program in place of make for its parts.
func all(t *testing.T, made string) (out string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", "-s", "test-all", "MAKE="+made)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CI=true") // records no run
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// The weekly target goes on after a part that fails, names these parts, and passes only without one.
func TestAllTargets(t *testing.T) {
	for made, want := range map[string]string{"true": "== make compat\n", "false": "failed: test-timing lint"} {
		if out, err := all(t, made); (err == nil) != (made == "true") || !strings.Contains(out, want) {
			t.Errorf("each part is %s: %v, want %q in\n%s", made, err, want, out)
		}
	}
}

// runIn runs a program in a folder: .ci/lanes about it, git as the same author everywhere.
func runIn(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	kept := regexp.MustCompile("^(PATH|HOME|GO[A-Z]*)=") // no variable of a make that runs the test
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(e string) bool { return !kept.MatchString(e) }),
		"LANES_ROOT=.", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// A table is stale when a commit has touched its paths since, whatever else was changed; a shallow clone does not know.
func TestStale(t *testing.T) {
	script, err := filepath.Abs(filepath.Join(root, ".ci/lanes"))
	testutil.Must(t, err)
	dir, shallow := t.TempDir(), filepath.Join(t.TempDir(), "shallow")
	run := func(name string, args ...string) string { t.Helper(); return runIn(t, dir, name, args...) }
	put := func(name, text string) { t.Helper(); testutil.WriteFile(t, filepath.Join(dir, name), text) }
	page := func() string { return testutil.ReadFile(t, filepath.Join(dir, "page.md")) }
	run("git", "init", "-q")
	for i, path := range []string{"agent/a", "other/b", "agent/c"} {
		put(path, path)
		run("git", "add", ".")
		run("git", "commit", "-qm", path)
		if i == 0 {
			put(".ci/lanes.txt", "make x | "+strings.TrimSpace(run("git", "rev-parse", "HEAD"))+" | passed | agent | page.md\n")
			put("page.md", "Taken by `make x` at commit 0: current. Old\n")
		}
		state := []string{"current", "current", "stale"}[i]
		if out := run(script); !strings.Contains(out, "; "+state+": ") {
			t.Errorf("after %s: not %s: %s", path, state, out)
		}
		if wrong := run(script, "-check"); (wrong != "") != (state == "stale") {
			t.Errorf("after %s, of pages that are %s: %q", path, state, wrong)
		}
		if left := run("sh", "-c", `"$0" -current "make x" || echo to run`, script); (left == "to run\n") != (state == "stale") {
			t.Errorf("after %s, test-all without what is %s: %q", path, state, left)
		}
		run(script, "-mark")
		if text := page(); !strings.Contains(text, ": "+state) || strings.Contains(text, "Old") || run(script, "-check") != "" {
			t.Errorf("after %s the page has %q, want %s", path, text, state)
		}
	}
	recorded := func(target string) string {
		t.Helper()
		run(script, "-ran", target)
		return testutil.ReadFile(t, filepath.Join(dir, ".ci/lanes.txt"))
	}
	head := strings.TrimSpace(run("git", "rev-parse", "--short", "HEAD"))
	if text := recorded("make x SHORT=1"); strings.Contains(text, "| "+head+" |") {
		t.Errorf("a short run is recorded as the whole lane: %s", text)
	}
	put("agent/a", "changed")
	if text := recorded("make x "); strings.Contains(text, "| "+head+" |") {
		t.Errorf("a run of what no commit has is recorded: %s", text)
	}
	run("git", "checkout", "-q", "agent/a")
	put("agent/result.json", "{}")
	if text := recorded("make x "); !strings.HasPrefix(text, "make x | "+head+" | passed | agent | page.md") {
		t.Errorf("a run that passed is not recorded: %s", text)
	}
	run("git", "add", ".")
	run("git", "commit", "-qm", "result")
	if out := run(script); !strings.Contains(out, "; current: ") {
		t.Errorf("the commit of a run's own result makes it stale: %s", out)
	}
	if text := page(); !strings.Contains(text, head+": current") {
		t.Errorf("the page has %s", text)
	}
	put("agent/a", "not committed yet")
	if wrong := run(script, "-check"); !strings.HasPrefix(wrong, "page.md:") {
		t.Errorf("a change that no commit has yet: %q", wrong)
	}
	run("git", "checkout", "-q", "agent/a")
	first := strings.TrimSpace(run("git", "rev-list", "--max-parents=0", "HEAD"))
	put("integration/compat/results/a.json", `[{"commit":"`+head+`"}, {"commit":"`+first+`"}, {"commit":"`+head+`"}]`)
	put(".ci/lanes.txt", "make x | "+head+" | passed | agent | page.md:a\n")
	run(script, "-mark")
	if text := page(); !strings.Contains(text, first+": stale") {
		t.Errorf("a table of which a cell was tested at %s has a page with %s", first, text)
	}
	run("git", "checkout", "-q", ".ci/lanes.txt")
	run("git", "clone", "-q", "--depth=1", "file://"+dir, shallow)
	dir = shallow
	if out := run(script); !strings.Contains(out, "; unknown: ") {
		t.Errorf("a shallow clone knows: %s", out)
	}
}
