package iptables

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/neardns/neardns/pkg/testutil"
)

func readLegacyIn(t *testing.T, ns *testutil.NetNS, is4 bool, table string) legacyTable {
	t.Helper()
	var out legacyTable
	var err error
	ns.Do(func() { _, out, err = readLegacy(is4, table, false) })
	testutil.Must(t, err)
	return out
}

// readLegacy returns the rules that iptables-legacy wrote.
func TestReadLegacy(t *testing.T) {
	testutil.RequireRoot(t)
	for _, tc := range []struct {
		program, dst string
		is4          bool
	}{
		{"iptables-legacy", "10.96.0.10/32", true},
		{"ip6tables-legacy", "fd00:96::a/128", false},
	} {
		t.Run(tc.program, func(t *testing.T) {
			ns := testutil.NewNS(t, "legacy")
			if got := readLegacyIn(t, ns, tc.is4, "nat"); len(got.chains) != 0 {
				t.Errorf("an unused table has the chains %v", got.chains)
			}
			ns.Do(func() {
				if used, err := legacyInUse(tc.is4, "nat"); used || err != nil {
					t.Errorf("after reading, the table is in use: %v, %v", used, err)
				}
			})
			for _, args := range [][]string{
				{"-N", "KUBE-SERVICES"},
				{"-N", "KUBE-SVC-TCOU7JCQXEZGVUNU"},
				{"-A", "PREROUTING", "-m", "comment", "--comment", "kubernetes service portals", "-j", "KUBE-SERVICES"},
				{"-A", "KUBE-SERVICES", "-d", tc.dst, "-p", "udp", "-m", "udp", "--dport", "53", "-j", "KUBE-SVC-TCOU7JCQXEZGVUNU"},
				{"-A", "KUBE-SERVICES", "!", "-d", tc.dst, "-j", "RETURN"},
				{"-A", "KUBE-SERVICES", "-p", "udp"},
				{"-A", "KUBE-SVC-TCOU7JCQXEZGVUNU", "-p", "udp", "-j", "REDIRECT", "--to-ports", "53"},
			} {
				ns.Run(slices.Concat([]string{tc.program, "-w", "-t", "nat"}, args)...)
			}
			ns.Run(tc.program, "-w", "-P", "INPUT", "DROP")
			filter := readLegacyIn(t, ns, tc.is4, "filter")
			if in, out, none := filter.policy("INPUT"), filter.policy("OUTPUT"), filter.policy("PREROUTING"); in != "DROP" || out != "ACCEPT" || none != "" {
				t.Errorf("policies %q, %q, %q", in, out, none)
			}
			got := readLegacyIn(t, ns, tc.is4, "nat")
			want := legacyTable{
				chains: []string{"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING", "KUBE-SERVICES", "KUBE-SVC-TCOU7JCQXEZGVUNU"},
				rules: []legacyRule{
					{chain: "PREROUTING", target: "KUBE-SERVICES"},
					{chain: "PREROUTING", target: "ACCEPT"},
					{chain: "INPUT", target: "ACCEPT"},
					{chain: "OUTPUT", target: "ACCEPT"},
					{chain: "POSTROUTING", target: "ACCEPT"},
					{chain: "KUBE-SERVICES", target: "KUBE-SVC-TCOU7JCQXEZGVUNU"},
					{chain: "KUBE-SERVICES", target: "RETURN"},
					{chain: "KUBE-SERVICES"},
					{chain: "KUBE-SERVICES", target: "RETURN"},
					{chain: "KUBE-SVC-TCOU7JCQXEZGVUNU", target: "REDIRECT"},
					{chain: "KUBE-SVC-TCOU7JCQXEZGVUNU", target: "RETURN"},
				},
			}
			testutil.Equal(t, "table nat", want, got,
				cmp.AllowUnexported(legacyTable{}, legacyRule{}), cmpopts.IgnoreFields(legacyRule{}, "entry"))
		})
	}
}

// parseEntries never reads past the end of a reply in an unknown form, and returns no more rules than fit into it.
func FuzzParseEntries(f *testing.F) {
	info := make([]byte, infoSize)
	f.Add(true, info, make([]byte, 200))
	f.Add(false, info, make([]byte, 200))
	f.Add(true, []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, is4 bool, info, entries []byte) {
		table, err := parseEntries(is4, info, entries)
		if err != nil {
			if !errors.Is(err, errShape) {
				t.Errorf("%v", err)
			}
			return
		}
		if least := layoutOf(is4).size + targetHead; len(table.rules) > len(entries)/least {
			t.Errorf("%d rules of %d bytes", len(table.rules), len(entries))
		}
	})
}
