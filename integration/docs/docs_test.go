// Package docs holds the documents to what the programs do: every fenced block in every Markdown file is run or parsed.
package docs

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/integration/programs"
	"github.com/neardns/neardns/pkg/testutil"
)

const root = "../.."

// block is one fenced block of a document.
type block struct {
	file, lang, text string
	line             int
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.file, b.line) }

// files lists the repository's files with an ending, by their names from its root.
func files(t *testing.T, ending string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && slices.Contains([]string{".git", "bin", "testdata"}, d.Name()) {
			if d != nil && d.IsDir() && err == nil {
				return filepath.SkipDir
			}
			return err
		}
		if strings.HasSuffix(path, ending) {
			name, _ := filepath.Rel(root, path)
			out = append(out, name)
		}
		return nil
	})
	testutil.Must(t, err)
	return out
}

func documents(t *testing.T) []string { t.Helper(); return files(t, ".md") }

func blocks(t *testing.T) []block {
	t.Helper()
	var out []block
	for _, name := range documents(t) {
		var b *block
		for i, line := range strings.Split(read(t, name), "\n") {
			mark, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
			switch {
			case isFence && b == nil:
				b = &block{file: name, lang: mark, line: i + 1}
			case isFence:
				out, b = append(out, *b), nil
			case b != nil:
				b.text += line + "\n"
			}
		}
		if b != nil {
			t.Fatalf("%s: block is not closed", b)
		}
	}
	return out
}

// made are the products that blocks call.
var made = programs.Of("neardns", "neardns-agent", "neardns-install", "kubectl-neardns")

func TestMain(m *testing.M) { made.Main(m) }

func TestEveryBlockHolds(t *testing.T) {
	made.Make(t)
	bin := made.Dir()
	seen := map[string]int{}
	for _, b := range blocks(t) {
		seen[b.lang]++
		switch b.lang {
		case "": // a drawing or a listing
		case "sh", "console":
			checkCommands(t, bin, b)
		case "yaml":
			checkYAML(t, bin, b)
		case "json":
			checkJSON(t, bin, b)
		case "corefile":
			checkCorefile(t, bin, b)
		case "text":
			checkFindings(t, b)
		case "conf", "lua": // of other servers: pkg/testutil/zoneserver draws these from what it runs the servers with
			if b.file != "fleet/docs/shared-zones-servers.md" {
				t.Errorf("%s: only fleet/docs/shared-zones-servers.md has blocks of language %q", b, b.lang)
			}
		case "go":
		default:
			t.Errorf("%s: nobody checks blocks of language %q: add it here", b, b.lang)
		}
	}
	if seen["sh"] == 0 || seen["yaml"] == 0 {
		t.Errorf("too few blocks found: %v", seen)
	}
}

// checkCommands looks up each command: make targets, the programs' subcommands and flags, files of the repository.
func checkCommands(t *testing.T, bin string, b block) {
	t.Helper()
	makefile := testutil.ReadFile(t, filepath.Join(root, "Makefile"))
	for _, line := range strings.Split(b.text, "\n") {
		line, _, _ = strings.Cut(line, " #")
		words := strings.Fields(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "$ "), "\\"))
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) > 1 && words[0] == "kubectl" && words[1] == "neardns" {
			words = append([]string{"kubectl-neardns"}, words[2:]...)
		}
		switch filepath.Base(words[0]) {
		case "make":
			for _, w := range words[1:] {
				if !strings.Contains(w, "=") && !regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(w)+`:`).MatchString(makefile) {
					t.Errorf("%s: the Makefile has no target %s", b, w)
				}
			}
		case "neardns-agent", "neardns-install", "neardns", "kubectl-neardns":
			checkUsage(t, bin, b, words)
		}
		for _, w := range words[1:] {
			if regexp.MustCompile(`^(conf|fleet|install|integration)/[\w./-]+$`).MatchString(w) {
				_, err := os.Stat(filepath.Join(root, w))
				testutil.Check(t, err, b.String())
			}
		}
	}
}

