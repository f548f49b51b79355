package resolvconf

import (
	"fmt"
	"net/netip"
	"reflect"
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

func ptr(s Settings) *Settings { return &s }

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
		Host:          ptr(settings("10.1.1.10 10.1.1.11", "corp.example", "ndots:1 rotate timeout:2")),
		ClusterDNS:    addrs("10.96.0.10", "fd00::a"),
		ClusterDomain: "cluster.local",
	}
}

// TestOwn checks the settings without an overlay, which the kubelet computes too; integration/kubelet-dns compares with the kubelet itself.
func TestOwn(t *testing.T) {
	const cluster = "ns1.svc.cluster.local svc.cluster.local cluster.local"
	for name, c := range map[string]struct {
		node  func(*Node)
		pod   Pod
		want  Settings
		notes []Code
	}{
		"Default":                          {pod: Pod{Policy: Default}, want: settings("10.1.1.10 10.1.1.11", "corp.example", "ndots:1 rotate timeout:2")},
		"ClusterFirst":                     {pod: Pod{Policy: ClusterFirst}, want: settings("10.96.0.10 fd00::a", cluster+" corp.example", "ndots:5")},
		"ClusterFirst on the host":         {pod: Pod{Policy: ClusterFirst, HostNetwork: true}, want: settings("10.1.1.10 10.1.1.11", "corp.example", "ndots:1 rotate timeout:2")},
		"ClusterFirstWithHostNet":          {pod: Pod{Policy: ClusterFirstWithHostNet, HostNetwork: true}, want: settings("10.96.0.10 fd00::a", cluster+" corp.example", "ndots:5")},
		"None":                             {pod: Pod{Policy: None, Config: ptr(settings("1.2.3.4", "a", "edns0"))}, want: settings("1.2.3.4", "a", "edns0")},
		"None and nothing":                 {pod: Pod{Policy: None}},
		"Custom is None":                   {pod: Pod{Policy: "Custom", Config: ptr(settings("1.2.3.4", "", ""))}, want: settings("1.2.3.4", "", "")},
		"an unknown policy":                {pod: Pod{Policy: "clusterFirst"}, want: settings("10.96.0.10 fd00::a", cluster+" corp.example", "ndots:5"), notes: []Code{UnknownPolicy}},
		"an unknown policy on the host":    {pod: Pod{HostNetwork: true}, want: settings("10.96.0.10 fd00::a", cluster+" corp.example", "ndots:5"), notes: []Code{UnknownPolicy}},
		"an IPv4 address written as IPv6":  {node: func(n *Node) { n.ClusterDNS = addrs("::ffff:10.96.0.10") }, pod: Pod{Policy: ClusterFirst}, want: settings("10.96.0.10", cluster+" corp.example", "ndots:5")},
		"no cluster DNS address":           {node: func(n *Node) { n.ClusterDNS = nil }, pod: Pod{Policy: ClusterFirst}, want: settings("10.1.1.10 10.1.1.11", "corp.example", "ndots:1 rotate timeout:2"), notes: []Code{MissingClusterDNS}},
		"no cluster domain":                {node: func(n *Node) { n.ClusterDomain = ""; n.Host.Searches = []string{"a", "a"} }, pod: Pod{Policy: ClusterFirst}, want: settings("10.96.0.10 fd00::a", "a a", "ndots:5")},
		"the node searches the cluster":    {node: func(n *Node) { n.Host.Searches = []string{"cluster.local", "a", "a"} }, pod: Pod{Policy: ClusterFirst}, want: settings("10.96.0.10 fd00::a", cluster+" a", "ndots:5")},
		"no file":                          {node: func(n *Node) { n.Host = nil }, pod: Pod{Policy: Default}, want: settings("127.0.0.1", ".", "")},
		"no file, both families":           {node: func(n *Node) { n.Host = nil; n.Addresses = addrs("::ffff:10.0.0.1", "fd00::1") }, pod: Pod{Policy: Default}, want: settings("127.0.0.1 ::1", ".", "")},
		"no file, ClusterFirst":            {node: func(n *Node) { n.Host = nil }, pod: Pod{Policy: ClusterFirst}, want: settings("10.96.0.10 fd00::a", cluster, "ndots:5")},
		"dnsConfig is appended":            {pod: Pod{Policy: Default, Config: ptr(settings("10.1.1.11 9.9.9.9", "b corp.example", "edns0 ndots:3 rotate:"))}, want: settings("10.1.1.10 10.1.1.11 9.9.9.9", "corp.example b", "ndots:3 rotate timeout:2 edns0")},
		"an empty dnsConfig drops doubles": {node: func(n *Node) { n.Host = ptr(settings("1.1.1.1 1.1.1.1", "a a", "x:")) }, pod: Pod{Policy: Default, Config: &Settings{}}, want: settings("1.1.1.1", "a", "x"), notes: []Code{UnknownOption}},
		"none does not":                    {node: func(n *Node) { n.Host = ptr(settings("1.1.1.1 1.1.1.1", "a a", "x:")) }, pod: Pod{Policy: Default}, want: settings("1.1.1.1 1.1.1.1", "a a", "x:"), notes: []Code{UnknownOption}},
		"too many nameservers":             {pod: Pod{Policy: ClusterFirst, Config: ptr(settings("1.1.1.1 2.2.2.2", "", ""))}, want: settings("10.96.0.10 fd00::a 1.1.1.1", cluster+" corp.example", "ndots:5"), notes: []Code{NameserversCut}},
	} {
		t.Run(name, func(t *testing.T) {
			n := plain()
			if c.node != nil {
				c.node(&n)
			}
			c.pod.Namespace = "ns1"
			for range 20 { // the result must not depend on a map's order
				r := Form(n, c.pod, nil)
				testutil.Equal(t, "settings", c.want, r.Settings, cmpopts.EquateEmpty())
				if !slices.Equal(codes(r.Notes), c.notes) || r.Overlaid || r.Refused != nil {
					t.Fatalf("%+v", r)
				}
			}
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
	own := settings("10.96.0.10 fd00::a", cluster, "ndots:5")
	for name, c := range map[string]struct {
		overlay Overlay
		pod     Pod
		want    Settings // own, where it is empty
		refused string
		notes   []Code
	}{
		"nothing":        {},
		"ndots":          {overlay: Overlay{Settings: settings("", "", "ndots:1")}, want: settings("10.96.0.10 fd00::a", cluster, "ndots:1")},
		"over dnsConfig": {pod: Pod{Config: ptr(settings("", "", "ndots:2 edns0"))}, overlay: Overlay{Settings: settings("", "", "trust-ad ndots:1")}, want: settings("10.96.0.10 fd00::a", cluster, "ndots:1 edns0 trust-ad")},
		"a nameserver and a domain": {overlay: Overlay{Settings: settings("fd00::a 9.9.9.9", "svc.cluster.local x", "")},
			want: settings("10.96.0.10 fd00::a 9.9.9.9", cluster+" x", "ndots:5")},
		"cut": {overlay: Overlay{Settings: settings("9.9.9.9 8.8.8.8", "", "ndots:1")}, want: settings("10.96.0.10 fd00::a 9.9.9.9", cluster, "ndots:1"),
			notes: []Code{NameserversCut}},
		"a policy says all": {pod: Pod{Config: ptr(settings("1.1.1.1", "c", "edns0"))}, overlay: Overlay{Policy: None, Settings: settings("9.9.9.9", "x", "ndots:1")}, want: settings("9.9.9.9", "x", "ndots:1")},
		"the policy Default": {pod: Pod{Config: ptr(settings("1.1.1.1 2.2.2.2", "c", "edns0"))}, overlay: Overlay{Policy: Default, Settings: settings("", "", "ndots:2")},
			want: settings("10.1.1.10 10.1.1.11", "corp.example", "ndots:2 rotate timeout:2")},
		"the policy ClusterFirst on the host": {pod: Pod{Policy: Default, HostNetwork: true}, overlay: Overlay{Policy: ClusterFirst}, want: settings("10.1.1.10 10.1.1.11", "corp.example", "ndots:1 rotate timeout:2")},
		"the policy ClusterFirst":             {pod: Pod{Policy: Default}, overlay: Overlay{Policy: ClusterFirst}},
		"no nameserver left":                  {overlay: Overlay{Policy: None, Settings: settings("", "x", "")}, refused: "overlay dropped: nameservers: it leaves the pod without any: name one, or another policy"},
		"none before and none after":          {pod: Pod{Policy: None}, overlay: Overlay{Settings: settings("", "x", "ndots:1")}, want: settings("", "x", "ndots:1")},
		"a runtime's own settings come out as they are": {pod: Pod{Policy: None, Config: ptr(settings("10.96.0.10", "a b", "ndots:5"))}, overlay: Overlay{Settings: settings("", "", "ndots:1")},
			want: settings("10.96.0.10", "a b", "ndots:1")},
	} {
		t.Run(name, func(t *testing.T) {
			if c.pod.Policy == "" {
				c.pod.Policy = ClusterFirst
			}
			c.pod.Namespace = "ns1"
			if cmp.Equal(c.want, Settings{}) {
				c.want = own
			}
			r := Form(plain(), c.pod, &c.overlay)
			testutil.Equal(t, "settings", c.want, r.Settings, cmpopts.EquateEmpty())
			if got := errText(r.Refused); got != c.refused || r.Overlaid != (c.refused == "") {
				t.Errorf("overlaid %v, refused:\n%s", r.Overlaid, got)
			}
			testutil.Equal(t, "notes", c.notes, codes(r.Notes))
		})
	}
}

// TestArguments checks that Form changes no argument, and that its result shares no memory with one.
func TestArguments(t *testing.T) {
	arguments := func() (Node, Pod, *Overlay) {
		n := plain()
		n.Host.Searches = append(n.Host.Searches, strings.Fields(domains(40, 60)+" "+strings.Repeat("y", 300))...)
		return n, Pod{Policy: Default, Config: ptr(settings("1.1.1.1 2.2.2.2", "a", "ndots:2"))}, &Overlay{Settings: settings("3.3.3.3", "b", "ndots:3 edns0")}
	}
	n, p, o := arguments()
	for range 2 {
		r := Form(n, p, o)
		for _, list := range [][]string{r.Nameservers, r.Searches, r.Options} {
			for i := range list {
				list[i] = "mine"
			}
		}
		r = Form(n, Pod{Policy: Default}, nil)
		r.Nameservers[0], r.Options[0] = "mine", "mine"
	}
	wantN, wantP, wantO := arguments()
	testutil.Equal(t, "the arguments", []any{wantN, wantP, wantO}, []any{n, p, o})
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

// FuzzForm checks for any pod and overlay that the overlay is applied or dropped as a whole, and never removes the last nameserver.
func FuzzForm(f *testing.F) {
	f.Add("nameserver 1.1.1.1\nsearch a", "None", "1.1.1.1", "a b", "ndots:2", "", "9.9.9.9", "x", "ndots:1", uint8(0))
	f.Add("options ndots:2", "ClusterFirst", "", "", "", "None", "9.9.9.9 8.8.8.8 7.7.7.7 6.6.6.6", strings.Repeat("a.b ", 40), "edns0", uint8(255))
	f.Fuzz(func(t *testing.T, file, policy, nameservers, searches, options, oPolicy, oNameservers, oSearches, oOptions string, flags uint8) {
		n := plain()
		if host, err := Parse([]byte(file)).Host(); err == nil {
			n.Host = &host
		}
		if flags&1 != 0 {
			n.ClusterDNS = nil
		}
		p := Pod{Policy: Policy(policy), HostNetwork: flags&2 != 0, Namespace: "ns1"}
		if flags&4 != 0 {
			p.Config = ptr(settings(nameservers, searches, options))
		}
		o := Overlay{Policy: Policy(oPolicy), Settings: settings(oNameservers, oSearches, oOptions)}
		own, with := Form(n, p, nil), Form(n, p, &o)
		if own.Overlaid || own.Refused != nil || with.Overlaid == (with.Refused != nil) {
			t.Fatalf("without: %+v\nwith: %+v", own, with)
		}
		if with.Refused != nil && !cmp.Equal(own.Settings, with.Settings) {
			t.Fatalf("refused (%v), and yet %+v is not %+v", with.Refused, with.Settings, own.Settings)
		}
		if len(own.Nameservers) > 0 && len(with.Nameservers) == 0 {
			t.Fatalf("the overlay took the last nameserver: %+v", with)
		}
		if _, cut := with.fit(); len(cut) > 0 {
			t.Fatalf("%v of %+v", cut, with)
		}
		if !cmp.Equal(with, Form(n, p, &o), cmpopts.EquateErrors()) && with.Refused == nil {
			t.Fatal("not the same twice")
		}
	})
}

// Applying two overlays one after the other gives the same as applying their Over, with or without Spell.
func TestOverAndSpell(t *testing.T) {
	host := settings("192.0.2.1", "corp.example", "timeout:3")
	node := Node{Host: &host, ClusterDNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, ClusterDomain: "cluster.local",
		Locals: map[string]string{"10.96.0.10": "169.254.20.10"}}
	own := settings("10.96.0.10", "shop.svc.cluster.local svc.cluster.local", "ndots:5")
	pod := func(s Settings) Pod { return Pod{Policy: None, Namespace: "shop", Config: &s} }
	overlays := []Overlay{
		{}, {Settings: settings("", "", "ndots:1 edns0")}, {Settings: settings("1.1.1.1", "a.example svc.cluster.local", "")},
		{Policy: None, Settings: settings("9.9.9.9", "", "ndots:2")}, {Settings: settings("local", "", "ndots:3")},
		{Policy: ClusterFirst, Settings: settings("1.1.1.1 local", "", "")}, {Policy: Default}, {Policy: ClusterFirst, Settings: settings("", "z.example", "ndots:2")},
	}
	// Form does not accept the word Local, so Spell replaces it first.
	form := func(pod Pod, o Overlay) Result {
		if o.NamesLocal() {
			o = o.Spell(node, pod.Namespace)
		}
		return Form(node, pod, &o)
	}
	for i, below := range overlays {
		first := form(pod(own), below)
		for j, above := range overlays {
			want := form(pod(first.Settings), above).Settings
			// An overlay with the word Local must be spelled before Over, because its effect depends on the nameservers below.
			if got := form(pod(own), above.Over(below)).Settings; !above.NamesLocal() && !below.NamesLocal() && !reflect.DeepEqual(got, want) {
				t.Errorf("%d over %d: %+v, want %+v", j, i, got, want)
			}
			spelt := above.Spell(node, "shop").Over(below.Spell(node, "shop"))
			if spelt.Policy != "" && spelt.Policy != None {
				t.Errorf("%d over %d: policy %s", j, i, spelt.Policy)
			}
			if got := Form(Node{}, pod(own), &spelt).Settings; !reflect.DeepEqual(got, want) {
				t.Errorf("%d over %d, spelt: %+v, want %+v", j, i, got, want)
			}
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
		o, err := DecodeOverlay("dns", []byte(text))
		testutil.Must(t, err)
		spelt := o.Spell(node, "shop")
		got := Form(Node{}, Pod{Policy: None, Config: &own}, &spelt)
		if got.Refused != nil || !cmp.Equal(want, got.Settings, cmpopts.EquateEmpty()) {
			t.Errorf("%s: %+v (%v), want %+v", text, got.Settings, got.Refused, want)
		}
		again := Form(Node{}, Pod{Policy: None, Config: &got.Settings}, &spelt)
		if !cmp.Equal(want, again.Settings, cmpopts.EquateEmpty()) {
			t.Errorf("%s: twice is %+v", text, again.Settings)
		}
	}
	// Without a local address, the word adds no nameserver.
	if o := (Overlay{Settings: settings("local", "", "")}).Spell(Node{}, "shop"); len(o.Nameservers)+len(o.Instead) > 0 {
		t.Errorf("%+v", o)
	}
	for _, wrong := range []string{`{"nameservers": "10.96.0.10"}`, `{"nameservers": ["Local"]}`, `{"instead": {"10.96.0.10": "1.1.1.1"}}`} {
		if _, err := DecodeOverlay("dns", []byte(wrong)); err == nil {
			t.Errorf("%s is read", wrong)
		}
	}
}
