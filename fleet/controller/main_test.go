package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestUsage(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // wherever the test runs
	for line, want := range map[string]struct {
		code int
		text string
	}{
		"":                     {cli.Config, "decide which nodes run the cache"},
		"help":                 {cli.Good, "decide which nodes run the cache"},
		"version":              {cli.Good, "neardns-controller "},
		"--version":            {cli.Good, "neardns-controller "},
		"dance":                {cli.Config, `there is no command "dance"`},
		"placement --dance":    {cli.Config, "unknown flag: --dance"},
		"placement now":        {cli.Config, `unexpected argument "now"`},
		"placement -h":         {cli.Good, "-kube-dns NAME"},
		"zones --cluster-id=X": {cli.Config, `--cluster-id: cluster id "X"`},
		"zones now":            {cli.Config, `unexpected argument "now"`},
		"zones -h":             {cli.Good, "-namespace NAME"},
		"zones --namespace=neardns-zones --kubeconfig=/nowhere/config":   {cli.Config, "/nowhere/config"}, // the manifest's
		"placement --kubeconfig=/nowhere/config":                         {cli.Config, "read --kubeconfig: stat /nowhere/config"},
		"placement":                                                      {cli.Config, "or name a file with --kubeconfig"},
		"zones publish":                                                  {cli.Config, "name a file with --file"},
		"zones publish --file=f":                                         {cli.Config, "name the cluster with --cluster-id"},
		"zones plan --file=f --cluster-id=A":                             {cli.Config, `cluster id "A" is not six to twelve`},
		"zones publish --file=f --cluster-id=aaaaaaaa --poll=1ms":        {cli.Config, "--poll: 1ms is less than 100ms"},
		"zones remove --file=f":                                          {cli.Config, "name one cluster to remove"},
		"zones remove aaaaaaaa --file=/nowhere/f --yes":                  {cli.Config, "/nowhere/f"},
		"zones remove --file=f aaaaaaaa --yes now":                       {cli.Config, "name one cluster to remove"},
		"zones owners --file=f now":                                      {cli.Config, `unexpected argument "now"`},
		"zones check --file=/nowhere/zone.yaml":                          {cli.Config, "/nowhere/zone.yaml"},
		"zones plam":                                                     {cli.Config, `unexpected argument "plam"`},
		"help zones plan":                                                {cli.Good, "--instance ID"},
		"completion fish":                                                {cli.Good, "neardns_controller"},
		"version -o yaml":                                                {cli.Good, "program: neardns-controller"},
		"zones get -h":                                                   {cli.Good, "-zone NAME"},
		"zones adopt --file=f":                                           {cli.Config, "name a file with --export"},
		"zones adopt --file=f --export=e":                                {cli.Config, "write external-dns or kuadrant"},
		"zones adopt --file=f --export=e --from=external-dns":            {cli.Config, "--owner is empty"},
		"zones adopt --file=f --export=e --from=kuadrant --interval=-1s": {cli.Config, "--interval: -1s is negative"},
		"zones adopt --export=e --undo":                                  {cli.Config, "name a file with --file"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), nil, strings.Fields(line), &stdout, &stderr)
		said, silent := &stderr, &stdout
		if want.code == cli.Good {
			said, silent = &stdout, &stderr
		}
		if code != want.code || !strings.Contains(said.String(), want.text) || silent.Len() > 0 {
			t.Errorf("%q exits with %d: standard output %q, standard error %q", line, code, stdout.String(), stderr.String())
		}
	}
}

// The commands of the documents are ones that the program has, with their flags.
func TestDocuments(t *testing.T) {
	pages, err := filepath.Glob("../docs/*.md")
	testutil.Must(t, err)
	seen := 0
	for _, page := range pages {
		for line := range strings.Lines(strings.ReplaceAll(testutil.ReadFile(t, page), "\\\n", " ")) {
			line, _, _ = strings.Cut(line, " #")
			line, _, _ = strings.Cut(line, " > ")
			words := strings.Fields(line)
			if len(words) < 2 || words[0] != "neardns-controller" {
				continue
			}
			seen++
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), nil, append(words[1:], "--help"), &stdout, &stderr); code != cli.Good {
				t.Errorf("%s: %s: %s", page, line, stderr.String())
			}
		}
	}
	if seen < 4 {
		t.Errorf("%d commands found", seen)
	}
}

// TestHangupInTheFirstMoments: SIGHUP ends no command, however early it comes. The file is a FIFO, so the process still reads it when the
// signal comes, and then finds a fault in it.
func TestHangupInTheFirstMoments(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "zone.yaml")
	testutil.Must(t, unix.Mkfifo(fifo, 0o600))
	self, err := os.Executable()
	testutil.Must(t, err)
	cmd := exec.CommandContext(t.Context(), self, "zones", "check", "--file", fifo)
	cmd.Env = append(os.Environ(), asController+"=1")
	p := testutil.StartHere(t, cmd)
	opened := make(chan *os.File, 1)
	go func() {
		f, _ := os.OpenFile(fifo, os.O_WRONLY, 0) // returns when the process reads the file
		opened <- f
	}()
	select {
	case f := <-opened:
		p.Signal(unix.SIGHUP)
		_, _ = f.WriteString("kind: [")
		_ = f.Close()
		<-p.Exited()
	case <-p.Exited():
	}
	if code := cmd.ProcessState.ExitCode(); code != cli.Config || !strings.Contains(p.Output(), fifo) {
		t.Errorf("%v: %s", cmd.ProcessState, p.Output())
	}
}
