package healthcheck

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
)

// headerMost bounds what a target may answer with before its body, which is not read.
const headerMost = 16 << 10

// dialer connects to an address, as (*net.Dialer).DialContext.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// probe asks once. Nil means that the target is well: it takes a connection, or answers 2xx. A redirect is not followed and is no 2xx,
// a proxy is not used, and of HTTPS the certificate must be good for the check's host.
func probe(ctx context.Context, c Check, roots *x509.CertPool, dial dialer) error {
	at := netip.AddrPortFrom(c.Address, c.Port).String()
	if c.Protocol == TCP {
		conn, err := dial(ctx, "tcp", at)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	u, err := c.url()
	if err != nil {
		return err
	}
	transport := &http.Transport{
		// The host's name is never looked up: the address is the zone's.
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, "tcp", at) },
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: headerMost,
	}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return err
	}
	r.Header.Set("User-Agent", "neardns-edge")
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	_ = answer.Body.Close() // unread: the connection goes with it
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return fmt.Errorf("answered %d", answer.StatusCode)
	}
	return nil
}
