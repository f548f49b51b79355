package handover

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
)

// kind is a message's kind; the message's first byte is its first letter.
type kind string

const (
	kindHello    kind = "hello"
	kindOffer    kind = "offer"
	kindRefusal  kind = "refusal"
	kindCache    kind = "cache" // only of earlier builds; the body is a piece of the cache's snapshot
	kindCacheEnd kind = "end of the cache"
	kindServing  kind = "serving"
	kindYours    kind = "yours"
	kindTaken    kind = "taken"
)

// hello is the first message. It has these fields in every version of the protocol, so that an active agent of any version can decide
// whether to stop for the successor.
type hello struct {
	Version int   `json:"version"`
	Claim   Claim `json:"claim"`
}

type offer struct {
	Claim   Claim    `json:"claim"`
	Sockets []Socket `json:"sockets"` // in the same order as the message's descriptors
}

type refusal struct {
	Claim  Claim  `json:"claim"`
	Reason string `json:"reason"`
	Later  bool   `json:"later,omitempty"`
}

type serving struct {
	Addresses []netip.Addr `json:"addresses"`
}

// encode returns the message of a kind with a body, which is nil for none.
func encode(k kind, body any) (packet []byte, err error) {
	if body != nil {
		packet, err = json.Marshal(body)
	}
	return slices.Insert(packet, 0, k[0]), err
}

// parse checks that packet is a message of the wanted kind, and parses its body into what encode had. In place of any message may come a
// refusal, which is returned as a *RefusedError, and in place of a cache message the end of the cache, which is io.EOF.
func parse(packet []byte, want kind, into any) error {
	body := packet[1:]
	switch k := packet[0]; {
	case k == kindRefusal[0] && want != kindRefusal:
		var r refusal
		if err := parse(packet, kindRefusal, &r); err != nil {
			return err
		}
		return &RefusedError{By: r.Claim, Reason: r.Reason, Later: r.Later}
	case k == kindCacheEnd[0] && want == kindCache && len(body) == 0:
		return io.EOF
	case k != want[0]:
		return fmt.Errorf("message %q is out of order or not of this version; %s was expected", k, want)
	}
	var err error
	raw, isRaw := into.(*[]byte)
	switch {
	case isRaw:
		*raw = body
	case into != nil:
		err = json.Unmarshal(body, into)
	case len(body) > 0:
		err = fmt.Errorf("%d bytes too many", len(body))
	}
	if c, ok := into.(interface{ check() error }); ok && err == nil {
		err = c.check()
	}
	if err != nil {
		return fmt.Errorf("message %s: %w", want, err)
	}
	return nil
}

func (h hello) check() error { return h.Claim.check() }

func (o offer) check() error {
	for _, s := range o.Sockets {
		if s.Protocol != "udp" && s.Protocol != "tcp" || !s.Address.IsValid() {
			return fmt.Errorf("socket %s %s", s.Protocol, s.Address)
		}
	}
	return o.Claim.check()
}
