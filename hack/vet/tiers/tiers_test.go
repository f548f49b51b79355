package tiers

import (
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"
)

// withoutFacts takes the reports of facts for granted: the diagnostics show what they are good for.
type withoutFacts struct{ *testing.T }

func (t withoutFacts) Errorf(format string, args ...any) {
	if !strings.Contains(format, "unexpected %s") || len(args) < 2 || args[1] != "fact" {
		t.T.Errorf(format, args...)
	}
}

func TestAnalyzer(t *testing.T) {
	t.Setenv("GOFLAGS", "-tags=timing")
	analysistest.Run(withoutFacts{t}, analysistest.TestData(), Analyzer, "a")
}
