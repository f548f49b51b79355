package testutil

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// pair is a client and a server namespace, both families, the server at 10.0.0.2 and fd00::2.
func pair(t *testing.T) (client, server *NetNS) {
	t.Helper()
	client, server = NewNS(t, "client"), NewNS(t, "server")
	VethPair(t, client, "eth0", server, "eth0")
	for _, p := range []string{"10.0.0.1/24", "fd00::1/64"} {
		client.AddAddr("eth0", netip.MustParsePrefix(p))
	}
	for _, p := range []string{"10.0.0.2/24", "fd00::2/64"} {
		server.AddAddr("eth0", netip.MustParsePrefix(p))
	}
	return client, server
}

var servers = []netip.AddrPort{netip.MustParseAddrPort("10.0.0.2:53"), netip.MustParseAddrPort("[fd00::2]:53")}

func TestDNSServer(t *testing.T) {
	RequireRoot(t)
	t.Parallel()
	client, ns := pair(t)
	s := ServeDNS(t, ns, DNSConfig{
		Name: "KUBEDNS", Listen: servers, Zones: []string{"cluster.local"},
		Records: []string{"web.cluster.local. 7 IN A 10.96.1.1", "web.cluster.local. 7 IN TXT hello"},
	})
	tests := []struct {
		name    string
		qtype   uint16
		opts    AskOptions
		rcode   string
		answers string // types and TTLs of the answer section
		udpTC   bool
		atLeast int
	}{
		{name: "a.cluster.local", qtype: dns.TypeA, rcode: "NOERROR", answers: "A 30"},
		{name: "a.cluster.local", qtype: dns.TypeAAAA, rcode: "NOERROR", answers: "AAAA 30"},
		{name: "a.cluster.local", qtype: dns.TypeMX, rcode: "NOERROR"},
		{name: "WEB.cluster.local", qtype: dns.TypeA, rcode: "NOERROR", answers: "A 7"},
		{name: "web.cluster.local", qtype: dns.TypeAAAA, rcode: "NOERROR"},
		{name: "size-3000.cluster.local", qtype: dns.TypeTXT, opts: AskOptions{EDNS: 4096}, rcode: "NOERROR", answers: "TXT 30", atLeast: 3000},
		{name: "size-3000.cluster.local", qtype: dns.TypeTXT, rcode: "NOERROR", answers: "TXT 30", udpTC: true},
		{name: "ttl-5.a.cluster.local", qtype: dns.TypeA, rcode: "NOERROR", answers: "A 5"},
		{name: "rcode-2.cluster.local", qtype: dns.TypeA, rcode: "SERVFAIL"},
		{name: "rcode-3.cluster.local", qtype: dns.TypeA, rcode: "NXDOMAIN"},
		{name: "example.org", qtype: dns.TypeA, rcode: "REFUSED"},
	}
	for _, tt := range tests {
		for _, server := range servers {
			for _, network := range []string{"udp", "tcp"} {
				t.Run(fmt.Sprintf("%s/%s/%s/%s", tt.name, dns.TypeToString[tt.qtype], server.Addr(), network), func(t *testing.T) {
					a, err := Ask(client, server, tt.name, tt.qtype, network, tt.opts)
					Must(t, err)
					if tc := tt.udpTC && network == "udp"; tc || a.Msg.Truncated {
						if !tc || !a.Msg.Truncated {
							t.Errorf("truncated %v, want %v", a.Msg.Truncated, tc)
						}
						return
					}
					var answers []string
					for _, rr := range a.Msg.Answer {
						answers = append(answers, fmt.Sprintf("%s %d", dns.TypeToString[rr.Header().Rrtype], rr.Header().Ttl))
					}
					if a.Who != "KUBEDNS" || a.Rcode() != tt.rcode || strings.Join(answers, ",") != tt.answers || a.Size < tt.atLeast {
						t.Errorf("got %v with %v, want %s with %s", a, answers, tt.rcode, tt.answers)
					}
					if from := a.Client; from != netip.MustParseAddr("10.0.0.1") && from != netip.MustParseAddr("fd00::1") {
						t.Errorf("seen as %s", from)
					}
				})
			}
		}
	}
	if asked := s.Asked("rcode-2.cluster.local"); asked != 4 {
		t.Errorf("counted %d questions, want 4", asked)
	}
	if udp, tcp := s.Questions("udp"), s.Questions("tcp"); udp != 2*len(tests) || tcp != 2*len(tests) {
		t.Errorf("counted %d and %d questions, want %d each", udp, tcp, 2*len(tests))
	}
	if s.Forget(); s.Questions("") != 0 || len(s.Log()) != 0 {
		t.Error("Forget does not")
	}
}

// TestWrongSource answers a query from an address that was not queried.
func TestWrongSource(t *testing.T) {
	RequireRoot(t)
	t.Parallel()
	client, ns := pair(t)
	ns.AddAddr("eth0", netip.MustParsePrefix("10.0.0.3/24"))
	ServeDNS(t, ns, DNSConfig{Name: "S", Listen: servers[:1]})
	ns.RunInput(`table ip t {
		chain in { type filter hook prerouting priority -300; ip daddr 10.0.0.3 ip daddr set 10.0.0.2; }
	}`, "nft", "-f", "-")
	_, err := Ask(client, netip.MustParseAddrPort("10.0.0.3:53"), "a", dns.TypeA, "udp", AskOptions{})
	var wrong *WrongSourceError
	if !errors.As(err, &wrong) || wrong.Came != servers[0] {
		t.Errorf("got %v", err)
	}
}
