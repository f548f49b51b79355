package nodelocal_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// signed makes a certificate for 127.0.0.1 that vouches for itself, and its key.
func signed(t *testing.T, serial int64) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})
}

// metrics asks over TLS for the page of -metrics-listen-address, and trusts one certificate alone. client is what it shows itself.
func (n *node) metrics(trusted []byte, client ...tls.Certificate) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: client, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, at string) (conn net.Conn, err error) {
			n.Host.Do(func() { conn, err = new(net.Dialer).DialContext(ctx, network, at) })
			return conn, err
		}}
	resp, err := (&http.Client{Timeout: patience, Transport: transport}).Get("https://127.0.0.1:9353/metrics") //nolint:noctx // it has a timeout
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && !strings.Contains(string(text), "coredns_nodecache_setup_errors_total") {
		err = fmt.Errorf("not the metrics: %s", text)
	}
	return err
}

// With -tls-enabled -metrics-listen-address is served over TLS to those whom the flags let in, also after a renewal of the files.
func TestTLSFlags(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.IPv4, Proxy: testutil.NFTables})
	cert, key := signed(t, 1)
	clientCert, clientKey := signed(t, 2)
	n.write("tls.crt", string(cert))
	n.write("tls.key", string(key))
	n.write("clients.crt", string(clientCert))
	client, err := tls.X509KeyPair(clientCert, clientKey)
	if err != nil {
		t.Fatal(err)
	}
	p := n.agent("-tls-enabled", "-tls-cert-file", n.path("tls.crt"), "-tls-private-key-file", n.path("tls.key"), "-tls-client-auth-type", "RequireAndVerifyClientCert",
		"-tls-client-ca-file", n.path("clients.crt"), "-tls-min-version", "TLS12")
	n.awaitLeases(p, n.served()...)
	testutil.Eventually(t, func() error { return n.metrics(cert, client) })
	if err := n.metrics(cert); err == nil {
		t.Error("a client without a certificate was let in")
	}
	n.wantPage("http://127.0.0.1:9253/metrics", "coredns_plugin_enabled") // prometheus in the template is its own
	renewed, renewedKey := signed(t, 3)
	n.write("tls.key", string(renewedKey))
	n.write("tls.crt", string(renewed))
	if err := n.metrics(renewed, client); err != nil {
		t.Errorf("after a renewal: %v", err)
	}
	var unknown x509.UnknownAuthorityError
	if err := n.metrics(cert, client); !errors.As(err, &unknown) {
		t.Errorf("the old certificate after a renewal: %v", err)
	}
}
