package iptables

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

const listing = `-P PREROUTING ACCEPT
-N NEARDNS-UDP
-N NEARDNS-EMPTY
-A PREROUTING -j NEARDNS-PREROUTING
-A NEARDNS-UDP -m comment --comment "neardns:0123456789ab"
-A NEARDNS-UDP -j RETURN
`

func TestParse(t *testing.T) {
	want := tableRules{
		"PREROUTING": {"-j NEARDNS-PREROUTING"}, "NEARDNS-EMPTY": nil,
		"NEARDNS-UDP": {`-m comment --comment "neardns:0123456789ab"`, "-j RETURN"},
	}
	testutil.Equal(t, "rules", want, parse(listing))
}

func TestDrift(t *testing.T) {
	c := chain{table: "raw", name: "OURS", from: []jump{{base: "OUTPUT", before: []foreign{{" 10.0.0.1/32 ", "-j CT --notrack"}}}}, rules: []string{"-j ACCEPT"}}
	s := script{is4: true, chains: []chain{c}}
	stamp := "-m comment --comment " + c.stamp()
	for name, have := range map[string]struct {
		standing tableRules
		items    []string
	}{
		"as it should be": {tableRules{"OUTPUT": {"-j OTHER", "-j OURS"}, "OURS": {stamp, "-j ACCEPT"}}, nil},
		"nothing":         {tableRules{"OUTPUT": nil}, []string{"IPv4 raw: chain OURS is missing", "IPv4 raw: OUTPUT does not jump to OURS"}},
		"no jump":         {tableRules{"OUTPUT": {"-p udp -j OURS"}, "OURS": {stamp, "-j ACCEPT"}}, []string{"IPv4 raw: OUTPUT does not jump to OURS"}},
		"too late": {tableRules{"OUTPUT": {"-d 10.0.0.1/32 -p udp -j CT --notrack", "-j OURS"}, "OURS": {stamp, "-j ACCEPT"}},
			[]string{"IPv4 raw: OUTPUT jumps to OURS after another program's rules that it must precede"}},
		"behind what does not matter": {tableRules{"OUTPUT": {"-d 10.0.0.11/32 -j CT --notrack", "-d 10.0.0.1/32 -j ACCEPT", "-j OURS"}, "OURS": {stamp, "-j ACCEPT"}}, nil},
		"before it":                   {tableRules{"OUTPUT": {"-j OURS", "-d 10.0.0.1/32 -j CT --notrack"}, "OURS": {stamp, "-j ACCEPT"}}, nil},
		"another version":             {tableRules{"OUTPUT": {"-j OURS"}, "OURS": {"-m comment --comment neardns:0", "-j ACCEPT"}}, []string{"IPv4 raw: chain OURS has other rules"}},
		"a jump too many":             {tableRules{"OUTPUT": {"-j OURS", "-j OTHER", "-j OURS"}, "OURS": {stamp, "-j ACCEPT"}}, []string{"IPv4 raw: OUTPUT jumps to OURS twice"}},
		"a rule too many":             {tableRules{"OUTPUT": {"-j OURS"}, "OURS": {stamp, "-j DROP", "-j ACCEPT"}}, []string{"IPv4 raw: chain OURS has 3 rules, not 2"}},
	} {
		items, _ := s.drift(map[string]tableRules{"raw": have.standing})
		testutil.Equal(t, name, have.items, items)
	}
}

func TestCounters(t *testing.T) {
	got := map[string]steer.Counter{}
	counters(`-A NEARDNS-UDP -i eth0 -m comment --comment neardns:refused_uplink -c 3 180 -j DROP
-A NEARDNS-TCP -i eth0 -m comment --comment "neardns:refused_uplink" -c 1 60 -j DROP
-A NEARDNS-UDP -m comment --comment "neardns:fallback_udp" -c 7 420 -j RETURN
-A NEARDNS-UDP -m comment --comment neardns:0a1b2c3d4e5f -c 8 480
-A OTHER -m comment --comment "neardns" -c 9 9 -j RETURN
`, got)
	want := map[string]steer.Counter{"refused_uplink": {Packets: 4, Bytes: 240}, "fallback_udp": {Packets: 7, Bytes: 420}}
	testutil.Equal(t, "counters", want, got)
}

func TestParseRecent(t *testing.T) {
	got := parseRecent("src=169.254.20.11 ttl: 0 last_seen: 4295011111 oldest_pkt: 2 4295010000, 4295011111\n" +
		"src=fd00:90de:0d95:0000:0000:0000:0000:000b ttl: 0 last_seen: 17 oldest_pkt: 1 17\nsrc=nobody ttl: 0 last_seen: 3\nodd\n")
	if got[addr("169.254.20.11")] != "4295011111" || got[addr("fd00:90de:d95::b")] != "17" || len(got) != 2 {
		t.Errorf("%v", got)
	}
}

// FuzzParse: the parsers never panic, and return only what the text has.
func FuzzParse(f *testing.F) {
	f.Add(listing)
	f.Add("src=169.254.20.11 ttl: 64 last_seen: 4295011111 oldest_pkt: 2 4295010000\n")
	f.Add("-A X -m comment --comment \"neardns:a\" -c 18446744073709551616 -1\n-A\n-N\n")
	f.Fuzz(func(t *testing.T, text string) {
		for name, rules := range parse(text) {
			for _, r := range append(rules, name) {
				if !strings.Contains(text, r) {
					t.Errorf("%q was not there", r)
				}
			}
		}
		for a, seen := range parseRecent(text) {
			if !strings.Contains(text, seen) || !a.IsValid() {
				t.Errorf("%s %q was not there", a, seen)
			}
		}
		counters(text, map[string]steer.Counter{})
		_ = remove("nat", parse(text), ownChains()["nat"])
	})
}
