package tiers

import (
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"
)

// withoutFacts ignores the errors about unexpected facts: only diagnostics are tested.
type withoutFacts struct{ *testing.T }

func (t withoutFacts) Errorf(format string, args ...any) {
	if !strings.Contains(format, "unexpected %s") || len(args) < 2 || args[1] != "fact" {
		t.T.Errorf(format, args...)
	}
}

func TestAnalyzer(t *testing.T) {
	t.Setenv("GOFLAGS", "-tags=timing")
	analysistest.Run(withoutFacts{t}, analysistest.TestData(), Analyzer, "a", "github.com/neardns/neardns/integration/controlplane")
}
