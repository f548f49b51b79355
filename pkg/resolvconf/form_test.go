package resolvconf

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/neardns/neardns/pkg/testutil"
)

func settings(nameservers, searches, options string) Settings {
	return Settings{strings.Fields(nameservers), strings.Fields(searches), strings.Fields(options)}
}

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func codes(notes []Note) []Code {
	var out []Code
	for _, n := range notes {
		out = append(out, n.Code)
	}
	return out
}

// plain returns a typical node.
func plain() Node {
	return Node{
		Host:          settings("10.1.1.10 10.1.1.11", "corp.example", "ndots:1 rotate timeout:2"),
		ClusterDNS:    addrs("10.96.0.10", "fd00::a"),
		ClusterDomain: "cluster.local",
	}
}

// TestOwn checks the settings without an overlay, which the kubelet computes too; integration/kubelet-dns compares with the kubelet itself.
func TestOwn(t *testing.T) {
	const cluster = "ns1.svc.cluster.local svc.cluster.local cluster.local"
	for name, c := range map[string]struct {
		node   func(*Node)
		policy Policy
		want   Settings
	}{
		"Default":                         {policy: Default, want: settings("10.1.1.10 10.1.1.11", "corp.example", "ndots:1 rotate timeout:2")},
		"ClusterFirst":                    {policy: ClusterFirst, want: settings("10.96.0.10 fd00::a", cluster+" corp.example", "ndots:5")},
		"ClusterFirstWithHostNet":         {policy: ClusterFirstWithHostNet, want: settings("10.96.0.10 fd00::a", cluster+" corp.example", "ndots:5")},
		"None":                            {policy: None},
		"an IPv4 address written as IPv6": {node: func(n *Node) { n.ClusterDNS = addrs("::ffff:10.96.0.10") }, policy: ClusterFirst, want: settings("10.96.0.10", cluster+" corp.example", "ndots:5")},
		"the node searches the cluster":   {node: func(n *Node) { n.Host.Searches = []string{"cluster.local", "a", "a"} }, policy: ClusterFirst, want: settings("10.96.0.10 fd00::a", cluster+" a", "ndots:5")},
		"duplicates":                      {node: func(n *Node) { n.Host = settings("1.1.1.1 1.1.1.1", "a a", "x:") }, policy: Default, want: settings("1.1.1.1 1.1.1.1", "a a", "x:")},
		"too many nameservers":            {node: func(n *Node) { n.ClusterDNS = addrs("1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4") }, policy: ClusterFirst, want: settings("1.1.1.1 2.2.2.2 3.3.3.3", cluster+" corp.example", "ndots:5")},
	} {
		t.Run(name, func(t *testing.T) {
			n := plain()
			if c.node != nil {
				c.node(&n)
			}
			testutil.Equal(t, "settings", c.want, n.Settings(c.policy, "ns1"), cmpopts.EquateEmpty())
		})
	}
}

// domains returns n search domains of the same length.
func domains(n, length int) string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("%0*d", length, i))
	}
	return strings.Join(out, " ")
}

func TestLimits(t *testing.T) {
	long := strings.Repeat("x", 254)
	for name, c := range map[string]struct {
		have     Settings
		want     Settings
		wantNote string
	}{
		"within":                {settings("1 2 3", domains(32, 63), ""), settings("1 2 3", domains(32, 63), ""), ""},
		"nameservers":           {settings("1 2 3 4 5", "", ""), settings("1 2 3", "", ""), `3 of 5 nameservers are within the limit; beyond it: "4", "5"`},
		"domains":               {settings("", domains(37, 2), ""), settings("", domains(32, 2), ""), `32 of 37 search domains are within the limits (32 domains, 2048 characters in all, 253 each); beyond them: "32", "33", "34", and 2 more`},
		"2048 characters":       {settings("", domains(8, 253)+" "+domains(1, 16), ""), settings("", domains(8, 253)+" "+domains(1, 16), ""), ""},
		"2049 characters":       {settings("", domains(8, 253)+" "+domains(1, 17), ""), settings("", domains(8, 253), ""), `8 of 9 search domains are within the limits (32 domains, 2048 characters in all, 253 each); beyond them: "00000000000000000"`},
		"253 characters each":   {settings("", "a "+long+" b", ""), settings("", "a b", ""), ""},
		"the count comes first": {settings("", long+" "+domains(32, 2), ""), settings("", domains(31, 2), ""), ""},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.have.clone()
			got, notes := c.have.fit()
			testutil.Equal(t, "what fits", c.want, got, cmpopts.EquateEmpty())
			if changed := !cmp.Equal(c.have, got, cmpopts.EquateEmpty()); changed != (len(notes) > 0) {
				t.Errorf("changed %v, notes %v", changed, notes)
			}
			if c.wantNote != "" && (len(notes) != 1 || notes[0].Text != c.wantNote) {
				t.Errorf("notes %v", notes)
			}
			if again, notes := got.fit(); len(notes) > 0 || !cmp.Equal(again, got, cmpopts.EquateEmpty()) {
				t.Errorf("what fits does not: %v", notes)
			}
			testutil.Equal(t, "the argument", before, c.have)
		})
	}
}

