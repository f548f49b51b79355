package nameserver

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]struct {
		full, short, addr, name string
	}{
		"10.0.0.1":                          {"10.0.0.1:53", "10.0.0.1", "10.0.0.1:53", ""},
		"10.0.0.1:53":                       {"10.0.0.1:53", "10.0.0.1", "10.0.0.1:53", ""},
		"10.0.0.1:5353":                     {"10.0.0.1:5353", "10.0.0.1:5353", "10.0.0.1:5353", ""},
		"10.0.0.1:853":                      {"10.0.0.1:853", "10.0.0.1:853", "10.0.0.1:853", ""},
		"fd00::1":                           {"[fd00::1]:53", "fd00::1", "[fd00::1]:53", ""},
		"[FD00::1]":                         {"[fd00::1]:53", "fd00::1", "[fd00::1]:53", ""},
		"[fd00::1]:5353":                    {"[fd00::1]:5353", "[fd00::1]:5353", "[fd00::1]:5353", ""},
		"127.0.0.1:5300":                    {"127.0.0.1:5300", "127.0.0.1:5300", "127.0.0.1:5300", ""},
		"tls://9.9.9.9":                     {"tls://9.9.9.9:853", "tls://9.9.9.9", "9.9.9.9:853", ""},
		"tls://9.9.9.9:53":                  {"tls://9.9.9.9:53", "tls://9.9.9.9:53", "9.9.9.9:53", ""},
		"tls://9.9.9.9%dns.quad9.net":       {"tls://9.9.9.9%dns.quad9.net:853", "tls://9.9.9.9%dns.quad9.net", "9.9.9.9:853", "dns.quad9.net"},
		"tls://9.9.9.9%DNS.quad9.net.:8853": {"tls://9.9.9.9%dns.quad9.net:8853", "tls://9.9.9.9%dns.quad9.net:8853", "9.9.9.9:8853", "dns.quad9.net"},
		"tls://::1":                         {"tls://[::1]:853", "tls://[::1]", "[::1]:853", ""},
		"tls://2620:fe::fe%dns.quad9.net": {"tls://[2620:fe::fe%dns.quad9.net]:853", "tls://[2620:fe::fe%dns.quad9.net]",
			"[2620:fe::fe]:853", "dns.quad9.net"},
		"tls://[2620:fe::fe%dns.quad9.net]": {"tls://[2620:fe::fe%dns.quad9.net]:853", "tls://[2620:fe::fe%dns.quad9.net]",
			"[2620:fe::fe]:853", "dns.quad9.net"},
		"tls://[2620:fe::fe%dns.quad9.net]:8853": {"tls://[2620:fe::fe%dns.quad9.net]:8853", "tls://[2620:fe::fe%dns.quad9.net]:8853",
			"[2620:fe::fe]:8853", "dns.quad9.net"},
	} {
		a, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		same := a.String() == want.full && a.Short() == want.short && a.Addr.String() == want.addr && a.ServerName == want.name
		if !same || a.TLS != strings.HasPrefix(text, "tls://") {
			t.Errorf("%s: %+v, %s, %s; want %+v", text, a, a, a.Short(), want)
		}
		plain, err := ParsePlain(text)
		if a.TLS != (err != nil) || !a.TLS && plain != a {
			t.Errorf("%s without TLS: %+v, %v", text, plain, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "is not a server: write",
		"kube-dns":                      "is not a server: write an address with or without a port, or tls://address%name; names are not resolved here",
		"https://9.9.9.9":               "is not a server: write",
		"10.0.0.1:x":                    "is not a server: write",
		"10.0.0.1:0":                    "is not a server's address",
		"0.0.0.0":                       "is not a server's address",
		"[::]:53":                       "is not a server's address",
		"224.0.0.1":                     "is not a server's address",
		"::ffff:10.0.0.1":               "is not a server's address",
		"fe80::1%eth0":                  "a link-local server cannot be queried",
		"[fe80::1%eth0]:53":             "a link-local server cannot be queried",
		"tls://":                        "is not a server",
		"tls://:1":                      "is not a server",
		"[10.0.0.1]":                    "is not a server",
		"[10.0.0.1]:53":                 "is not a server",
		"tls://[9.9.9.9]":               "is not a server",
		"tls://[9.9.9.9%a.example]":     "is not a server",
		"tls://[fd00::1]:853%a.example": "into brackets",
		"tls://[fd00::1%a.example":      "into brackets",
		"tls://[":                       "is not a server",
		"tls://dns.quad9.net":           "is not a server",
		"tls://10.0.0.1:0":              "is not a server's address",
		"tls://10.0.0.1%":               `"" is not a name that a certificate can have`,
		"tls://10.0.0.1%.":              "is not a name that a certificate can have",
		"tls://10.0.0.1%a..":            "is not a name that a certificate can have",
		"tls://10.0.0.1%a b":            "is not a name that a certificate can have",
		"tls://10.0.0.1%::":             "is not a name that a certificate can have",
		"tls://[fd00::1%a/b]:853":       "is not a name that a certificate can have",
		"tls://[fd00::1%" + strings.Repeat("x", 64) + "]": "is not a name that a certificate can have",
		"tls://fd00::1%a.example:853":                     "put an IPv6 address and its name into brackets",
		"tls://fd00::1%a.example]":                        "into brackets",
	} {
		a, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) || a != (Address{}) {
			t.Errorf("%q: %+v, %v; want an error with %q", text, a, err, want)
		}
		if errors.Is(err, ErrLinkLocal) != strings.Contains(text, "eth0") {
			t.Errorf("%q: %v", text, err)
		}
	}
	const want = `"dns.example" is not a server: write an address with or without a port; names are not resolved here`
	if _, err := ParsePlain("dns.example"); err == nil || err.Error() != want {
		t.Errorf("without TLS: %v", err)
	}
}

func TestRefuse(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::a")}
	for text, refused := range map[string]bool{"169.254.20.10": true, "[fd00::a]:53": true, "169.254.20.10:5353": false, "169.254.20.11": false} {
		a, err := Parse(text)
		testutil.Must(t, err)
		if err := a.Refuse(own); (err != nil) != refused {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// FuzzParse: both forms of an address are parsed as the same address, and neither has a character with a meaning in a Corefile.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"10.0.0.1", "10.0.0.1:53", "[fd00::1]:53", "fd00::1", "tls://9.9.9.9%dns.quad9.net:853", "https://x",
		"tls://[2620:fe::9%dns.quad9.net]:853", "tls://0.0.0.1%0..", "tls://0.0.0.1%.", "tls://", "tls://:1", "tls://[", "tls://0.0.0.1%::"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := Parse(text)
		if err != nil {
			return
		}
		for _, form := range []string{a.String(), a.Short()} {
			if strings.ContainsAny(form, " \t\r\n{}\"#") {
				t.Errorf("%q became %q, which means something in a Corefile", text, form)
			}
			if again, err := Parse(form); err != nil || again != a {
				t.Errorf("%q became %q, which reads as %+v, %v", text, form, again, err)
			}
		}
	})
}
