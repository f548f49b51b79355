package handover

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
)

// kind is the first byte of a message, which decides what follows.
type kind byte

const (
	kindHello    kind = 'h'
	kindOffer    kind = 'o'
	kindRefusal  kind = 'r'
	kindCache    kind = 'c' // the body is a piece of the cache's snapshot
	kindCacheEnd kind = 'e'
	kindServing  kind = 's'
	kindYours    kind = 'y'
	kindTaken    kind = 't'
)

func (k kind) String() string {
	switch k {
	case kindHello:
		return "hello"
	case kindOffer:
		return "offer"
	case kindRefusal:
		return "refusal"
	case kindCache:
		return "cache"
	case kindCacheEnd:
		return "cache-end"
	case kindServing:
		return "serving"
	case kindYours:
		return "yours"
	case kindTaken:
		return "taken"
	}
	return fmt.Sprintf("unknown kind %d", byte(k))
}

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

// message is one message of the protocol. Only the field that belongs to its kind is set.
type message struct {
	kind    kind
	hello   hello
	offer   offer
	refusal refusal
	cache   []byte
	serving serving
}

// parse parses and checks one message. Unknown fields are an error, except in a hello, where later versions may add some.
func parse(packet []byte) (message, error) {
	if len(packet) == 0 {
		return message{}, errors.New("empty message")
	}
	m := message{kind: kind(packet[0])}
	body := packet[1:]
	var err error
	switch m.kind {
	case kindHello:
		err = json.Unmarshal(body, &m.hello)
		if err == nil {
			err = m.hello.Claim.check()
		}
	case kindOffer:
		if err = decode(body, &m.offer); err == nil {
			err = m.offer.check()
		}
	case kindRefusal:
		err = decode(body, &m.refusal)
	case kindCache:
		m.cache = body
	case kindServing:
		if err = decode(body, &m.serving); err == nil && len(m.serving.Addresses) > maxSockets {
			err = fmt.Errorf("%d addresses", len(m.serving.Addresses))
		}
	case kindCacheEnd, kindYours, kindTaken:
		if len(body) > 0 {
			err = fmt.Errorf("%d bytes too many", len(body))
		}
	default:
		err = errors.New("not of this version")
	}
	if err != nil {
		return message{}, fmt.Errorf("message %s: %w", m.kind, err)
	}
	return m, nil
}

func (o offer) check() error {
	if len(o.Sockets) > maxSockets {
		return fmt.Errorf("%d sockets", len(o.Sockets))
	}
	for _, s := range o.Sockets {
		if s.Protocol != "udp" && s.Protocol != "tcp" || !s.Address.IsValid() {
			return fmt.Errorf("socket %s %s", s.Protocol, s.Address)
		}
	}
	return o.Claim.check()
}

// decode parses JSON strictly: an unknown key, or data after the value, is an error.
func decode(body []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}

func encode(m message) ([]byte, error) {
	var body any
	switch m.kind {
	case kindHello:
		body = m.hello
	case kindOffer:
		body = m.offer
	case kindRefusal:
		body = m.refusal
	case kindServing:
		body = m.serving
	case kindCache:
		return append([]byte{byte(m.kind)}, m.cache...), nil
	case kindCacheEnd, kindYours, kindTaken:
		return []byte{byte(m.kind)}, nil
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return append([]byte{byte(m.kind)}, text...), nil
}

// expect returns an error unless a message of the wanted kind was received.
func expect(want kind, m message, err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("it ended")
	case err != nil:
		return err
	case m.kind == kindRefusal:
		return &RefusedError{By: m.refusal.Claim, Reason: m.refusal.Reason, Later: m.refusal.Later}
	case m.kind != want:
		return fmt.Errorf("message %s is out of order", m.kind)
	}
	return nil
}