func TestOverlay(t *testing.T) {
	const cluster = "ns1.svc.cluster.local svc.cluster.local cluster.local corp.example"
	usual := settings("10.96.0.10 fd00::a", cluster, "ndots:5")
	for name, c := range map[string]struct {
		own     Settings // usual, where it is empty
		overlay Overlay
		want    Settings // usual, where it is empty
		refused string
		notes   []Code
	}{
		"nothing":        {},
		"ndots":          {overlay: Overlay{Settings: settings("", "", "ndots:1")}, want: settings("10.96.0.10 fd00::a", cluster, "ndots:1")},
		"over dnsConfig": {own: settings("10.96.0.10", cluster, "ndots:2 edns0"), overlay: Overlay{Settings: settings("", "", "trust-ad ndots:1 rotate:")}, want: settings("10.96.0.10", cluster, "ndots:1 edns0 trust-ad rotate")},
		"a nameserver and a domain": {overlay: Overlay{Settings: settings("fd00::a 9.9.9.9", "svc.cluster.local x", "")},
			want: settings("10.96.0.10 fd00::a 9.9.9.9", cluster+" x", "ndots:5")},
		"cut": {overlay: Overlay{Settings: settings("9.9.9.9 8.8.8.8", "", "ndots:1")}, want: settings("10.96.0.10 fd00::a 9.9.9.9", cluster, "ndots:1"),
			notes: []Code{NameserversCut}},
		"duplicates":                 {own: settings("1.1.1.1 1.1.1.1", "a a", "x:"), want: settings("1.1.1.1", "a", "x"), notes: []Code{UnknownOption}},
		"a policy with all":          {own: settings("1.1.1.1", "c", "edns0"), overlay: Overlay{Policy: None, Settings: settings("9.9.9.9", "x", "ndots:1")}, want: settings("9.9.9.9", "x", "ndots:1")},
		"the policy Default":         {own: settings("1.1.1.1 2.2.2.2", "c", "edns0"), overlay: Overlay{Policy: Default, Settings: settings("", "", "ndots:2")}, want: settings("10.1.1.10 10.1.1.11", "corp.example", "ndots:2 rotate timeout:2")},
		"the policy ClusterFirst":    {own: settings("1.1.1.1", "", ""), overlay: Overlay{Policy: ClusterFirst}},
		"no nameserver left":         {overlay: Overlay{Policy: None, Settings: settings("", "x", "")}, refused: "overlay dropped: nameservers: it leaves the pod without any: name one, or another policy"},
		"none before and none after": {own: settings("", "y", ""), overlay: Overlay{Settings: settings("", "x", "ndots:1")}, want: settings("", "y x", "ndots:1")},
	} {
		t.Run(name, func(t *testing.T) {
			if cmp.Equal(c.own, Settings{}) {
				c.own = usual
			}
			if cmp.Equal(c.want, Settings{}) && c.refused == "" {
				c.want = usual
			}
			r, err := c.overlay.Spell(plain(), "ns1").Apply(c.own)
			testutil.Equal(t, "settings", c.want, r.Settings, cmpopts.EquateEmpty())
			testutil.Equal(t, "refused", c.refused, errText(err))
			testutil.Equal(t, "notes", c.notes, codes(r.Notes))
		})
	}
}

