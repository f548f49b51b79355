//go:build timing

package testutil

// agentNice leaves agents the priority of all other programs: what is measured is compared with those.
const agentNice = 0
