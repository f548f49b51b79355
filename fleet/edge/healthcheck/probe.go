package healthcheck

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"

	_ "golang.org/x/crypto/x509roots/fallback" // the certificate authorities of a system that has none, as in the images
)

// headerMost limits the size of a target's response headers. The body is not read.
const headerMost = 16 << 10

// dialer connects to an address, like (*net.Dialer).DialContext.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// probe checks a target once, and returns nil if it is healthy: it accepts a TCP connection, or answers an HTTP request with a status
// of 200 to 299. Redirects count as failures, and no proxy is used. With HTTPS, the certificate must be valid for the check's host.
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
		// The check's host name is not resolved: connect to the address from the zone.
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
	_ = answer.Body.Close() // also closes the connection, which is not kept alive
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return fmt.Errorf("answered %d", answer.StatusCode)
	}
	return nil
}
