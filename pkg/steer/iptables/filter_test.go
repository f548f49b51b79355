package iptables

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
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
				ns.Do(func() {
					var err error
					if mended, err = EnsureAccepts(addresses(), legacy); err != nil {
						t.Error(err)
					}
				})
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
			if got := ensure(); got != "" {
				t.Errorf("added without a need: %s", got)
			}
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
			if got := ensure(); got != "" {
				t.Errorf("mended what is right: %s", got)
			}
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
			if diff := cmp.Diff(rules, save()); diff != "" {
				t.Errorf("after repairs (-want +got):\n%s", diff)
			}
			ns.Do(func() {
				for range 2 {
					if err := RemoveAccepts(); err != nil {
						t.Error(err)
					}
				}
			})
			ns.Run("iptables-"+kind, "-P", "INPUT", "ACCEPT")
			if diff := cmp.Diff(before, save()); diff != "" {
				t.Errorf("left behind (-want +got):\n%s", diff)
			}
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
		if err == nil || !strings.Contains(err.Error(), "accept udp and tcp port 53 for 169.254.20.10, 169.254.20.11 there yourself") {
			t.Errorf("without a program: %v", err)
		}
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
		if err := remove(); err != nil {
			t.Errorf("%s, nothing of ours there: %v", kind, err)
		}
		ns.Do(func() {
			if _, err := EnsureAccepts(addresses(), true); err != nil {
				t.Error(err)
			}
		})
		path := os.Getenv("PATH")
		t.Setenv("PATH", t.TempDir())
		if got, want := MissingPrograms(), []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"}; !slices.Equal(got, want) {
			t.Errorf("missing are %v, want %v", got, want)
		}
		if err := remove(); err == nil || !strings.Contains(err.Error(), "iptables-"+kind+" is not installed on this node") {
			t.Errorf("%s, without its program: %v", kind, err)
		}
		t.Setenv("PATH", path)
		if got := MissingPrograms(); len(got) > 0 {
			t.Errorf("missing are %v", got)
		}
		if err := remove(); err != nil {
			t.Error(err)
		}
		if got := ns.Run("iptables-"+kind, "-S"); strings.Contains(got, "NEARDNS") {
			t.Errorf("%s: %s", kind, got)
		}
	}
}