// TestArguments checks that Settings and Apply change no argument, and that their results share no memory with one.
func TestArguments(t *testing.T) {
	arguments := func() (Node, Settings, Overlay) {
		n := plain()
		n.Host.Searches = append(n.Host.Searches, strings.Fields(domains(40, 60)+" "+strings.Repeat("y", 300))...)
		return n, settings("1.1.1.1 2.2.2.2", "a", "ndots:2"), Overlay{Settings: settings("3.3.3.3", "b", "ndots:3 edns0")}
	}
	n, own, o := arguments()
	for range 2 {
		r, err := o.Apply(own)
		testutil.Must(t, err)
		host := n.Settings(Default, "ns1")
		for _, list := range [][]string{r.Nameservers, r.Searches, r.Options, host.Nameservers, host.Searches, host.Options} {
			for i := range list {
				list[i] = "mine"
			}
		}
	}
	wantN, wantOwn, wantO := arguments()
	testutil.Equal(t, "the arguments", []any{wantN, wantOwn, wantO}, []any{n, own, o})
}

func TestLint(t *testing.T) {
	// 247 characters; with "search " and the line end, 255.
	fits := domains(4, 60) + " abc"
	for name, c := range map[string]struct {
		have Settings
		want []Note
	}{
		"all that is known": {have: settings("", "", "ndots:15 timeout:30 attempts:5 debug rotate no-check-names inet6 ip6-bytestring ip6-dotint no-ip6-dotint edns0 single-request single-request-reopen no-tld-query use-vc no-reload trust-ad no-aaaa")},
		"unknown":           {have: settings("", "", "ndot:5 Rotate"), want: []Note{{UnknownOption, `option "ndot:5" is known to no resolver and has no effect`}, {UnknownOption, `option "Rotate" is known to no resolver and has no effect`}}},
		"values": {have: settings("", "", "ndots timeout: attempts:-1 ndots:1.5 ndots:16 rotate:1"), want: []Note{
			{OptionValue, `option "ndots" needs a number behind the colon and has no effect as it is`},
			{OptionValue, `option "timeout:" needs a number behind the colon and has no effect as it is`},
			{OptionValue, `option "attempts:-1" needs a number behind the colon and has no effect as it is`},
			{OptionValue, `option "ndots:1.5" needs a number behind the colon and has no effect as it is`},
			{OptionValue, `option "ndots:16" is taken as ndots:15`},
			{OptionValue, `option "rotate:1" is written without a value`},
		}},
		"the longest line that musl reads": {have: settings("", fits, "")},
		"one that it ignores":              {have: settings("", fits+"d", ""), want: []Note{{LongLine, "the search line has 256 characters: musl (Alpine) ignores one of more than 255, as if it were not there"}}},
		"not more than a few": {have: settings("", "", strings.Repeat("x ", 10)), want: append(slices.Repeat([]Note{{UnknownOption, `option "x" is known to no resolver and has no effect`}}, 8),
			Note{UnknownOption, "and 2 more options, which were not looked at"})},
		"options too": {have: settings("", "", "ndots:5"+strings.Repeat(" rotate", 36)), want: []Note{{LongLine, "the options line has 268 characters: musl (Alpine) ignores one of more than 255, as if it were not there"}}},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Equal(t, "notes", c.want, c.have.lint())
		})
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]Policy{"Default": Default, "ClusterFirst": ClusterFirst, "ClusterFirstWithHostNet": ClusterFirstWithHostNet, "None": None, "Custom": None, "": "", "default": ""} {
		if got, err := ParsePolicy(name); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
}

// FuzzApply checks for any settings and overlay that the overlay never removes the last nameserver, and keeps to the limits.
func FuzzApply(f *testing.F) {
	f.Add("nameserver 1.1.1.1\nsearch a", "1.1.1.1", "a b", "ndots:2", "", "9.9.9.9", "x", "ndots:1")
	f.Add("options ndots:2", "", "", "", "None", "9.9.9.9 8.8.8.8 7.7.7.7 6.6.6.6", strings.Repeat("a.b ", 40), "edns0")
	f.Fuzz(func(t *testing.T, file, nameservers, searches, options, policy, oNameservers, oSearches, oOptions string) {
		n := plain()
		if host, err := Parse([]byte(file)).Host(); err == nil {
			n.Host = host
		}
		own := settings(nameservers, searches, options)
		o := Overlay{Policy: Policy(policy), Settings: settings(oNameservers, oSearches, oOptions)}.Spell(n, "ns1")
		r, err := o.Apply(own)
		if err == nil && len(own.Nameservers) > 0 && len(r.Nameservers) == 0 {
			t.Fatalf("the overlay took the last nameserver: %+v", r)
		}
		if _, cut := r.fit(); len(cut) > 0 {
			t.Fatalf("%v of %+v", cut, r)
		}
		if again, _ := o.Apply(own); !cmp.Equal(r, again) { // the result must not depend on a map's order
			t.Fatal("not the same twice")
		}
	})
}

