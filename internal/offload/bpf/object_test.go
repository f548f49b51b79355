package bpf

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestObject compiles the program: the committed object and types equal the result.
func TestObject(t *testing.T) {
	if _, err := exec.LookPath("clang-14"); err != nil {
		t.Skip("needs clang-14")
	}
	source, err := os.ReadFile("gen.go")
	testutil.Must(t, err)
	_, command, ok := strings.Cut(string(source), "//go:generate go ")
	if !ok {
		t.Fatal("gen.go has no command")
	}
	machine, err := exec.CommandContext(t.Context(), "uname", "-m").Output()
	testutil.Must(t, err)
	dir := t.TempDir()
	command = strings.Replace(strings.TrimSpace(command), "bpf2go ", "bpf2go -output-dir "+dir+" ", 1)
	cmd := exec.CommandContext(t.Context(), "go", strings.Fields(command)...)
	cmd.Env = append(os.Environ(), "GOPACKAGE=bpf", "BPF2GO_CFLAGS=-I/usr/include/"+strings.TrimSpace(string(machine))+"-linux-gnu")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"object_bpfel.o", "object_bpfel.go"} {
		here, err := os.ReadFile(name)
		testutil.Must(t, err)
		made, err := os.ReadFile(filepath.Join(dir, name))
		testutil.Must(t, err)
		if !bytes.Equal(here, made) {
			t.Errorf("%s is not what hits.bpf.c gives: make bpf", name)
		}
	}
}
