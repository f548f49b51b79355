package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

// read gives a document of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	return testutil.ReadFile(t, filepath.Join(root, name))
}

// section is the text below a heading, up to the next heading of the same rank.
func section(t *testing.T, text, heading string) string {
	t.Helper()
	_, below, ok := strings.Cut(text, "\n"+heading+"\n")
	if !ok {
		t.Fatalf("there is no heading %q", heading)
	}
	below, _, _ = strings.Cut(below, "\n"+strings.Fields(heading)[0]+" ")
	return below
}

// prose leaves fenced blocks out, and keeps the lines' numbers.
func prose(text string) []string {
	lines, fenced := strings.Split(text, "\n"), false
	for i, line := range lines {
		mark := strings.HasPrefix(strings.TrimSpace(line), "```") || strings.HasPrefix(strings.TrimSpace(line), "~~~")
		if mark {
			fenced = !fenced
		}
		if mark || fenced {
			lines[i] = ""
		}
	}
	return lines
}

var (
	code = regexp.MustCompile("`[^`]*`")
	link = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)
)

// Pages that people read whole stay short. Generated tables and lists of everything are in docs/reference and docs/project.
func TestShortPages(t *testing.T) {
	if n := strings.Count(read(t, "README.md"), "\n"); n > 140 {
		t.Errorf("README.md has %d lines, of at most 140: move something into docs/", n)
	}
	limits := map[string]int{"ARCHITECTURE.md": 10, "CHANGELOG.md": 3, "CONTRIBUTING.md": 8, "SECURITY.md": 8}
	for _, name := range documents(t) {
		if filepath.Dir(name) == "docs" {
			limits[name] = 10
		}
	}
	for name, kilobytes := range limits {
		if n := len(read(t, name)); n > kilobytes*1024 {
			t.Errorf("%s has %d bytes, of at most %d KB", name, n, kilobytes)
		}
	}
}

// Each link within the repository leads to a file that is there, and to a heading that it has.
func TestLinks(t *testing.T) {
	seen := 0
	for _, name := range documents(t) {
		for i, line := range prose(read(t, name)) {
			for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(line, "code"), -1) {
				target, anchor, _ := strings.Cut(m[1], "#")
				if strings.Contains(target, "://") {
					continue
				}
				seen++
				file := name
				if target != "" {
					file = filepath.Join(filepath.Dir(name), target)
				}
				if _, err := os.Stat(filepath.Join(root, file)); err != nil {
					t.Errorf("%s:%d: the link %s leads nowhere", name, i+1, m[1])
				} else if anchor != "" && !slices.Contains(anchors(read(t, file)), anchor) {
					t.Errorf("%s:%d: %s has no heading for #%s", name, i+1, file, anchor)
				}
			}
		}
	}
	if seen < 100 {
		t.Errorf("only %d links found", seen)
	}
}

// anchors are the names that GitHub gives to a document's headings.
func anchors(text string) []string {
	var out []string
	for _, line := range prose(text) {
		if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			name := regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(strings.ToLower(heading), "")
			out = append(out, strings.ReplaceAll(name, " ", "-"))
		}
	}
	return out
}

// figures are the rows of docs/project/bench.md that docs/performance.md shows.
var figures = []string{
	"whole node's CPU per hit, at full speed",
	"the same without kernel hits",
	"server's CPU per hit without kernel hits",
	"the same with `fastPath: \"off\"`",
	"server's CPU per miss, at full speed",
	"resident memory after the start",
	"the same memory without kernel hits",
	"resident memory with 10,000 names cached",
	"CPU without queries (the probes)",
	"queries lost",
	"ADD, to the reference `portmap` with one port",
}

// inWords are figures in words, each with its row and the range of ratios for which the words are fair.
var inWords = []struct {
	page, words, row string
	least, most      float64
}{
	{"README.md", "a tenth of the CPU", figures[0], 0.08, 0.12},
	{"docs/performance.md", "a tenth of the CPU", figures[0], 0.08, 0.12},
	{"docs/performance.md", "two thirds of CoreDNS's memory", figures[5], 0.6, 0.72},
	{"docs/performance.md", "less than one percent of a core", figures[8], 0.4, 0.99},
	{"docs/performance.md", "a seventh of the time", figures[10], 0.13, 0.155},
	{"docs/faq.md", "a seventh of the time", figures[10], 0.13, 0.155},
}

var number = regexp.MustCompile(`\d+(?:[.,]\d+)*`)

// numbers are those of a text without its code and links' targets, without commas between thousands.
func numbers(text string) []string {
	text = code.ReplaceAllString(link.ReplaceAllString(text, ""), "")
	return number.FindAllString(strings.ReplaceAll(text, ",", ""), -1)
}

// The bench's page has the eight tests of the table in NodeLocal DNSCache's proposal, each for other servers, too: with a figure. The one
// test that the bench cannot make has none.
func TestProposalBenchmark(t *testing.T) {
	bench := read(t, "docs/project/bench.md")
	for _, row := range [][2]string{
		{"Multiple services(20)", "Yes"}, {"External queries", "Yes"}, {"Single Service", "Yes"}, {"Single NXDomain", "Yes"},
		{"Multiple services(20)", "No"}, {"External queries", "No"}, {"Single Service", "No"}, {"Single NXDomain", "No"},
	} {
		want := regexp.MustCompile(`^[\d,]+$`)
		if row == [2]string{"Single Service", "No"} {
			want = regexp.MustCompile("^–$")
		}
		for _, program := range []string{"neardns", "CoreDNS", "unbound"} {
			line := "\n| " + row[0] + " | " + program + " | " + row[1] + " | "
			_, rest, _ := strings.Cut(bench, line)
			if qps, _, ok := strings.Cut(rest, " |\n"); !ok || !want.MatchString(qps) {
				t.Errorf("docs/project/bench.md has in the row %q %q, want %s", line, qps, want)
			}
		}
	}
}

