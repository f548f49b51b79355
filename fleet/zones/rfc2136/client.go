// Package rfc2136 reads and changes a DNS zone on its primary server over TCP: UPDATE with prerequisites (RFC 2136), transfers (RFC
// 5936, RFC 1995), and queries for the SOA and TXT records.
//
// If there is a key, the package guarantees that it signs every message with TSIG (RFC 8945), and that an answer is an error unless a valid
// signature covers it. Of a zone's records, it interprets only the SOA.
//
// Each error of a Client has a Kind. From the Kind, Unsure decides whether the server may have made the change in spite of the error. The
// package never retries.
package rfc2136

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // servers still have such keys; HMAC does not need a collision-free hash
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Key is a TSIG key. With the zero Key, messages are not signed.
type Key struct {
	Name      string // name of the key on the server, a domain name; case does not matter
	Algorithm string // for example hmac-sha256
	Secret    string // base64
}

var algorithms = map[string]func() hash.Hash{dns.HmacSHA1: sha1.New, dns.HmacSHA224: sha256.New224, dns.HmacSHA256: sha256.New,
	dns.HmacSHA384: sha512.New384, dns.HmacSHA512: sha512.New}

// Validate returns an error if a field is invalid. The error never contains the secret.
func (k Key) Validate() error {
	if _, ok := dns.IsDomainName(k.Name); !ok || k.Name == "" {
		return fmt.Errorf("key name %q is no domain name", k.Name)
	}
	if algorithms[dns.CanonicalName(k.Algorithm)] == nil {
		return fmt.Errorf("key %s: algorithm %q is none of hmac-sha1, -sha224, -sha256, -sha384, -sha512", k.Name, k.Algorithm)
	}
	if secret, err := base64.StdEncoding.DecodeString(k.Secret); err != nil || len(secret) == 0 {
		return fmt.Errorf("key %s: its secret is no base64", k.Name)
	}
	return nil
}

// KeyFunc returns the key for the next message. If it returns an error, the message is not sent.
type KeyFunc func() (Key, error)

// Client queries and updates one zone on its primary server. It is safe for concurrent use; each call opens its own connection.
type Client struct {
	Server  string        // host:port
	Zone    string        // canonical
	Key     KeyFunc       // called for each message, so that the key can change at any time; nil: messages are not signed
	Timeout time.Duration // for connecting and for sending; 0: DefaultTimeout
	Answer  time.Duration // for each message of an answer to an update or of a transfer; other answers have Timeout, and all if it is 0
	Most    int           // maximum number of records in a transfer, and, times Octets, of their bytes; 0: no limit
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
}

// Octets is the number of bytes for each record that Client.Most allows: a transfer may have Most*Octets bytes. A number of records alone
// would not limit memory, because a TXT record may have 64 KiB. Names count in full, although compression can make them shorter in a
// message. Most records that clusters write have about 60 bytes.
const Octets = 256

// Fudge is how much the clocks of client and server may differ; RFC 8945 section 10 recommends the value. A server refuses a message
// that arrives longer than that after it was signed.
const Fudge = 300 * time.Second

// DefaultTimeout is Client.Timeout where it is 0.
const DefaultTimeout = 5 * time.Second

func (c *Client) timeout() time.Duration {
	return cmp.Or(c.Timeout, DefaultTimeout)
}

// Serial queries the primary for the serial of the zone's SOA.
func (c *Client) Serial(ctx context.Context) (uint32, error) {
	m := new(dns.Msg)
	m.SetQuestion(c.Zone, dns.TypeSOA)
	m.RecursionDesired = false
	in, err := c.exchange(ctx, m)
	if err != nil {
		return 0, fmt.Errorf("query the serial of %s: %w", c.Zone, err)
	}
	for _, rr := range in.Answer {
		if soa, ok := rr.(*dns.SOA); ok && dns.CanonicalName(soa.Hdr.Name) == c.Zone {
			return soa.Serial, nil
		}
	}
	none := &Error{Kind: BadAnswer, Err: errors.New("no SOA in the answer: the server has no such zone")}
	return 0, fmt.Errorf("query the serial of %s: %w", c.Zone, none)
}

