package iptables

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

func addresses() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("169.254.20.11"), netip.MustParseAddr("fd00:90de:d95::b")}
}

func TestAcceptRules(t *testing.T) {
	got := acceptRules("OUTPUT", addresses()[:1])
	want := [][]string{
		{"-s", "169.254.20.10/32", "-p", "udp", "-m", "udp", "--sport", "53", "-j", "ACCEPT"},
		{"-s", "169.254.20.10/32", "-p", "tcp", "-m", "tcp", "--sport", "53", "-j", "ACCEPT"},
	}
	testutil.Equal(t, "rules", want, got)
}

// TestEnsureAccepts, with both variants of iptables: without a DROP policy EnsureAccepts adds nothing, with one it adds the chains, also
// after a flush, and never touches other programs' rules.
func TestEnsureAccepts(t *testing.T) {
	testutil.RequireRoot(t)
	for _, kind := range []string{"nft", "legacy"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			ns := testutil.NewNS(t, "accept")
			legacy := kind == "legacy"
			ensure := func() (mended string) {
				t.Helper()
				var err error
				ns.Do(func() { mended, err = EnsureAccepts(addresses(), legacy) })
				testutil.Check(t, err)
				return mended
			}
			save := func() (out []string) {
				for _, program := range []string{"iptables-" + kind, "ip6tables-" + kind} {
					for line := range strings.Lines(ns.Run(program, "-S")) {
						out = append(out, strings.TrimSpace(line))
					}
				}
				return out
			}
			testutil.Equal(t, "added without a need", "", ensure())
			ns.Run("iptables-"+kind, "-A", "INPUT", "-i", "lo", "-j", "ACCEPT")
			ns.Run("ip6tables-"+kind, "-P", "OUTPUT", "DROP")
			before := save()
			ns.Run("iptables-"+kind, "-P", "INPUT", "DROP")
			got := ensure()
			if !strings.Contains(got, "INPUT") || !strings.Contains(got, "ip6tables") {
				t.Errorf("mended: %q", got)
			}
			rules := save()
			for _, line := range []string{
				"-A INPUT -j NEARDNS-INPUT", "-A NEARDNS-INPUT -d 169.254.20.11/32 -p udp -m udp --dport 53 -j ACCEPT",
				"-A OUTPUT -j NEARDNS-OUTPUT", "-A NEARDNS-OUTPUT -s fd00:90de:d95::b/128 -p tcp -m tcp --sport 53 -j ACCEPT",
			} {
				if !slices.Contains(rules, line) {
					t.Errorf("no rule %q in\n%s", line, strings.Join(rules, "\n"))
				}
			}
			if slices.Index(rules, "-A INPUT -j NEARDNS-INPUT") > slices.Index(rules, "-A INPUT -i lo -j ACCEPT") {
				t.Error("the jump is not the first rule")
			}
			testutil.Equal(t, "repaired what is right", "", ensure())
			verify := func(wantKept, wantLacking int) {
				t.Helper()
				ns.Do(func() {
					kept, lacking, err := VerifyAccepts(addresses())
					if err != nil || len(kept) != wantKept || len(lacking) != wantLacking {
						t.Errorf("kept %v, lacking %v, %v; want %d and %d", kept, lacking, err, wantKept, wantLacking)
					}
				})
			}
			verify(2, 0)
			ns.Run("iptables-"+kind, "-F")
			verify(1, 1)
			if got := ensure(); got == "" {
				t.Error("a flush was not seen")
			}
			ns.Run("iptables-"+kind, "-I", "INPUT", "2", "-i", "lo", "-j", "ACCEPT")
			ns.Run("iptables-"+kind, "-D", "NEARDNS-INPUT", "1")
			ensure()
			testutil.Equal(t, "after repairs", rules, save())
			for range 2 {
				ns.Do(func() { testutil.Check(t, RemoveAccepts()) })
			}
			ns.Run("iptables-"+kind, "-P", "INPUT", "ACCEPT")
			testutil.Equal(t, "left behind", before, save())
		})
	}
}

func TestAcceptNoProgram(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "accept")
	ns.Run("iptables-nft", "-P", "INPUT", "DROP")
	t.Setenv("PATH", t.TempDir())
	ns.Do(func() {
		_, err := EnsureAccepts(addresses(), false)
		testutil.WantError(t, err, "accept udp and tcp port 53 for 169.254.20.10, 169.254.20.11 there yourself")
	})
}

// Without the programs, RemoveAccepts does not succeed if there are chains; if there are none, it is no error.
func TestRemoveAcceptsWithoutPrograms(t *testing.T) {
	testutil.RequireRoot(t)
	for _, kind := range []string{"nft", "legacy"} {
		ns := testutil.NewNS(t, "accept")
		ns.Run("iptables-"+kind, "-P", "INPUT", "DROP")
		remove := func() (err error) {
			ns.Do(func() { err = RemoveAccepts() })
			return err
		}
		testutil.Check(t, remove(), kind, "no chain of neardns")
		ns.Do(func() {
			_, err := EnsureAccepts(addresses(), true)
			testutil.Check(t, err)
		})
		path := os.Getenv("PATH")
		t.Setenv("PATH", t.TempDir())
		testutil.Equal(t, "missing", []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"}, MissingPrograms())
		testutil.WantError(t, remove(), "iptables-"+kind+" is not installed on this node")
		t.Setenv("PATH", path)
		testutil.Equal(t, "missing", nil, MissingPrograms())
		testutil.Check(t, remove(), kind)
		if got := ns.Run("iptables-"+kind, "-S"); strings.Contains(got, "NEARDNS") {
			t.Errorf("%s: %s", kind, got)
		}
	}
}