// Each figure has one source: docs/performance.md's table is drawn from the bench, its other numbers and those of README.md's
// promises are in a page that they link to, and a figure in words fits its row.
func TestFigures(t *testing.T) {
	bench := read(t, "docs/project/bench.md")
	table := "| what | neardns, to stock |\n| --- | --- |\n"
	if !strings.Contains(bench, table) {
		t.Fatalf("docs/project/bench.md has no table with the head %q", table)
	}
	rows := map[string]string{}
	for _, what := range figures {
		_, row, ok := strings.Cut(bench, "\n| "+what+" |")
		if rows[what], _, _ = strings.Cut(row, "\n"); !ok {
			t.Errorf("docs/project/bench.md has no row %q", what)
		}
		table += "| " + what + " |" + rows[what] + "\n"
	}
	golden.Part(t, filepath.Join(root, "docs/performance.md"), "figures", table)
	for _, w := range inWords {
		if !strings.Contains(strings.Join(strings.Fields(read(t, w.page)), " "), w.words) {
			t.Errorf("%s has no %q", w.page, w.words)
		}
		if ratio, err := strconv.ParseFloat(number.FindString(rows[w.row]), 64); err != nil || ratio < w.least || ratio > w.most {
			t.Errorf("%s: %q stands for %s (%v)", w.page, w.words, rows[w.row], err)
		}
	}

	promises := strings.Split(section(t, read(t, "README.md"), "## Three figures"), "\n- ")[1:]
	if len(promises) != 3 {
		t.Errorf("README.md has %d figures", len(promises))
	}
	for _, promise := range promises {
		checkNumbers(t, "README.md", promise)
	}
	checkNumbers(t, "docs/performance.md", strings.Join(prose(read(t, "docs/performance.md")), "\n"))
}

// checkNumbers fails for each number of a text that no page which the text links to has.
func checkNumbers(t *testing.T, page, text string) {
	t.Helper()
	var known []string
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		if target, _, _ := strings.Cut(m[1], "#"); strings.HasSuffix(target, ".md") {
			known = append(known, numbers(read(t, filepath.Join(filepath.Dir(page), target)))...)
		}
	}
	for _, n := range numbers(text) {
		if !slices.Contains(known, n) {
			t.Errorf("%s: no page that it links to has %s", page, n)
		}
	}
}

// README.md's way from NodeLocal DNSCache and back is part of the way of docs/move-from-nodelocal.md, which a test follows.
func TestMoveIsTheTestedOne(t *testing.T) {
	tested := commands(section(t, read(t, "docs/move-from-nodelocal.md"), "## Move and roll back"))
	short := commands(section(t, read(t, "README.md"), "## Move from NodeLocal DNSCache"))
	if len(short) < 4 {
		t.Errorf("README.md has %d commands", len(short))
	}
	for _, c := range short {
		i := slices.Index(tested, c)
		if i < 0 {
			t.Fatalf("README.md: docs/move-from-nodelocal.md does not have %q next, but %q", c, tested)
		}
		tested = tested[i+1:]
	}
}

// commands are the lines of fenced blocks.
func commands(text string) []string {
	var out []string
	fenced := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		} else if fenced && line != "" {
			out = append(out, line)
		}
	}
	return out
}

// Each decision has the four parts, and the README.md of its folder is the index: each file with its title, in order, and none that is not
// there. The node's and fleet's share their numbers.
func TestDecisions(t *testing.T) {
	want, got, folderOf := map[string][]string{}, map[string][]string{}, map[string]string{}
	for _, name := range documents(t) {
		folder := filepath.Dir(name)
		if filepath.Base(folder) != "decisions" || filepath.Base(name) == "README.md" {
			continue
		}
		id := strings.TrimSuffix(filepath.Base(name), ".md")
		title, _, _ := strings.Cut(read(t, name), "\n")
		title, ok := strings.CutPrefix(title, "# "+id+" ")
		if !ok || len(title) > 60 {
			t.Errorf("%s: its title is %q: write %q and a sentence of at most 60 bytes", name, title, "# "+id)
		}
		parts := regexp.MustCompile(`(?m)^\*\*(\w+)\.\*\* \S`).FindAllStringSubmatch(read(t, name), -1)
		var names []string
		for _, p := range parts {
			names = append(names, p[1])
		}
		if d := cmp.Diff([]string{"Context", "Choice", "Cost", "Status"}, names); d != "" {
			t.Errorf("%s: its parts, each a paragraph that begins with its name in bold (-want +got):\n%s", name, d)
		}
		want[folder] = append(want[folder], "- ["+id+"]("+filepath.Base(name)+") "+title)
		if other, ok := folderOf[id]; ok {
			t.Errorf("%s has the number of one in %s", name, other)
		}
		folderOf[id] = folder
	}
	for _, folder := range []string{"docs/decisions", "fleet/docs/decisions"} {
		for line := range strings.Lines(read(t, folder+"/README.md")) {
			if strings.HasPrefix(line, "- ") {
				got[folder] = append(got[folder], strings.TrimSuffix(line, "\n"))
			}
		}
	}
	testutil.Equal(t, "the indexes of decisions", want, got)
}
