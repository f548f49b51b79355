package nft

import (
	"time"

	"github.com/google/nftables/expr"

	"github.com/neardns/neardns/pkg/steer"
)

// This file exports tables for the tracer.

// TracedTable is a rendered table.
type TracedTable struct {
	Sets   []TracedSet
	Chains []TracedChain
}

// TracedSet is a set or map.
type TracedSet struct {
	Name    string
	Key     uint32 // length in bytes, each part rounded up to whole registers of 4
	Timeout time.Duration
	Size    uint32
	// Elements maps keys to values; in a set the values are empty.
	Elements map[string]string
}

// TracedChain is a chain; Kind is "" if it is no base chain.
type TracedChain struct {
	Name, Kind string
	Hook       uint32
	Priority   int32
	Rules      []TracedRule
}

// TracedRule is a rule.
type TracedRule struct {
	Text string
	Ops  []TracedOp
}

// TracedOp is an expression, or one of the two on a connection's zone where Expr is nil.
type TracedOp struct {
	Expr    expr.Any
	SetZone bool
}

// Traced renders a description.
func Traced(rs steer.Ruleset) TracedTable {
	t := render(rs)
	var out TracedTable
	for _, s := range t.sets {
		traced := TracedSet{Name: s.name, Timeout: s.timeout, Size: s.size, Elements: map[string]string{}}
		for _, k := range s.key {
			traced.Key += (k.Bytes + 3) &^ 3 // each part begins a register
		}
		for _, e := range s.elements {
			traced.Elements[string(e.key)] = string(e.value)
		}
		out.Sets = append(out.Sets, traced)
	}
	for _, c := range t.chains {
		traced := TracedChain{Name: c.name}
		if c.hook != nil {
			traced.Kind, traced.Hook, traced.Priority = c.hook.kind, c.hook.num, c.hook.priority
		}
		for _, r := range c.rules {
			rule := TracedRule{Text: r.text()}
			for _, o := range r.ops {
				rule.Ops = append(rule.Ops, TracedOp{Expr: o.expr, SetZone: o.zone == zoneSet})
			}
			traced.Rules = append(traced.Rules, rule)
		}
		out.Chains = append(out.Chains, traced)
	}
	return out
}
