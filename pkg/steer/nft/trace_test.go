package nft_test

import (
	"fmt"
	"testing"

	"github.com/google/nftables/expr"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/rig"
	"github.com/neardns/neardns/pkg/testutil/trace"
)

// traced is this back end in the form that the tracer needs.
var traced = trace.Backend{
	Name: "nftables",
	Host: func(a trace.Arrangement) trace.Program { return program{nft.Traced(a.Host)} },
	Pod:  func(a trace.Arrangement) trace.Program { return program{nft.Traced(a.Pod)} },
}

// Where each packet of the list goes (pkg/testutil/trace/cases.md).
func TestTrace(t *testing.T) { traced.Check(t) }

// Without any one rule, some case of the list fails. The exceptions are rules that do what another rule does as well.
func TestTraceShowsEachRule(t *testing.T) {
	unseen := map[string]string{
		"ask1: goto steer1":                            "no set is ever full here",
		"direct1: tcp flags syn / syn,ack goto steer1": "no set is ever full here",
	}
	for _, f := range []struct {
		is4        bool
		suffix, ip string
		zone       int
	}{{true, "4", "ip", 28260}, {false, "6", "ip6", 28262}} {
		for _, transparent := range []int{0, 1} {
			unseen[fmt.Sprintf("tcp%s: %s daddr @lease_tcp%[1]s socket transparent %[3]d notrack accept", f.suffix, f.ip, transparent)] =
				"each renewal sets the drain too, which lasts longer"
		}
		for _, hook := range []string{"input", "postrouting"} {
			for _, proto := range []string{"udp", "tcp"} {
				key := fmt.Sprintf("%s: %s sport 53 %s saddr %s ct direction reply ct original zone %d %[3]s saddr set %[4]s",
					hook, proto, f.ip, trace.Address("cluster", f.is4), f.zone)
				unseen[key] = "an address on the link that is its own fallback is written over itself"
			}
		}
	}
	traced.CheckRules(t, unseen)
}

// An expression that the tracer does not know is an error, and never a rule that does not match.
func TestTraceKnowsNoMore(t *testing.T) {
	a := trace.Arrangements()[0]
	cases, err := trace.Cases()
	testutil.Must(t, err)
	for _, e := range []expr.Any{
		&expr.Counter{}, &expr.Reject{},
		&expr.Meta{Key: expr.MetaKeyCPU, Register: 1}, &expr.Socket{Key: expr.SocketKeyMark, Register: 1},
		&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: []byte{1}}, &expr.Fib{Register: 1, ResultADDRTYPE: true, FlagSADDR: true},
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1}, &expr.Verdict{Kind: expr.VerdictJump, Chain: "dns4"},
		&expr.Lookup{SourceRegister: 1, SetName: "no set"},
		&expr.Payload{OperationType: expr.PayloadLoad, Base: expr.PayloadBaseLLHeader, Len: 1, DestRegister: 1},
	} {
		table := nft.Traced(a.Host)
		for i, c := range table.Chains {
			if c.Name == "prerouting" {
				table.Chains[i].Rules = append([]nft.TracedRule{{Text: "strange", Ops: []nft.TracedOp{{Expr: e}}}}, c.Rules...)
			}
		}
		if got, err := cases[0].Run(program{table}, "", true); err == nil {
			t.Errorf("%T is passed over: %s", e, got)
		}
	}
}

// The kernel does what the tracer expects of it.
func TestTraceOnTheKernel(t *testing.T) {
	testutil.RequireRoot(t)
	traced.CheckKernel(t, func(t *testing.T, a trace.Arrangement) trace.Kernel {
		r := newRig(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.IPTables, Attach: testutil.PTP}, func(h *steer.Host) {
			uplinks := h.Uplinks
			*h = a.Host
			h.Uplinks, h.Lifetime, h.Secret = uplinks, rig.Forever, testSecret
		})
		for _, dns := range r.Node.KubeDNSAddrs() {
			r.Node.Proxy.Add(testutil.DNSService(trace.Address("second", dns.Is4()), dns)...)
		}
		r.Addresses()
		return trace.Kernel{Node: r.Node, Steered: r.Steered("steered"), Plain: r.Pod("plain"), Lease: r.Lease}
	})
}
