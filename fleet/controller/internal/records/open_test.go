package records

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/fleet/zones/zonewriter"
)

// A DNSZone that cannot be opened has the reason, and delays no other.
func TestInvalidZone(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		name := strings.Repeat(strings.Repeat("a", 60)+".", 3) + "example"
		r.create(strings.NewReplacer("name: shared", "name: long", "zone: shared.example", "zone: "+name).Replace(zoneText))
		r.publish(recordText("web", "host: www.shared.example, addresses: [192.0.2.1]"),
			recordText("far", "host: "+name+", addresses: [192.0.2.1]"))
		r.want("web", programmed)
		r.want("far", "NotAllowed NotAccepted NotChecked NoConflict")
		if c := get(r, "", "long", &v1alpha1.DNSZone{}).Status.Conditions; reasons(c) != "Invalid NotPublished NotRead" || !strings.Contains(c[0].Message, "spec.zone: ") {
			t.Errorf("%+v", c)
		}
	})
}

// A publisher's status in the words of conditions.
func TestProgress(t *testing.T) {
	away := &rfc2136.Error{Kind: rfc2136.Unreachable, Err: errors.New("connection refused")}
	for name, c := range map[string]struct {
		status zonewriter.Status
		away   error
		want   string // done, reason, conflict, note
	}{
		"programmed":             {zonewriter.Status{Programmed: true}, nil, "true   "},
		"left":                   {zonewriter.Status{Left: true}, nil, "true   "},
		"on its way":             {zonewriter.Status{}, nil, "false   "},
		"the primary is away":    {zonewriter.Status{}, away, "false Unreachable  "},
		"not permitted":          {zonewriter.Status{Conflict: &zone.Conflict{Reason: zonewriter.NotPermitted}}, nil, "false NotPermitted  "},
		"another strategy":       {zonewriter.Status{Conflict: &zone.Conflict{Reason: zone.ConflictingStrategy}}, away, "false ConflictingStrategyDiscovered ConflictingStrategyDiscovered "},
		"the cluster's clone":    {zonewriter.Status{Conflict: &zone.Conflict{Reason: zone.ClusterIDInUse}}, nil, "false ClusterIDInUse ClusterIDInUse "},
		"two default geos":       {zonewriter.Status{Programmed: true, Notes: []zone.Conflict{{Reason: zone.ConflictingDefault}}}, nil, "true  ConflictingDefaultGeo "},
		"the set is full":        {zonewriter.Status{Programmed: true, Notes: []zone.Conflict{{Reason: zone.RRsetFull}}}, nil, "true   RRsetFull"},
		"programmed, then alone": {zonewriter.Status{Programmed: true}, away, "true   "},
	} {
		p := progress(&c.status, c.away)
		if (p.Away != "") != (c.away != nil) {
			t.Errorf("%s: the primary is away: %q", name, p.Away)
		}
		if got := fmt.Sprintf("%v %s %s %s", p.Done, p.Reason, p.Conflict, p.Note); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	held := progress(&zonewriter.Status{Programmed: true, Held: &zone.Host{Strategy: zone.Simple, TTL: 60, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Owners: []string{"a"}}}, nil)
	if held.Held == nil || held.Held.TTL != 60 || held.Held.Addresses[0] != "192.0.2.1" || held.Owners[0] != "a" {
		t.Errorf("%+v", held)
	}
}
