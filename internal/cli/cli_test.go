package cli

import (
	"bytes"
	"errors"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/pkg/testutil"
)

// program is a root with each kind of command.
func program() *cobra.Command {
	root := New("prog", "try the package", "v1")
	ok := &cobra.Command{Use: "show", Short: "print a value"}
	out := OutputFlag(ok, "wide")
	ok.RunE = func(c *cobra.Command, _ []string) error {
		return out.Print(c.OutOrStdout(), map[string]any{"a": 1, "b": []string{"<x>"}}, func() string { return "text\n" })
	}
	fail := func(use string, err error) *cobra.Command {
		return &cobra.Command{Use: use, RunE: func(*cobra.Command, []string) error { return err }}
	}
	group := Group("config", "hold others", fail("check", &ExitError{Code: Config, Err: errors.New("file:1:2: wrong"), Bare: true}))
	root.AddCommand(ok, group, Version("prog", "v1"), fail("break", errors.New("broken")), fail("poor", &ExitError{Code: Degraded}))
	return root
}

func TestRun(t *testing.T) {
	for line, want := range map[string]struct {
		code        int
		stdout, err string // parts; empty: nothing at all
	}{
		"":                     {Config, "", "Usage:"},
		"help":                 {Good, "Exit codes: 0 good", ""},
		"-h":                   {Good, "show", ""},
		"help show":            {Good, "--output FORMAT", ""},
		"show --help":          {Good, "--output FORMAT", ""},
		"help config check":    {Good, "prog config check", ""},
		"help shaw":            {Config, "", `prog: there is no command "shaw"; did you mean "show"?`},
		"help config chek":     {Config, "", `prog config: there is no command "chek"; did you mean "check"?`},
		"shaw":                 {Config, "", `did you mean "show"?`},
		"config":               {Config, "", "prog config: name a command; `prog config --help` lists them"},
		"config chek --file x": {Config, "", `there is no command "chek"`},
		"config check":         {Config, "", "file:1:2: wrong\n"},
		"show now":             {Config, "", `prog show: unexpected argument "now"`},
		"show --jsn":           {Config, "", "prog show: unknown flag: --jsn; did you mean --json?; `prog show --help` lists the flags"},
		"show -o":              {Config, "", "needs an argument"},
		"show":                 {Good, "text\n", ""},
		"show -o json":         {Good, "\"<x>\"", ""},
		"show --json":          {Good, "\"a\": 1", ""},
		"show --output=yaml":   {Good, "a: 1\nb:\n- <x>\n", ""},
		"show -o wide":         {Good, "text", ""},
		"show --output=":       {Good, "text\n", ""}, // as kubectl neardns query calls the agent
		"show -o xml":          {Config, "", "\"xml\" for \"-o, --output\" flag: write json, yaml, wide"},
		"show --json -o yaml":  {Config, "", "use one of them"},
		"show -o yaml --json":  {Config, "", "use one of them"},
		"show --json=false":    {Good, "text", ""},
		"show --json=x":        {Config, "", "invalid syntax"},
		"show -o json -o wide": {Good, "text", ""},
		"break":                {Failed, "", "prog break: broken\n"},
		"poor":                 {Degraded, "", ""},
		"version":              {Good, "prog v1\n", ""},
		"--version":            {Good, "prog v1\n", ""},
		"version -o json":      {Good, `"version": "v1"`, ""},
		"completion zsh":       {Good, "#compdef prog", ""},
	} {
		var stdout, stderr bytes.Buffer
		code := Run(t.Context(), program(), strings.Fields(line), &stdout, &stderr)
		holds := func(text, part string) bool { return strings.Contains(text, part) && (part != "" || text == "") }
		if code != want.code || !holds(stdout.String(), want.stdout) || !holds(stderr.String(), want.err) {
			t.Errorf("%q: exit code %d, want %d; standard output %q, want %q; standard error %q, want %q",
				line, code, want.code, stdout.String(), want.stdout, stderr.String(), want.err)
		}
	}
}

// `version -o json` has the commit that the program was built from, and its date.
func TestBuild(t *testing.T) {
	settings := []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "c0ffee"},
		{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}, {Key: "vcs.modified", Value: "true"}}
	got := buildOf("prog", "v1", func() (*debug.BuildInfo, bool) { return &debug.BuildInfo{Settings: settings}, true })
	want := build{Program: "prog", Version: "v1", Commit: "c0ffee", Date: "2026-01-02T03:04:05Z", Modified: true, Go: got.Go,
		Platform: got.Platform}
	if got != want || got.Go == "" || got.Platform == "" {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := buildOf("prog", "v1", func() (*debug.BuildInfo, bool) { return nil, false }); got.Commit != "" || got.Version != "v1" {
		t.Errorf("without build information: %+v", got)
	}
}

// A compromised node must not control the user's terminal.
func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"node a: Größe 1 °\n": "node a: Größe 1 °\n",
		"a\x1b[2Jb\tc\x7fd":   "a?[2Jb?c?d",
		"a\u009b2Jb\u0085c":   "a?2Jb?c", // C1 control characters: U+009B is the same as ESC [
		"a\x9b2Jb":            "a\ufffd2Jb",
		"a\u202eb":            "a?b", // reverses the text after it
	} {
		testutil.Equal(t, text, want, Printable(text))
	}
}
