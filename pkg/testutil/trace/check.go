package trace

import (
	"maps"
	"slices"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// Backend has a back end's column in the list, and its rules for each arrangement.
type Backend struct {
	Name string
	Host func(Arrangement) Program
	Pod  func(Arrangement) Program
}

// programs has the rules of each arrangement, each rendered once.
type programs map[string]Program

func (b Backend) programs() programs {
	out := programs{}
	for _, a := range Arrangements() {
		if b.Name == "nftables" || a.Iptables {
			out[a.Name] = b.Host(a)
			if len(a.Pod.Redirects) > 0 {
				out["pod "+a.Name] = b.Pod(a)
			}
		}
	}
	return out
}

// place returns the key in programs of a case's rules.
func (c Case) place() string {
	if c.OfPod() {
		return "pod " + c.Arrangement.Name
	}
	return c.Arrangement.Name
}

var families = map[bool]string{true: "IPv4", false: "IPv6"}

// Check traces all cases, each in both IP families, and fails the test if a result differs from the list.
func (b Backend) Check(t *testing.T) {
	t.Helper()
	cases, err := Cases()
	testutil.Must(t, err)
	programs, tried := b.programs(), 0
	for _, c := range cases {
		want, there := c.Want(b.Name)
		if !there {
			continue
		}
		tried++
		for is4, family := range families {
			got, err := c.Run(programs[c.place()], "", is4)
			if err != nil {
				t.Errorf("%s, %s: %v", c, family, err)
			} else if got != want {
				t.Errorf("%s, %s:\n got %s\nwant %s", c, family, got, want)
			}
		}
	}
	if t.Logf("%d cases in both families", tried); tried < 60 {
		t.Errorf("only %d cases", tried)
	}
}

// CheckRules leaves out each rule in turn, and fails the test unless the result of a case changes. unseen has the rules for which none
// changes, each with the reason.
func (b Backend) CheckRules(t *testing.T, unseen map[string]string) {
	t.Helper()
	cases, err := Cases()
	testutil.Must(t, err)
	// Leaving out a rule can change only those cases whose packets met the rule's conditions. So few cases are traced for each rule.
	type family struct {
		c   Case
		is4 bool
	}
	rules := map[string][]family{}
	programs := b.programs()
	for _, p := range programs {
		for _, key := range p.Keys() {
			rules[key] = nil
		}
	}
	for _, c := range cases {
		if _, there := c.Want(b.Name); !there {
			continue
		}
		for is4 := range families {
			took := map[string]bool{}
			if _, err := c.run(programs[c.place()], "", is4, took); err != nil {
				t.Fatalf("%s: %v", c, err)
			}
			for key := range took {
				rules[key] = append(rules[key], family{c, is4})
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(rules)) {
		seen := slices.ContainsFunc(rules[key], func(f family) bool {
			want, _ := f.c.Want(b.Name)
			got, err := f.c.Run(programs[f.c.place()], key, f.is4)
			return err != nil || got != want
		})
		reason, listed := unseen[key]
		switch {
		case seen && listed:
			t.Errorf("a case shows %q, which is listed as one that none shows (%s)", key, reason)
		case !seen && !listed:
			t.Errorf("no case shows %q", key)
		}
	}
	for key := range unseen {
		if _, ok := rules[key]; !ok {
			t.Errorf("%q is listed, and there is no such rule", key)
		}
	}
	t.Logf("%d rules, %d of them shown by no case", len(rules), len(unseen))
}
