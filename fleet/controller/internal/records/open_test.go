package records

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
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