// Applying two overlays one after the other gives the same as applying their Over.
func TestOverAndSpell(t *testing.T) {
	node := Node{Host: settings("192.0.2.1", "corp.example", "timeout:3"), ClusterDNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, ClusterDomain: "cluster.local",
		Locals: map[string]string{"10.96.0.10": "169.254.20.10"}}
	own := settings("10.96.0.10", "shop.svc.cluster.local svc.cluster.local", "ndots:5")
	overlays := []Overlay{
		{}, {Settings: settings("", "", "ndots:1 edns0")}, {Settings: settings("1.1.1.1", "a.example svc.cluster.local", "")},
		{Policy: None, Settings: settings("9.9.9.9", "", "ndots:2")}, {Settings: settings("local", "", "ndots:3")},
		{Policy: ClusterFirst, Settings: settings("1.1.1.1 local", "", "")}, {Policy: Default}, {Policy: ClusterFirst, Settings: settings("", "z.example", "ndots:2")},
	}
	apply := func(own Settings, o Overlay) Settings {
		r, err := o.Apply(own)
		testutil.Must(t, err)
		return r.Settings
	}
	for i, below := range overlays {
		below = below.Spell(node, "shop")
		first := apply(own, below)
		for j, above := range overlays {
			above = above.Spell(node, "shop")
			both := above.Over(below)
			if both.Policy != "" && both.Policy != None {
				t.Errorf("%d over %d: policy %s", j, i, both.Policy)
			}
			testutil.Equal(t, fmt.Sprintf("%d over %d", j, i), apply(first, above), apply(own, both))
		}
	}
}

// TestLocal checks that the word Local replaces each cluster DNS address by the local address, and no other nameserver.
func TestLocal(t *testing.T) {
	node := Node{ClusterDNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, ClusterDomain: "c.l",
		Locals: map[string]string{"10.96.0.10": "169.254.20.10", "fd00:96::a": "fd00:90de:d95::a"}}
	own := settings("9.9.9.9 10.96.0.10 fd00:0096:0::a", "a.example", "ndots:5")
	for text, want := range map[string]Settings{
		`{"nameservers": "local"}`:                                   settings("9.9.9.9 169.254.20.10 fd00:90de:d95::a", "a.example", "ndots:5"),
		`{"nameservers": ["local"], "options": ["ndots:1"]}`:         settings("9.9.9.9 169.254.20.10 fd00:90de:d95::a", "a.example", "ndots:1"),
		`{"nameservers": ["1.1.1.1", "local"]}`:                      settings("9.9.9.9 169.254.20.10 fd00:90de:d95::a", "a.example", "ndots:5"),
		`{"policy": "ClusterFirst", "nameservers": "local"}`:         settings("169.254.20.10", "shop.svc.c.l svc.c.l c.l", "ndots:5"),
		`{"policy": "None", "nameservers": ["local", "10.96.0.10"]}`: settings("169.254.20.10", "", ""),
		`{"policy": "None", "nameservers": ["local", "192.0.2.1"]}`:  settings("169.254.20.10 192.0.2.1", "", ""),
		`{"nameservers": ["10.96.0.10"]}`:                            own,
	} {
		o, err := decode(text)
		testutil.Must(t, err)
		settings := own
		for _, times := range []string{"once", "twice"} {
			r, err := o.Spell(node, "shop").Apply(settings)
			testutil.Must(t, err)
			testutil.Equal(t, text+" "+times, want, r.Settings, cmpopts.EquateEmpty())
			settings = r.Settings
		}
	}
	// Without a local address, the word adds no nameserver.
	if o := (Overlay{Settings: settings("local", "", "")}).Spell(Node{}, "shop"); len(o.Nameservers)+len(o.Instead) > 0 {
		t.Errorf("%+v", o)
	}
	for _, wrong := range []string{`{"nameservers": "10.96.0.10"}`, `{"nameservers": ["Local"]}`, `{"instead": {"10.96.0.10": "1.1.1.1"}}`} {
		if _, err := decode(wrong); err == nil {
			t.Errorf("%s is read", wrong)
		}
	}
}
