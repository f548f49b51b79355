package iptables

import (
	"testing"

	"github.com/neardns/neardns/pkg/testutil/trace"
)

// traced is this back end in the form that the tracer needs, on a kernel that has xt_rpfilter.
var traced = trace.Backend{
	Name: "iptables",
	Host: func(a trace.Arrangement) trace.Program { return program(hosts(a.Host, true)) },
	Pod:  func(a trace.Arrangement) trace.Program { return program(pods(a.Pod)) },
}

// Where each packet of the list goes (pkg/testutil/trace/cases.md).
func TestTrace(t *testing.T) { traced.Check(t) }

// Without any one rule, some case of the list fails.
func TestTraceShowsEachRule(t *testing.T) {
	beside := "the next rules, which give back what comes from beside, have none for a Service's address either"
	traced.CheckRules(t, map[string]string{
		"mangle NEARDNS-TURN: -i neardns-turn0 -j RETURN":         "no connection that comes back by this end bears the mark",
		"nat NODE-LOCAL-DNS: -d 10.96.0.10/32 -i eth0 -j RETURN":  beside,
		"nat NODE-LOCAL-DNS: -d fd00:96::a/128 -i eth0 -j RETURN": beside,
	})
}
