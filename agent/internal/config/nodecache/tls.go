package nodecache

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// TLS has the TLS flags for -metrics-listen-address.
type TLS struct {
	Enabled   bool
	Cert, Key string // files, PEM
	ClientCA  string // file, PEM; "" for none
	Auth      tls.ClientAuthType
	Min       uint16 // version
}

// clientAuth returns the values of -tls-client-auth-type, which are named as in crypto/tls.
func clientAuth() map[string]tls.ClientAuthType {
	return map[string]tls.ClientAuthType{
		"NoClientCert": tls.NoClientCert, "RequestClientCert": tls.RequestClientCert, "RequireAnyClientCert": tls.RequireAnyClientCert,
		"VerifyClientCertIfGiven": tls.VerifyClientCertIfGiven, "RequireAndVerifyClientCert": tls.RequireAndVerifyClientCert,
	}
}

// versions returns the values of -tls-min-version.
func versions() map[string]uint16 {
	return map[string]uint16{"TLS10": tls.VersionTLS10, "TLS11": tls.VersionTLS11, "TLS12": tls.VersionTLS12, "TLS13": tls.VersionTLS13}
}

// checkTLS converts and checks the TLS flags, if -tls-enabled is set.
func (o *Options) checkTLS(auth, minVersion string) error {
	if !o.TLS.Enabled {
		o.TLS = TLS{}
		return nil
	}
	var errs []error
	var known bool
	if o.TLS.Auth, known = clientAuth()[auth]; !known {
		errs = append(errs, fmt.Errorf("-tls-client-auth-type %q: write one of %s", auth,
			strings.Join(slices.Sorted(maps.Keys(clientAuth())), ", ")))
	}
	if o.TLS.Min, known = versions()[minVersion]; !known {
		errs = append(errs, fmt.Errorf("-tls-min-version %q: write one of %s", minVersion,
			strings.Join(slices.Sorted(maps.Keys(versions())), ", ")))
	}
	if o.TLS.Cert == "" || o.TLS.Key == "" {
		errs = append(errs, errors.New("-tls-enabled needs -tls-cert-file and -tls-private-key-file: name both"))
	}
	verifies := o.TLS.Auth == tls.VerifyClientCertIfGiven || o.TLS.Auth == tls.RequireAndVerifyClientCert
	if verifies && o.TLS.ClientCA == "" {
		errs = append(errs, fmt.Errorf("-tls-client-auth-type %s needs -tls-client-ca-file: name the file of the clients' "+
			"certificate authorities", auth))
	}
	if o.TLS.ClientCA != "" && o.TLS.Auth == tls.NoClientCert {
		errs = append(errs, errors.New("-tls-client-ca-file has no effect with -tls-client-auth-type NoClientCert: remove it, or "+
			"write RequireAndVerifyClientCert"))
	}
	return errors.Join(errs...)
}
