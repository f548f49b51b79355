package main

import (
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/edge/edgeconfig"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestNoKeyIsNotUnsigned: with a key configured, no query leaves without its signature, also before the key can be read for the first time.
func TestNoKeyIsNotUnsigned(t *testing.T) {
	queries := make(chan *dns.Msg, 8)
	t.Cleanup(func() { // after the primary's end, which waits for its handlers
		for range len(queries) {
			t.Errorf("an unsigned query reached the primary: %v", (<-queries).Question)
		}
	})
	primary := testutil.ServeBoth(t, func(w dns.ResponseWriter, m *dns.Msg) {
		queries <- m
		_ = w.WriteMsg(new(dns.Msg).SetRcode(m, dns.RcodeRefused))
	})
	r := &edge{log: slog.New(slog.DiscardHandler), env: env{readFile: func(path string) ([]byte, error) {
		return nil, fmt.Errorf("read %s: %w", path, fs.ErrNotExist)
	}}}
	z := edgeconfig.Zone{Name: "glb.example", Key: "/etc/keys"}
	z.Primary.Addr = netip.MustParseAddrPort(primary)
	_, err := r.client(z, edgeconfig.Limits{}).Serial(t.Context())
	testutil.WantError(t, err, "no valid TSIG key in /etc/keys", "the zone's serial is read without a key")
}
