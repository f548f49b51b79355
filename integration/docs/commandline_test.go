package docs

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/testutil"
)

// Every program of a node helps with exit code 0 wherever --help stands, and meets a wrong word, flag, value or file with an exit code
// that means the same in all of them and a text that names the remedy. Controller and edge have such a table of their own.
func TestHelpAndExitCodes(t *testing.T) {
	made.Make(t)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		testutil.Must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	const head = "apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\n"
	remote := file("remote.yaml", head+"redirects: [10.96.0.10]\npodDNS: {nameservers: remote}\n")
	indent := file("indent.yaml", head+"redirects:\n- 10.96.0.10\n  - 10.96.0.11\n")
	two := file("two.yaml", head+"link: {nme: x}\nredirects: [10.96.0.10]\ncache: {entries: 1}\n")
	list := file("list.conflist", `{"cniVersion": "1.0.0", "name": "n", "plugins": []}`)
	for _, test := range []struct {
		line string
		code int
		want string // in what it prints; for code 0 on standard output, else on standard error
	}{
		{"neardns-agent --help", cli.Good, "Exit codes: 0 good"},
		{"neardns-agent help", cli.Good, "Exit codes: 0 good"},
		{"neardns-agent help status", cli.Good, "--output"},
		{"neardns-agent status --help", cli.Good, "--output"},
		{"neardns-agent config --help", cli.Good, "print the configuration in effect"},
		{"neardns-agent help config show", cli.Good, "--corefile"},
		{"neardns-agent version -o json", cli.Good, `"program": "neardns-agent"`},
		{"neardns-agent completion bash", cli.Good, "bash completion"},
		{"neardns-agent completion zsh", cli.Good, "#compdef neardns-agent"},
		{"neardns-agent statsu", cli.Config, `did you mean "status"?`},
		{"neardns-agent help statsu", cli.Config, `did you mean "status"?`},
		{"neardns-agent status --jsn", cli.Config, "did you mean --json?"},
		{"neardns-agent pods -o table", cli.Config, "json, yaml"},
		{"neardns-agent status --config /nope", cli.Config, "create the file or name another with --config"},
		{"neardns-agent node --pod-dir /nope/x", cli.Config, "mount the folder"},
		{"neardns-agent config check --config " + remote, cli.Config, "write local, or a list of addresses"},
		{"neardns-agent config check --config " + indent, cli.Config, "indent each list item as the one before"},
		{"neardns-agent config check --config " + two, cli.Config, two + ":3:8: link.nme: unknown key"},
		{"neardns-install --help", cli.Good, "Exit codes: 0 good"},
		{"neardns-install help install", cli.Good, "--cni-conf"},
		{"neardns-install stay --help", cli.Good, "Usage:"},
		{"neardns-install version -o yaml", cli.Good, "program: neardns-install"},
		{"neardns-install completion fish", cli.Good, "fish completion"},
		{"neardns-install instal", cli.Config, `did you mean "install"?`},
		{"neardns-install install", cli.Config, "--nodeconfig or --entry"},
		{"neardns-install install --wait=5", cli.Config, "write one such as 5s"},
		{"neardns-install watch --pol 3s", cli.Config, "did you mean --poll?"},
		{"neardns help", cli.Good, "usage: neardns validate FILE"},
		{"neardns validate --help", cli.Good, "usage: neardns validate FILE"},
		{"neardns validate", cli.Config, "usage: neardns validate FILE"},
		{"neardns validate " + list, cli.Config, "plugins: empty: nothing to chain to"},
		{"kubectl-neardns --help", cli.Good, "kubectl neardns [command]"},
		{"kubectl-neardns statsu", cli.Config, `did you mean "status"?`},
	} {
		t.Run(strings.ReplaceAll(test.line, dir+"/", ""), func(t *testing.T) {
			words := strings.Fields(test.line)
			cmd := exec.CommandContext(t.Context(), made.Path(words[0]), words[1:]...)
			var stdout, stderr bytes.Buffer
			cmd.Env, cmd.Stdout, cmd.Stderr = []string{"PATH=" + os.Getenv("PATH")}, &stdout, &stderr
			if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
				t.Fatal(err)
			}
			text := &stdout
			if test.code != cli.Good {
				text = &stderr
			}
			if code := cmd.ProcessState.ExitCode(); code != test.code || !strings.Contains(text.String(), test.want) {
				t.Errorf("exit code %d, want %d, and %q in\n%s%s", code, test.code, test.want, stdout.String(), stderr.String())
			}
		})
	}
}
