//go:build !timing

package testutil

// agentNice is the priority of agents in tests that promise no time (see StartAgent).
const agentNice = -10
