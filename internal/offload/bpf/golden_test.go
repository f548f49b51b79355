package bpf

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

// TestInstructions compares the program's length, and how many instructions the verifier processes, with the golden file. The verifier
// refuses more than a million.
func TestInstructions(t *testing.T) {
	spec, err := load(1, true)
	testutil.Must(t, err)
	golden.Check(t, "instructions", fmt.Sprintln(len(spec.Programs[objectProgNeardnsHits].Instructions)))
	testutil.RequireRoot(t)
	var objects objectObjects
	testutil.Must(t, spec.LoadAndAssign(&objects, &ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}}))
	defer objects.Close()
	found := regexp.MustCompile(`processed (\d+) insns`).FindStringSubmatch(objects.NeardnsHits.VerifierLog)
	if found == nil {
		t.Fatalf("the verifier's log: %q", objects.NeardnsHits.VerifierLog)
	}
	if n, err := strconv.Atoi(found[1]); err != nil || n > 250_000 {
		t.Errorf("the verifier looked at %d instructions (%v)", n, err)
	}
}