// TXT queries the primary for the TXT records of a name. If the name does not exist, it returns none.
func (c *Client) TXT(ctx context.Context, name string) ([]*dns.TXT, error) {
	m := new(dns.Msg)
	m.SetQuestion(name, dns.TypeTXT)
	m.RecursionDesired = false
	in, err := c.exchange(ctx, m)
	if KindOf(err) == Prerequisite { // NXDOMAIN
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("query TXT of %s: %w", name, err)
	}
	var out []*dns.TXT
	for _, rr := range in.Answer {
		if x, ok := rr.(*dns.TXT); ok {
			out = append(out, x)
		}
	}
	return out, nil
}

// Update sends one UPDATE. If it returns nil, the server has answered that it made all changes. The caller must read the zone to be
// sure, because servers drop some changes without an error. Update does not modify the RRs.
func (c *Client) Update(ctx context.Context, prereqs, changes []dns.RR) error {
	m := new(dns.Msg)
	m.SetUpdate(c.Zone)
	m.Compress = true
	m.Answer, m.Ns = prereqs, changes
	if _, err := c.exchange(ctx, m); err != nil {
		return fmt.Errorf("update %s: %w", c.Zone, err)
	}
	return nil
}

func (c *Client) exchange(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
	conv, err := c.send(ctx, m)
	if err != nil {
		return nil, err
	}
	defer conv.close()
	return conv.receive()
}

// conversation is a query and its answers on one connection.
type conversation struct {
	conn   net.Conn
	stop   func() bool
	ctx    context.Context
	answer time.Duration // for each message of the answer
	id     uint16
	opcode int
	key    Key
	mac    string // MAC of the previous signed message, which the next signature covers
	later  bool   // a signed answer was received; of the TSIG's variables, further signatures cover only the timers (RFC 8945 section 5.3.1)
	// unsigned is the number of answers since the last signed one, and between has their bytes. The next signature covers them too.
	unsigned int
	between  []byte
}

// maxUnsigned is the maximum number of unsigned answers in a row (RFC 8945 section 5.3.1).
const maxUnsigned = 99

func (c *Client) send(ctx context.Context, m *dns.Msg) (*conversation, error) {
	var key Key
	var err error
	if c.Key != nil {
		if key, err = c.Key(); err != nil {
			return nil, &Error{Kind: BadKey, Err: err}
		}
	}
	answer := c.timeout()
	if t := m.Question[0].Qtype; m.Opcode == dns.OpcodeUpdate || t == dns.TypeAXFR || t == dns.TypeIXFR {
		answer = cmp.Or(c.Answer, answer)
	}
	v := &conversation{ctx: ctx, answer: answer, id: m.Id, opcode: m.Opcode, key: key}
	wire, err := v.sign(m)
	if err != nil {
		return nil, &Error{Kind: BadKey, Err: err}
	}
	if len(wire) > dns.MaxMsgSize {
		return nil, &Error{Kind: TooLarge, Err: fmt.Errorf("%d bytes do not fit in a message", len(wire))}
	}
	dial := c.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	limited, cancel := context.WithTimeout(ctx, c.timeout())
	defer cancel()
	if v.conn, err = dial(limited, "tcp", c.Server); err != nil {
		return nil, &Error{Kind: Unreachable, Err: err}
	}
	v.stop = context.AfterFunc(ctx, func() { _ = v.conn.SetDeadline(time.Unix(1, 0)) })
	_ = v.conn.SetWriteDeadline(time.Now().Add(c.timeout()))
	if _, err := v.conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...)); err != nil {
		v.close()
		return nil, &Error{Kind: NoAnswer, Err: err}
	}
	return v, nil
}

func (v *conversation) close() {
	v.stop()
	v.conn.Close()
}

