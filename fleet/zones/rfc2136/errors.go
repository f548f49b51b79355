package rfc2136

import (
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/miekg/dns"
)

// Kind classifies an error in one word, for the caller, for metrics and for conditions.
type Kind string

// The kinds.
const (
	Unreachable  Kind = "Unreachable"  // no connection: nothing was sent
	NoAnswer     Kind = "NoAnswer"     // the message may have been sent, but no answer came; the server may have made the change
	BadAnswer    Kind = "BadAnswer"    // the answer is not signed or not usable; the server may have made the change
	Prerequisite Kind = "Prerequisite" // a prerequisite is not met, so nothing was changed; or the queried name does not exist
	NotPermitted Kind = "NotPermitted" // the server does not let the key do this, does not know the key, or does not have the zone
	BadKey       Kind = "BadKey"       // the message cannot be signed, or the server rejects the signature
	ClockSkew    Kind = "ClockSkew"    // the clocks of server and client differ by more than the 300 s that TSIG allows
	ServerFailed Kind = "ServerFailed" // SERVFAIL: nothing was changed
	Refused      Kind = "Refused"      // any other error code: nothing was changed
	TooLarge     Kind = "TooLarge"     // the message, or the transfer of the zone, exceeds a maximum size
	Cut          Kind = "Cut"          // the connection ended, or no message came in time, after a transfer's first record and before its end
)

// Error is the reason why a query, a transfer or an update failed.
type Error struct {
	Kind Kind
	Skew time.Duration // for ClockSkew: the server's clock minus the local one, in whole seconds
	Err  error
}

// source is the local address of a connection in an error of package net. It is left out, because its port differs at each try, and
// statuses are written, and lines are printed, when a text changes.
var source = regexp.MustCompile(`\S+->`)

func (e *Error) Error() string {
	if e.Kind == ClockSkew {
		return fmt.Sprintf("the server's clock differs from ours by %d s: %v", int(e.Skew/time.Second), e.Err)
	}
	return source.ReplaceAllString(e.Err.Error(), "")
}

func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the Kind of an error of this package; "" for nil and for other errors.
func KindOf(err error) Kind {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Kind
	}
	return ""
}

// Unsure reports whether the server may have made the change although there was an error.
func Unsure(err error) bool {
	k := KindOf(err)
	return k == NoAnswer || k == BadAnswer
}

// rcode converts an answer's error code to an error; nil for NOERROR. t is the answer's TSIG, whose own error code counts first; it may
// be nil.
func rcode(m *dns.Msg, t *dns.TSIG) error {
	said := func(k Kind) error {
		return &Error{Kind: k, Err: fmt.Errorf("the server answered %s", code(m.Rcode))}
	}
	if t != nil && t.Error != dns.RcodeSuccess {
		switch t.Error {
		case dns.RcodeBadTime:
			return &Error{Kind: ClockSkew, Skew: skew(t), Err: errors.New("the server answered BADTIME")}
		case dns.RcodeBadKey: // Knot answers this too if it knows the key, but the key has no permission
			return &Error{Kind: NotPermitted, Err: errors.New("the server answered BADKEY: it does not know the key, or the key may not do this")}
		}
		return &Error{Kind: BadKey, Err: fmt.Errorf("the server answered %s", code(int(t.Error)))}
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

// skew returns the server's clock minus the local one, by the server's time in a BADTIME error (six bytes: RFC 8945 section 5.2.3); 0 if
// the error has no such time.
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
