// Command vet is this repository's tool for `go vet -vettool`: package tiers holds tests to the rules of their tier, package messages
// reads the texts of log lines, errors and flags.
package main

import (
	"golang.org/x/tools/go/analysis/unitchecker"

	"github.com/neardns/neardns/hack/vet/messages"
	"github.com/neardns/neardns/hack/vet/tiers"
)

func main() { unitchecker.Main(tiers.Analyzer, messages.Analyzer) }
