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

// The types of conditions: four of a DNSRecord and a DNSPolicy, the last of them from Kuadrant's RFC 0008; then those of a DNSZone, in
// addition to Accepted.
const (
	ConditionAccepted   = "Accepted"
	ConditionProgrammed = "Programmed"
	ConditionHealthy    = "Healthy"
	ConditionConflict   = "UnresolvedConflictDiscovered"

	ConditionRead          = "Read"
	ConditionClustersHeard = "ClustersHeard"
)

// Reasons of the condition Programmed, in addition to those that a publisher reports.
const (
	Programmed   = "Programmed"   // the zone has what this cluster publishes for the host, confirmed by reading it back
	NotAccepted  = "NotAccepted"  // nothing is published, because Accepted is False
	ZoneNotReady = "ZoneNotReady" // the DNSZone is not accepted, or no longer exists
	Writing      = "Writing"      // the update was not sent, or not read back from the zone yet
	Leaving      = "Leaving"      // the records are being removed from the zone
)

// Reasons of the condition Healthy, then those of other conditions, as noted.
const (
	NotChecked   = "NotChecked"   // no health check, or no address
	Healthy      = "Healthy"      // every address is healthy
	SomeSick     = "SomeSick"     // some addresses are unhealthy
	AllSick      = "AllSick"      // no address is healthy
	NoConflict   = "NoConflict"   // the reason of condition UnresolvedConflictDiscovered if there is no conflict
	ReadReason   = "Read"         // the reason of condition Read if the zone was read
	AllHeard     = "AllHeard"     // a reason of condition ClustersHeard: no cluster is silent
	Silent       = "Silent"       // a reason of condition ClustersHeard: a heartbeat has not changed for three of its periods
	NotRead      = "NotRead"      // a reason of conditions Read and ClustersHeard: not read yet, or (ClustersHeard) no publisher runs
	NoPublishing = "NotPublished" // a reason of condition Read: no publisher runs for the zone
	// a reason of conditions Read and Programmed: the primary's answer is not a valid zone; and of Accepted and Programmed: the Gateway that
	// has the addresses or hosts cannot be read, so what was published stays
	NotReadable = "NotReadable"
)

const staysPublished = "what was published stays in the zone: "

// Progress is how far a publisher is with one host.
type Progress struct {
	// Done means that the zone, as it was read last, has exactly what this cluster publishes for the host. For a removed host, Done means
	// that the zone has nothing of this cluster for the host any more.
	Done bool
	// Reason and Message have the reason why the host is not done; both are empty if it is, or while the change is in progress.
	Reason, Message string
	// Conflict is the reason of the condition UnresolvedConflictDiscovered; empty: there is no conflict. It prevents or delays this cluster's
	// change of the host, or is reported although the host is done. ConflictMessage has the details.
	Conflict, ConflictMessage string
	// Note is a reason to report with Programmed although the host is done, for example RRsetFull.
	Note, NoteMessage string
	// Attempt is how often the publisher found the host not done for its present reason, and Since is when that reason began. Both are zero
	// if there is no reason.
	Attempt    int
	Since      time.Time
	Owners     []string
	Generation uint64
	Writes     uint64
	// Kept means that the DNSRecord has the finalizer, so the zone may have its records until Done is set.
	Kept bool
	// Away is the reason why the zone cannot be read now, or empty. Read is when it was last read. If Away is set and Read is longer ago than
	// Fresh, the condition Programmed of a host that is done becomes Unknown; with Fresh 0 it never does.
	Away  string
	Read  time.Time
	Fresh time.Duration
	// Held is what the zone has for the host, from all clusters; nil if no cluster publishes the host, or the zone was not read yet.
	Held *v1alpha1.Published
}

// Conditions returns a DNSRecord's four conditions, always in the same order. checked are the addresses that have a health check, sick are
// those of checked that fail it.
func Conditions(r *Record, zone *Zone, p Progress, checked, sick []netip.Addr, now time.Time) []metav1.Condition {
	accepted := condition(ConditionAccepted, r.Good(), r.Reason, r.Message)
	programmed := condition(ConditionProgrammed, false, NotAccepted, "nothing is published: "+r.Message)
	switch {
	case r.Reason == NotReadable:
		programmed.Reason, programmed.Message = NotReadable, staysPublished+r.Message
	case !r.Good() && !p.Done && p.Reason != "" && (p.Kept || p.Conflict == ""):
		programmed.Reason, programmed.Message = p.Reason, staysPublished+p.Message
	case !r.Good() && !p.Done && p.Kept && zone.Good():
		programmed.Reason, programmed.Message = Leaving, "what was published is on its way out of the zone"
	case !r.Good() && !p.Done && p.Kept:
		why := r.Message // the host has no zone
		if r.Zone != "" {
			why = fmt.Sprintf("DNSZone %s: %s: %s", r.Zone, zone.Reason, zone.Message)
		}
		programmed.Reason = ZoneNotReady
		programmed.Message = staysPublished + why + "; with deletionPolicy: Orphan the record goes and leaves it there"
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
	conflict := condition(ConditionConflict, false, NoConflict, "neither another cluster nor another DNSRecord conflicts with it")
	if r.Reason == Contradiction {
		conflict.Message = "no other cluster conflicts with it; Accepted names the DNSRecord that does"
	}
	if p.Conflict != "" && r.Good() {
		conflict = condition(ConditionConflict, true, p.Conflict, p.ConflictMessage+attempts(p, now))
	}
	return []metav1.Condition{accepted, programmed, healthy(checked, sick), conflict}
}

// attempts returns a phrase like that of the example in Kuadrant's RFC 0008, or "" if nothing was counted. It counts whole minutes, not
// seconds, because each change of the text is a write of the status.
func attempts(p Progress, now time.Time) string {
	if p.Attempt == 0 || p.Since.IsZero() {
		return ""
	}
	return fmt.Sprintf("; current attempt is %d in %d minutes", p.Attempt, int(now.Sub(p.Since).Minutes()))
}

func healthy(checked, sick []netip.Addr) metav1.Condition {
	out := condition(ConditionHealthy, false, NotChecked, "no address has a health check")
	out.Status = metav1.ConditionUnknown
	switch {
	case len(checked) == 0:
	case len(sick) == 0:
		out = condition(ConditionHealthy, true, Healthy, fmt.Sprintf("%d addresses answer their health check", len(checked)))
	case len(sick) < len(checked):
		message := fmt.Sprintf("%d of %d addresses fail their health check: %s", len(sick), len(checked), some(sick))
		out = condition(ConditionHealthy, false, SomeSick, message)
	default:
		out = condition(ConditionHealthy, false, AllSick, "all addresses fail their health check, so not all are withdrawn: "+some(sick))
	}
	return out
}

// some returns the first ten addresses as text, and the number of the others.
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
