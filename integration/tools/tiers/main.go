// Command tiers holds the rules of the test tiers (CONTRIBUTING.md, "Tests"). It is a tool of `go vet -vettool`.
//
// A test belongs to the timing tier if its file has the build tag "timing", to the kernel tier if it reaches
// testutil.RequireRoot, and to the unit tier otherwise. The analyzer follows each test through the test code that it refers to,
// across packages, and reports a test that reads the real clock where its tier forbids it.
package main

import (
	"golang.org/x/tools/go/analysis/unitchecker"

	"github.com/neardns/neardns/integration/tools/tiers/rules"
)

func main() { unitchecker.Main(rules.Analyzer) }
