package zonewriter

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/zone"
)

// A user removes a dead cluster by the command while this process removes it too: no host that is already gone is sent again.
func TestRemovedMeanwhile(t *testing.T) {
	const origin = "shared.example."
	me, dead := zone.Identity{Cluster: "cluster1", Instance: "i"}, zone.Identity{Cluster: "cluster2", Instance: "j"}
	publish := func(who zone.Identity, host, address string) []dns.RR {
		return Published(t, origin, who, zone.Publication{
			Host: host + "." + origin, Strategy: zone.Simple, TTL: 60, Addresses: []netip.Addr{netip.MustParseAddr(address)}})
	}
	soa, err := dns.NewRR(origin + " 60 IN SOA ns." + origin + " host." + origin + " 1 60 60 600 60")
	if err != nil {
		t.Fatal(err)
	}
	mine := append([]dns.RR{soa}, publish(me, "a", "192.0.2.1")...)
	synctest.Test(t, func(t *testing.T) {
		updates := 0
		serve := func(conn net.Conn) {
			c := dns.Conn{Conn: conn}
			defer c.Close()
			m, err := c.ReadMsg()
			if err != nil {
				t.Error(err)
				return
			}
			answer := new(dns.Msg).SetReply(m)
			if answer.Opcode = m.Opcode; m.Opcode == dns.OpcodeUpdate {
				updates++
			} else {
				answer.Answer = slices.Concat(mine, []dns.RR{soa}) // without the dead cluster
			}
			if err := c.WriteMsg(answer); err != nil {
				t.Error(err)
			}
		}
		p, err := New(Options{Zone: origin, Server: "192.0.2.1:53", Identity: me, Heartbeat: time.Minute,
			Dial: func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				go serve(far)
				return near, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		p.state, err = zone.Parse(origin, slices.Concat(mine, publish(dead, "a", "192.0.2.2"), publish(dead, "b", "192.0.2.2")))
		if err != nil {
			t.Fatal(err)
		}
		if !p.removeOne(t.Context(), dead.Cluster, []string{dead.Cluster}) || updates != 2 {
			t.Errorf("%d updates were sent, want 2: for host a and for the heartbeat", updates)
		}
	})
}

// While a dead cluster's records are kept, because its addresses may still work, they are not looked at in each round.
func TestKeptWaits(t *testing.T) {
	const origin = "shared.example."
	kept := zone.Publication{Host: "a." + origin, Strategy: zone.Simple, TTL: 60, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}
	for heartbeat, most := range map[time.Duration]time.Duration{time.Minute: time.Minute, zone.MaxPeriod: 5 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			dead, calls := zone.Identity{Cluster: "cluster2", Instance: "j"}, 0
			p, err := New(Options{Zone: origin, Server: "192.0.2.1:53", Identity: zone.Identity{Cluster: "cluster1", Instance: "i"},
				Heartbeat: heartbeat, Works: func(zone.Claim) bool { calls++; return true }})
			if err != nil {
				t.Fatal(err)
			}
			soa, err := dns.NewRR(origin + " 60 IN SOA ns." + origin + " host." + origin + " 1 60 60 600 60")
			if err != nil {
				t.Fatal(err)
			}
			if p.state, err = zone.Parse(origin, append(Published(t, origin, dead, kept), soa)); err != nil {
				t.Fatal(err)
			}
			goesOn := p.removeOne(t.Context(), dead.Cluster, []string{dead.Cluster})
			if wait := time.Until(p.removal); !goesOn || calls != 1 || wait < most/2 || wait > latest(most) {
				t.Errorf("goes on: %t, %d calls, next after %s, want about %s", goesOn, calls, wait, most)
			}
		})
	}
}

// Records that another writer takes away are written again at once, and then later each time. A change waits for none of that.
func TestRepairPause(t *testing.T) {
	p, h, now := &Publisher{o: Options{Validate: time.Hour}}, &host{}, time.Unix(0, 0)
	for i, shortest := range []time.Duration{0, pause * 8 / 10, pause * 16 / 10, pause * 32 / 10} {
		h.status.Programmed = true
		if waits := p.gone(h, 0, now); waits != (i > 0) || i > 0 && h.next.Sub(now) < shortest {
			t.Errorf("gone %d times: waits: %t, until %v", i+1, waits, h.next)
		}
		now = h.next
	}
	h.status.Programmed = true
	if !p.gone(h, 0, now) {
		t.Fatal("a fifth repair does not wait")
	}
	h.set++
	if p.gone(h, 0, now) {
		t.Error("a change waits for the repair")
	}
}
