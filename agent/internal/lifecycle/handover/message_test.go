package handover

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func messages() []message {
	return []message{
		{kind: kindHello, hello: hello{Version: Version, Claim: newer}},
		{kind: kindOffer, offer: offer{Claim: older, Sockets: []Socket{{Protocol: "udp", Address: at}, {Protocol: "tcp", Address: at}}}},
		{kind: kindRefusal, refusal: refusal{Claim: older, Reason: "no", Later: true}},
		{kind: kindCache, cache: []byte("bytes")},
		{kind: kindCacheEnd},
		{kind: kindServing, serving: serving{Addresses: []netip.Addr{at.Addr()}}},
		{kind: kindYours},
		{kind: kindTaken},
	}
}

func compare(a, b message) string {
	return cmp.Diff(a, b, cmp.AllowUnexported(message{}), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}))
}

func TestMessages(t *testing.T) {
	for _, m := range messages() {
		packet, err := encode(m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parse(packet)
		if err != nil {
			t.Errorf("%s: %v", m.kind, err)
		}
		if diff := compare(m, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", m.kind, diff)
		}
	}
}

func TestBadMessages(t *testing.T) {
	for name, tc := range map[string]struct{ packet, want string }{
		"empty":              {"", "empty message"},
		"unknown kind":       {"z", "not of this version"},
		"no JSON":            {"h", "message hello"},
		"hello's claim":      {`h{"version":1,"claim":{}}`, "instance"},
		"pid":                {`h{"version":1,"claim":{"instance":"x","born":1}}`, "pid: 0"},
		"born":               {`h{"version":1,"claim":{"instance":"x","pid":1}}`, "born: 0"},
		"unknown key":        {`s{"addresses":[],"more":1}`, "unknown field"},
		"two values":         {`s{"addresses":[]}{}`, "more than one value"},
		"bad address":        {`s{"addresses":["x"]}`, "message serving"},
		"too many addresses": {`s{"addresses":[` + strings.Repeat(`"10.0.0.1",`, maxSockets) + `"10.0.0.1"]}`, "65 addresses"},
		"protocol":           {`o{"claim":{"instance":"x","pid":1,"born":1},"sockets":[{"protocol":"sctp","address":"10.0.0.1:53"}]}`, "socket sctp"},
		"trailing":           {"tx", "1 bytes too many"},
	} {
		if _, err := parse([]byte(tc.packet)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: want %q, got %v", name, tc.want, err)
		}
	}
}

// FuzzParse: no packet makes the reader panic, and what it takes means the same when it is written again.
func FuzzParse(f *testing.F) {
	for _, m := range messages() {
		packet, err := encode(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packet)
	}
	f.Add([]byte(`h{"version":2}`))
	f.Fuzz(func(t *testing.T, packet []byte) {
		m, err := parse(packet)
		if err != nil {
			return
		}
		again, err := encode(m)
		if err != nil {
			t.Fatalf("%q cannot be written again: %v", packet, err)
		}
		second, err := parse(again)
		if err != nil {
			t.Fatalf("%q became %q: %v", packet, again, err)
		}
		if third, err := encode(second); err != nil || !bytes.Equal(again, third) {
			t.Fatalf("%q became %q, then %q, %v", packet, again, third, err)
		}
	})
}

func FuzzParseBirth(f *testing.F) {
	f.Add("boot 5\n")
	f.Fuzz(func(t *testing.T, text string) {
		if born, ok := parseBirth(text, "boot"); ok && (born <= 0 || !strings.HasPrefix(text, "boot ")) {
			t.Fatalf("%q is %d", text, born)
		}
	})
}
