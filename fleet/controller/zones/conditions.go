package zones

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
)

// Types of conditions. The last is the seed's.
const (
	ConditionAccepted   = "Accepted"
	ConditionProgrammed = "Programmed"
	ConditionHealthy    = "Healthy"
	ConditionConflict   = "UnresolvedConflictDiscovered"

	ConditionRead          = "Read"
	ConditionClustersHeard = "ClustersHeard"
)

// Reasons of Programmed, beside those of a publisher.
const (
	Programmed   = "Programmed"   // the zone has, as read back, all that the record says
	NotAccepted  = "NotAccepted"  // nothing is published, since Accepted is False
	ZoneNotReady = "ZoneNotReady" // the DNSZone is not accepted
	Writing      = "Writing"      // on its way
	Leaving      = "Leaving"      // what was published is on its way out of the zone
)

// Reasons of Healthy.
const (
	NotChecked   = "NotChecked"   // no health check, or no address
	Healthy      = "Healthy"      // every address answers
	SomeSick     = "SomeSick"     // some do not
	AllSick      = "AllSick"      // none does
	NoConflict   = "NoConflict"   // of UnresolvedConflictDiscovered
	ReadReason   = "Read"         // of Read
	AllHeard     = "AllHeard"     // of ClustersHeard
	Silent       = "Silent"       // of ClustersHeard
	NotRead      = "NotRead"      // of Read and ClustersHeard: not read yet
	NoPublishing = "NotPublished" // of Read: no publisher runs for the zone
	NotReadable  = "NotReadable"  // of Read: what the primary sends is no zone
)

// Progress is what a publisher says of one host.
type Progress struct {
	// Done tells that the zone, as it was read last, has what this cluster was to say, and nothing else of it. Of a host that was
	// removed: that nothing of this cluster is left.
	Done bool
	// Reason and Message say why it is not done; empty while it is on its way.
	Reason, Message string
	// Conflict is the reason why this cluster does not write, or that it has to say although it is done; ConflictMessage names who and what.
	Conflict, ConflictMessage string
	// Note is a reason why something is worth knowing although it is done: RRsetFull.
	Note, NoteMessage string
	// Attempt counts the tries since Since, when it was done last or told something else.
	Attempt    int
	Since      time.Time
	Owners     []string
	Generation uint64
	Writes     uint64
	// Kept tells that the record's finalizer is on: as long as the host is not done, the zone may have what the record said.
	Kept bool
	// Away says why the zone cannot be read, Read when it was read last, Fresh for how long that counts; 0: for ever.
	Away  string
	Read  time.Time
	Fresh time.Duration
	// Held is what the zone has for the host; nil before it was read.
	Held *v1alpha1.Published
}

// Conditions are a record's, in order. sick lists those of its addresses that fail their health check, checked all that are asked.
func Conditions(r *Record, zone *Zone, p Progress, checked, sick []netip.Addr, now time.Time) []metav1.Condition {
	accepted := condition(ConditionAccepted, r.Good(), r.Reason, r.Message)
	programmed := condition(ConditionProgrammed, false, NotAccepted, "nothing is published: "+r.Message)
	switch {
	case !r.Good() && !p.Done && p.Reason != "" && (p.Kept || p.Conflict == ""):
		programmed.Reason, programmed.Message = p.Reason, "what was published stays in the zone: "+p.Message
	case !r.Good() && !p.Done && p.Kept && zone.Good():
		programmed.Reason, programmed.Message = Leaving, "what was published is on its way out of the zone"
	case !r.Good() && !p.Done && p.Kept:
		why := r.Message // there is no zone
		if r.Zone != "" {
			why = fmt.Sprintf("DNSZone %s: %s: %s", r.Zone, zone.Reason, zone.Message)
		}
		programmed.Reason, programmed.Message = ZoneNotReady, "what was published stays in the zone: "+why+"; with deletionPolicy: Orphan the record goes and leaves it there"
	case !r.Good():
	case !zone.Good():
		programmed.Reason, programmed.Message = ZoneNotReady, fmt.Sprintf("DNSZone %s: %s: %s", r.Zone, zone.Reason, zone.Message)
	case p.Done && p.Away != "" && p.Fresh > 0 && now.Sub(p.Read) > p.Fresh:
		programmed.Status, programmed.Reason = metav1.ConditionUnknown, p.Away
		programmed.Message = fmt.Sprintf("read back from the zone at %s; the primary cannot be read since", p.Read.UTC().Format(time.RFC3339))
	case p.Done:
		programmed = condition(ConditionProgrammed, true, cmp.Or(p.Note, Programmed), cmp.Or(p.NoteMessage, "read back from the zone"))
	case p.Reason == "":
		programmed.Reason, programmed.Message = Writing, "not read back from the zone yet"
	default:
		programmed.Reason, programmed.Message = p.Reason, p.Message+attempts(p, now)
	}
	conflict := condition(ConditionConflict, false, NoConflict, "no other cluster, and no record of another, stands against it")
	if r.Reason == Contradiction {
		conflict.Message = "no other cluster stands against it; Accepted names the record that does"
	}
	if p.Conflict != "" && r.Good() {
		conflict = condition(ConditionConflict, true, p.Conflict, p.ConflictMessage+attempts(p, now))
	}
	return []metav1.Condition{accepted, programmed, healthy(checked, sick), conflict}
}

// attempts is the seed's phrase. Minutes are whole, so that a status is not written for each second.
func attempts(p Progress, now time.Time) string {
	if p.Attempt == 0 || p.Since.IsZero() {
		return ""
	}
	return fmt.Sprintf("; current attempt is %d in %d minutes", p.Attempt, int(now.Sub(p.Since).Minutes()))
}

func healthy(checked, sick []netip.Addr) metav1.Condition {
	out := metav1.Condition{Type: ConditionHealthy, Status: metav1.ConditionUnknown, Reason: NotChecked, Message: "no address has a health check"}
	switch {
	case len(checked) == 0:
	case len(sick) == 0:
		out = condition(ConditionHealthy, true, Healthy, fmt.Sprintf("%d addresses answer their health check", len(checked)))
	case len(sick) < len(checked):
		out = condition(ConditionHealthy, false, SomeSick, fmt.Sprintf("%d of %d addresses fail their health check: %s", len(sick), len(checked), some(sick)))
	default:
		out = condition(ConditionHealthy, false, AllSick, "all addresses fail their health check and stay published: "+some(sick))
	}
	return out
}

// some names the first ten.
func some(addresses []netip.Addr) string {
	var names []string
	for i, a := range addresses {
		if i == 10 {
			names = append(names, fmt.Sprintf("and %d more", len(addresses)-10))
			break
		}
		names = append(names, a.String())
	}
	return strings.Join(names, ", ")
}

func condition(kind string, good bool, reason, message string) metav1.Condition {
	status := metav1.ConditionFalse
	if good {
		status = metav1.ConditionTrue
	}
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}
