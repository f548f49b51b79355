package rfc2136

import (
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/miekg/dns"
)

// Kind classifies an error for the caller. It is a word for metrics and conditions.
type Kind string

// The kinds.
const (
	Unreachable  Kind = "Unreachable"  // no connection: nothing was sent
	NoAnswer     Kind = "NoAnswer"     // sent, but no answer; the server may have made the change
	BadAnswer    Kind = "BadAnswer"    // an unsigned or unusable answer; the server may have made the change
	Prerequisite Kind = "Prerequisite" // a prerequisite does not hold; nothing was changed
	NotPermitted Kind = "NotPermitted" // the key may not do this, or the server does not know the key
	BadKey       Kind = "BadKey"       // the key cannot sign, or the server rejects its signature
	ClockSkew    Kind = "ClockSkew"    // our clock and the server's differ by more than the 300 s that TSIG allows
	ServerFailed Kind = "ServerFailed" // SERVFAIL: nothing was changed
	Refused      Kind = "Refused"      // any other answer: nothing was changed
	TooLarge     Kind = "TooLarge"     // the message or the zone is too large
	Cut          Kind = "Cut"          // an incomplete transfer
)

// Error is the reason why the primary did not make the change.
type Error struct {
	Kind Kind
	Skew time.Duration // with ClockSkew: the server's clock minus ours, in whole seconds
	Err  error
}

func (e *Error) Error() string {
	if e.Kind == ClockSkew {
		return fmt.Sprintf("the server's clock differs from ours by %d s: %v", int(e.Skew/time.Second), e.Err)
	}
	return e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of an error from this package; empty for nil and for other errors.
func KindOf(err error) Kind {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Kind
	}
	return ""
}

// Unsure reports whether the server may have made the change in spite of the error.
func Unsure(err error) bool {
	k := KindOf(err)
	return k == NoAnswer || k == BadAnswer
}

// rcode returns the error that an answer's code, or that of its TSIG (which may be nil), stands for.
func rcode(m *dns.Msg, t *dns.TSIG) error {
	said := func(k Kind) error {
		return &Error{Kind: k, Err: fmt.Errorf("the server says %s", code(m.Rcode))}
	}
	if t != nil && t.Error != dns.RcodeSuccess {
		switch t.Error {
		case dns.RcodeBadTime:
			return &Error{Kind: ClockSkew, Skew: skew(t), Err: errors.New("the server says BADTIME")}
		case dns.RcodeBadKey: // Knot also uses it for a key that may not do this
			return &Error{Kind: NotPermitted, Err: errors.New("the server says BADKEY: it does not know the key, or the key may not do this")}
		}
		return &Error{Kind: BadKey, Err: fmt.Errorf("the server says %s", code(int(t.Error)))}
	}
	switch m.Rcode {
	case dns.RcodeSuccess:
		return nil
	case dns.RcodeNXRrset, dns.RcodeYXRrset, dns.RcodeNameError, dns.RcodeYXDomain:
		return said(Prerequisite)
	case dns.RcodeRefused, dns.RcodeNotAuth, dns.RcodeNotZone:
		return said(NotPermitted)
	case dns.RcodeServerFailure:
		return said(ServerFailed)
	}
	return said(Refused)
}

func code(rcode int) string {
	if s, ok := dns.RcodeToString[rcode]; ok {
		return s
	}
	return fmt.Sprintf("code %d", rcode)
}

// skew reads the server's time from a BADTIME error, which has six bytes (RFC 8945 section 5.2.3).
func skew(t *dns.TSIG) time.Duration {
	b, err := hex.DecodeString(t.OtherData)
	if err != nil || len(b) != 6 {
		return 0
	}
	var at int64
	for _, x := range b {
		at = at<<8 | int64(x)
	}
	return time.Duration(at-int64(t.TimeSigned)) * time.Second
}