// checkFindings holds that the doctor's lines in a document are those of its golden texts.
func checkFindings(t *testing.T, b block) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "agent/internal/inspect/testdata/*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden texts: %v", err)
	}
	var said strings.Builder
	for _, f := range files {
		said.WriteString(testutil.ReadFile(t, f))
	}
	finding := regexp.MustCompile(`^(OK|WARN|FAIL|GOOD|DEGRADED)\b`)
	for line := range strings.Lines(b.text) {
		if finding.MatchString(line) && !strings.Contains(said.String(), line) {
			t.Errorf("%s: the doctor never says: %s", b, line)
		}
	}
}

// checkUsage runs the program itself: a subcommand or flag that its help does not know is an error.
func checkUsage(t *testing.T, bin string, b block, words []string) {
	t.Helper()
	program := filepath.Base(words[0])
	var sub []string
	for _, w := range words[1:] {
		if strings.HasPrefix(w, "-") || strings.ContainsAny(w, "/.") || len(sub) == 2 {
			break
		}
		sub = append(sub, w)
	}
	args := append([]string{"help"}, sub...)
	out, _ := exec.CommandContext(t.Context(), filepath.Join(bin, program), args...).CombinedOutput()
	help := string(out)
	if strings.Contains(help, "there is no command") || strings.Contains(help, "unknown") {
		t.Errorf("%s: %s %s: %s", b, program, strings.Join(sub, " "), help)
	}
	for _, w := range words[1:] {
		if flag, _, _ := strings.Cut(strings.TrimLeft(w, "-"), "="); strings.HasPrefix(w, "--") && !strings.Contains(help, "-"+flag) {
			t.Errorf("%s: %s %s has no flag --%s", b, program, strings.Join(sub, " "), flag)
		}
	}
}

func checkYAML(t *testing.T, bin string, b block) {
	t.Helper()
	var head struct {
		Kind string `json:"kind"`
	}
	if err := yaml.Unmarshal([]byte(b.text), &head); err != nil {
		t.Errorf("%s: %v", b, err)
		return
	}
	if head.Kind != "NodeConfig" {
		return
	}
	file := filepath.Join(t.TempDir(), "node.yaml")
	testutil.Must(t, os.WriteFile(file, []byte(b.text), 0o600))
	out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "neardns-agent"), "config", "show", "--config", file).CombinedOutput()
	testutil.Check(t, err, b.String(), string(out))
}

// checkJSON validates conflists, and single entries inside a list of their own.
func checkJSON(t *testing.T, bin string, b block) {
	t.Helper()
	var doc map[string]json.RawMessage
	if err := json.Unmarshal([]byte(b.text), &doc); err != nil {
		t.Errorf("%s: %v", b, err)
		return
	}
	text := b.text
	if string(doc["type"]) == `"neardns"` {
		text = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp"}, ` + b.text + `]}`
	} else if doc["plugins"] == nil {
		return
	}
	file := filepath.Join(t.TempDir(), "10-pods.conflist")
	testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
	out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "neardns"), "validate", file).CombinedOutput()
	testutil.Check(t, err, b.String(), string(out))
}

// checkCorefile has the agent check a Corefile where it is a whole one; the plugins' own lines are held by their tests.
func checkCorefile(t *testing.T, bin string, b block) {
	t.Helper()
	if !strings.Contains(b.text, "{") || strings.Contains(b.text, "INSTANCE") {
		return
	}
	dir := t.TempDir()
	core, file := filepath.Join(dir, "Corefile"), filepath.Join(dir, "node.yaml")
	conf := "apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\nredirects: [10.96.0.10]\nupstreams: {external: [192.0.2.1]}\ncorefile: " + core + "\n"
	for path, text := range map[string]string{core: b.text, file: conf} {
		testutil.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "neardns-agent"), "config", "check", "--config", file).CombinedOutput()
	testutil.Check(t, err, b.String(), string(out))
}
