package node

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// pki writes what the control plane proves itself with: a CA, the API server's certificate, the key of service accounts and
// one administrator's token, which all parts of this cluster use. They are as old as the cluster and go with it.
func pki() (token string, err error) {
	caKey, caTemplate := newKey(), certificate("neardns-cluster CA")
	caTemplate.IsCA, caTemplate.KeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
	serverKey, server := newKey(), certificate("kube-apiserver")
	server.KeyUsage, server.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	server.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	for _, a := range []string{"127.0.0.1", nodeAddr4, nodeAddr6, apiService4, apiService6} {
		server.IPAddresses = append(server.IPAddresses, net.ParseIP(a))
	}
	for _, c := range []struct {
		name           string
		template       *x509.Certificate
		key, signerKey *ecdsa.PrivateKey
	}{{"ca", caTemplate, caKey, caKey}, {"apiserver", server, serverKey, caKey}, {"accounts", nil, newKey(), nil}} {
		if c.template != nil {
			der, err := x509.CreateCertificate(rand.Reader, c.template, caTemplate, &c.key.PublicKey, c.signerKey)
			if err != nil {
				return "", fmt.Errorf("sign the certificate %s: %w", c.name, err)
			}
			if err := writePEM(c.name+".crt", "CERTIFICATE", der); err != nil {
				return "", err
			}
		}
		der, err := x509.MarshalECPrivateKey(c.key)
		if err != nil {
			return "", fmt.Errorf("encode the key %s: %w", c.name, err)
		}
		if err := writePEM(c.name+".key", "EC PRIVATE KEY", der); err != nil {
			return "", err
		}
	}
	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails
	token = hex.EncodeToString(random)
	return token, os.WriteFile(path("pki", "tokens.csv"), []byte(token+",admin,admin,system:masters\n"), 0o600)
}

func newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err) // the system's random numbers never fail
	}
	return key
}

// certificate is a template that lasts as long as such a cluster.
func certificate(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		panic(err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
	}
}

func writePEM(name, kind string, der []byte) error {
	return os.WriteFile(path("pki", name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// kubeconfig is the text of one, for the administrator.
func kubeconfig(server, token string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: neardns-cluster
clusters:
- name: neardns-cluster
  cluster: {server: %q, certificate-authority: %q}
users:
- name: admin
  user: {token: %q}
contexts:
- name: neardns-cluster
  context: {cluster: neardns-cluster, user: admin}
`, "https://"+server, path("pki", "ca.crt"), token)
}
