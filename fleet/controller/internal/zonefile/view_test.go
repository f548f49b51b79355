package zonefile

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
)

// Without --watch, a cluster is watched for three of its heartbeat's periods, which are longer than a minute by default.
func TestRemoveWatches(t *testing.T) {
	const origin, period = "shared.example.", 5 * time.Minute
	soa, err := dns.NewRR(origin + " 60 IN SOA ns." + origin + " host." + origin + " 1 60 60 600 60")
	testutil.Must(t, err)
	empty, err := zone.Parse(origin, []dns.RR{soa})
	testutil.Must(t, err)
	for name, row := range map[string]struct {
		every   time.Duration // between two heartbeats
		want    error
		updates int
	}{
		"alive": {period * 12 / 10, ErrAlive, 0},
		"dead":  {time.Hour, nil, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			begun, updates := time.Now(), 0
			dial := testutil.Piped(func(c *dns.Conn, m *dns.Msg) {
				var records []dns.RR
				if m.Opcode == dns.OpcodeUpdate {
					updates++
				} else {
					beat := zone.Beat{Counter: 1 + uint64(time.Since(begun)/row.every), Instance: "one", Period: period}
					records = slices.Concat([]dns.RR{soa}, empty.PlanBeat("bbbbbbbb", beat), []dns.RR{soa})
				}
				testutil.Check(t, testutil.Reply(c, m, records...))
			})
			v := &View{Zone: &v1alpha1.DNSZone{}, client: &rfc2136.Client{Zone: origin, Dial: dial}}
			if err := v.Remove(t.Context(), &testutil.Output{}, "bbbbbbbb", true, 0); !errors.Is(err, row.want) || updates != row.updates {
				t.Errorf("%s: %v, %d updates, want %d", name, err, updates, row.updates)
			}
			if took := time.Since(begun); took != 3*period {
				t.Errorf("%s: watched for %s, want %s", name, took, 3*period)
			}
		})
	}
}
