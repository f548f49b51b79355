package handover

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// wire has each message as it must stay: the other agent may be of another release.
var wire = []struct {
	kind   kind
	body   any // what encode gets
	into   any // what parse gets
	packet string
}{
	{kindHello, hello{Version: Version, Claim: newer}, new(hello), `h{"version":1,"claim":{"instance":"newer","pid":8,"pod":"neardns-x7k2p",` +
		`"version":"v2","since":"2001-09-09T01:47:40Z","born":200}}`},
	{kindOffer, offer{Claim: older, Sockets: []Socket{{Protocol: "udp", Address: at}}}, new(offer), `o{"claim":{"instance":"older","pid":7,` +
		`"version":"v1","since":"2001-09-09T01:46:40Z","born":100},"sockets":[{"protocol":"udp","address":"169.254.20.11:53"}]}`},
	{kindRefusal, refusal{Claim: older, Reason: "no", Later: true}, new(refusal), `r{"claim":{"instance":"older","pid":7,"version":"v1",` +
		`"since":"2001-09-09T01:46:40Z","born":100},"reason":"no","later":true}`},
	{kindCacheEnd, nil, nil, "e"},
	{kindServing, serving{Addresses: []netip.Addr{at.Addr()}}, new(serving), `s{"addresses":["169.254.20.11"]}`},
	{kindYours, nil, nil, "y"},
	{kindTaken, nil, nil, "t"},
}

func TestMessages(t *testing.T) {
	for _, m := range wire {
		packet, err := encode(m.kind, m.body)
		testutil.Must(t, err)
		testutil.Equal(t, fmt.Sprintf("%s as it is written", m.kind), m.packet, string(packet))
		testutil.Must(t, parse(packet, m.kind, m.into))
		if again, err := encode(m.kind, m.into); m.into != nil && (err != nil || string(again) != m.packet) {
			t.Errorf("%s: read and written again it is %s, %v", m.kind, again, err)
		}
	}
}

func TestBadMessages(t *testing.T) {
	for name, tc := range map[string]struct {
		packet string
		kind   kind
		into   any
		want   string
	}{
		"unknown kind":    {"z", kindTaken, nil, "not of this version"},
		"another's place": {"t", kindYours, nil, "out of order"},
		"no JSON":         {"h", kindHello, new(hello), "message hello"},
		"hello's claim":   {`h{"version":1,"claim":{}}`, kindHello, new(hello), "instance"},
		"pid":             {`h{"version":1,"claim":{"instance":"x","born":1}}`, kindHello, new(hello), "pid: 0"},
		"born":            {`h{"version":1,"claim":{"instance":"x","pid":1}}`, kindHello, new(hello), "born: 0"},
		"two values":      {`s{"addresses":[]}{}`, kindServing, new(serving), "message serving"},
		"bad address":     {`s{"addresses":["x"]}`, kindServing, new(serving), "message serving"},
		"protocol": {`o{"claim":{"instance":"x","pid":1,"born":1},"sockets":[{"protocol":"sctp","address":"10.0.0.1:53"}]}`, kindOffer, new(offer),
			"socket sctp"},
		"trailing":  {"tx", kindTaken, nil, "1 bytes too many"},
		"a refusal": {`r{"claim":{},"reason":"no"}`, kindTaken, nil, "refused: no"},
	} {
		testutil.WantError(t, parse([]byte(tc.packet), tc.kind, tc.into), tc.want, name)
	}
}

// FuzzParse: no packet makes the reader panic.
func FuzzParse(f *testing.F) {
	for _, m := range wire {
		f.Add([]byte(m.packet))
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		if len(packet) == 0 {
			return // the end of the connection
		}
		for _, m := range wire {
			if err := parse(packet, m.kind, m.into); err == nil && packet[0] != m.packet[0] {
				t.Fatalf("%q is taken for %s", packet, m.kind)
			}
		}
	})
}