func (v *conversation) sign(m *dns.Msg) ([]byte, error) {
	if v.key.Name == "" {
		return m.Pack()
	}
	m.SetTsig(dns.CanonicalName(v.key.Name), dns.CanonicalName(v.key.Algorithm), uint16(Fudge/time.Second), time.Now().Unix())
	wire, mac, err := dns.TsigGenerate(m, v.key.Secret, "", false)
	if err != nil {
		return nil, fmt.Errorf("sign with key %s: %w", v.key.Name, err)
	}
	v.mac = mac
	return wire, nil
}

// receive returns the next answer. An answer with an error code is an error of that code, even if it is not signed, because a server that
// does not know the key cannot sign. If there is a key, any other answer that is not signed with it is a BadAnswer. Only after the first
// answer of a transfer, up to maxUnsigned in a row need no signature: they must not be used before verified returns true.
func (v *conversation) receive() (*dns.Msg, error) {
	wire, err := v.read()
	if err != nil {
		return nil, &Error{Kind: NoAnswer, Err: err}
	}
	m := new(dns.Msg)
	if err := m.Unpack(wire); err != nil {
		return nil, &Error{Kind: BadAnswer, Err: err}
	}
	if m.Id != v.id || !m.Response || m.Opcode != v.opcode {
		return nil, &Error{Kind: BadAnswer, Err: errors.New("the message is no answer to this query")}
	}
	t := m.IsTsig()
	if err := rcode(m, t); err != nil {
		return nil, err
	}
	if v.key.Name == "" {
		return m, nil
	}
	if t == nil && v.later && v.unsigned < maxUnsigned {
		v.unsigned++
		v.between = append(v.between, wire...)
		return m, nil
	}
	if t == nil || !strings.EqualFold(dns.Fqdn(v.key.Name), t.Hdr.Name) {
		return nil, &Error{Kind: BadAnswer, Err: fmt.Errorf("not signed with key %s", v.key.Name)}
	}
	if err := dns.TsigVerifyWithProvider(wire, verifier{v}, v.mac, v.later); err != nil {
		if errors.Is(err, dns.ErrTime) {
			return nil, &Error{Kind: ClockSkew, Skew: time.Until(time.Unix(int64(t.TimeSigned), 0)).Round(time.Second), Err: err}
		}
		return nil, &Error{Kind: BadAnswer, Err: err}
	}
	v.mac, v.later, v.unsigned, v.between = t.MAC, true, 0, nil
	return m, nil
}

// verified reports whether a valid signature covers all answers received so far, or there is no key.
func (v *conversation) verified() bool { return v.unsigned == 0 }

// verifier verifies a signature that also covers the unsigned answers before it; the dns library alone cannot do that. It implements
// dns.TsigProvider. Its Generate only returns an error, because it is not used: dns.TsigGenerate signs the query.
type verifier struct{ *conversation }

func (verifier) Generate([]byte, *dns.TSIG) ([]byte, error) { return nil, errors.ErrUnsupported }

// Verify is called with the bytes that the signature covers, except the unsigned answers, which it inserts: the previous message's MAC with
// its length, the message, and the TSIG variables.
func (v verifier) Verify(signed []byte, t *dns.TSIG) error {
	secret, err := base64.StdEncoding.DecodeString(v.key.Secret)
	if err != nil {
		return dns.ErrSecret
	}
	hash := algorithms[dns.CanonicalName(v.key.Algorithm)]
	if hash == nil {
		return dns.ErrKeyAlg
	}
	mac, err := hex.DecodeString(t.MAC)
	if err != nil {
		return err
	}
	h, before := hmac.New(hash, secret), 2+hex.DecodedLen(len(v.mac))
	h.Write(signed[:before])
	h.Write(v.between)
	h.Write(signed[before:])
	if !hmac.Equal(h.Sum(nil), mac) {
		return dns.ErrSig
	}
	return nil
}

func (v *conversation) read() ([]byte, error) {
	_ = v.conn.SetReadDeadline(time.Now().Add(v.answer))
	if err := v.ctx.Err(); err != nil {
		return nil, err // ctx has ended: SetReadDeadline above may have undone the deadline that interrupts the read
	}
	var size [2]byte
	if _, err := io.ReadFull(v.conn, size[:]); err != nil {
		return nil, err
	}
	wire := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(v.conn, wire)
	return wire, err
}
