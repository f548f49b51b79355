package zones

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestConditions has what is known of a record, and the four conditions by status and reason.
func TestConditions(t *testing.T) {
	now := time.Unix(10_000, 0)
	good, refused := &Record{Verdict: Verdict{Accepted, "in"}, Zone: "z"}, &Record{Verdict: Verdict{NotAllowed, "not allowed"}, Zone: "z"}
	deleted := &Record{Verdict: Verdict{Deleting, "the record is being deleted"}, Zone: "z"}
	ready, waiting := &Zone{Verdict: Verdict{Accepted, ""}}, &Zone{Verdict: Verdict{NoKey, "no Secret"}}
	one, two := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for name, c := range map[string]struct {
		record        *Record
		zone          *Zone
		progress      Progress
		checked, sick []netip.Addr
		want, message string
	}{
		"done": {record: good, zone: ready, progress: Progress{Done: true},
			want: "Accepted=True/Accepted Programmed=True/Programmed Healthy=Unknown/NotChecked UnresolvedConflictDiscovered=False/NoConflict"},
		"on its way": {record: good, zone: ready,
			want: "Accepted=True/Accepted Programmed=False/Writing Healthy=Unknown/NotChecked UnresolvedConflictDiscovered=False/NoConflict"},
		"the primary is away": {record: good, zone: ready, progress: Progress{Reason: "Unreachable", Message: "connection refused", Attempt: 3, Since: now.Add(-150 * time.Second)},
			want:    "Accepted=True/Accepted Programmed=False/Unreachable Healthy=Unknown/NotChecked UnresolvedConflictDiscovered=False/NoConflict",
			message: "connection refused; current attempt is 3 in 2 minutes"},
		"a conflict": {record: good, zone: ready, progress: Progress{Reason: "Conflict", Conflict: "ConflictingStrategyDiscovered", ConflictMessage: "bbb has Simple", Attempt: 2, Since: now.Add(-time.Minute)},
			want:    "Accepted=True/Accepted Programmed=False/Conflict Healthy=Unknown/NotChecked UnresolvedConflictDiscovered=True/ConflictingStrategyDiscovered",
			message: "bbb has Simple; current attempt is 2 in 1 minutes"},
		"a conflict that stops nothing": {record: good, zone: ready, progress: Progress{Done: true, Conflict: "TwoDefaultGeos"},
			want: "Accepted=True/Accepted Programmed=True/Programmed Healthy=Unknown/NotChecked UnresolvedConflictDiscovered=True/TwoDefaultGeos"},
		"the host is full": {record: good, zone: ready, progress: Progress{Done: true, Note: "RRsetFull", NoteMessage: "raise max-records-per-type"},
			want:    "Accepted=True/Accepted Programmed=True/RRsetFull Healthy=Unknown/NotChecked UnresolvedConflictDiscovered=False/NoConflict",
			message: "raise max-records-per-type"},
		"the zone has no key": {record: good, zone: waiting, progress: Progress{Done: true},
			want:    "Accepted=True/Accepted Programmed=False/ZoneNotReady Healthy=Unknown/NotChecked UnresolvedConflictDiscovered=False/NoConflict",
			message: "DNSZone z: NoKey: no Secret"},
		"an older record says otherwise": {record: &Record{Verdict: Verdict{Contradiction, "spec.ttl"}, Zone: "z"}, zone: ready, progress: Progress{Done: true},
			want:    "Accepted=False/Contradiction Programmed=False/NotAccepted Healthy=Unknown/NotChecked UnresolvedConflictDiscovered=False/NoConflict",
			message: "no other cluster conflicts with it; Accepted names the DNSRecord that does"},
		"refused": {record: refused, zone: ready, progress: Progress{Done: true},
			want:    "Accepted=False/NotAllowed Programmed=False/NotAccepted Healthy=Unknown/NotChecked UnresolvedConflictDiscovered=False/NoConflict",
			message: "nothing is published: not allowed"},
		"deleted, and the zone has no key": {record: deleted, zone: waiting, progress: Progress{Kept: true},
			want:    "Accepted=False/Deleting Programmed=False/ZoneNotReady Healthy=Unknown/NotChecked UnresolvedConflictDiscovered=False/NoConflict",
			message: "what was published stays in the zone: DNSZone z: NoKey: no Secret; with deletionPolicy: Orphan"},
		"deleted, and there is no zone": {record: &Record{Verdict: Verdict{NoZone, "no DNSZone has the host"}}, zone: &Zone{}, progress: Progress{Kept: true},
			want:    "Accepted=False/NoZone Programmed=False/ZoneNotReady Healthy=Unknown/NotChecked UnresolvedConflictDiscovered=False/NoConflict",
			message: "what was published stays in the zone: no DNSZone has the host; with deletionPolicy: Orphan"},
		"deleted, and not read back yet": {record: deleted, zone: ready, progress: Progress{Kept: true},
			want: "Accepted=False/Deleting Programmed=False/Leaving Healthy=Unknown/NotChecked UnresolvedConflictDiscovered=False/NoConflict"},
		"deleted, and another has the cluster's id": {record: deleted, zone: ready, progress: Progress{Kept: true, Reason: "ClusterIDInUse", Message: "by y", Conflict: "ClusterIDInUse"},
			want:    "Accepted=False/Deleting Programmed=False/ClusterIDInUse Healthy=Unknown/NotChecked UnresolvedConflictDiscovered=False/NoConflict",
			message: "what was published stays in the zone: by y"},
		"deleted, and gone": {record: deleted, zone: ready, progress: Progress{Kept: true, Done: true},
			want:    "Accepted=False/Deleting Programmed=False/NotAccepted Healthy=Unknown/NotChecked UnresolvedConflictDiscovered=False/NoConflict",
			message: "nothing is published: the record is being deleted"},
		"refused, and not out of the zone yet": {record: refused, zone: ready, progress: Progress{Reason: "Unreachable", Message: "connection refused"},
			want:    "Accepted=False/NotAllowed Programmed=False/Unreachable Healthy=Unknown/NotChecked UnresolvedConflictDiscovered=False/NoConflict",
			message: "what was published stays in the zone: connection refused"},
		"programmed, and the primary is away for two heartbeats": {record: good, zone: ready, progress: Progress{Done: true, Away: "Unreachable", Read: now.Add(-10 * time.Minute), Fresh: 10 * time.Minute},
			want: "Accepted=True/Accepted Programmed=True/Programmed Healthy=Unknown/NotChecked UnresolvedConflictDiscovered=False/NoConflict"},
		"programmed, and the primary is away for longer": {record: good, zone: ready, progress: Progress{Done: true, Away: "Unreachable", Read: now.Add(-10*time.Minute - time.Second), Fresh: 10 * time.Minute},
			want:    "Accepted=True/Accepted Programmed=Unknown/Unreachable Healthy=Unknown/NotChecked UnresolvedConflictDiscovered=False/NoConflict",
			message: "read back from the zone at 1970-01-01T02:36:39Z; the primary cannot be read since"},
		"programmed, and read": {record: good, zone: ready, progress: Progress{Done: true, Read: now.Add(-time.Hour), Fresh: 10 * time.Minute},
			want: "Accepted=True/Accepted Programmed=True/Programmed Healthy=Unknown/NotChecked UnresolvedConflictDiscovered=False/NoConflict"},
		"well": {record: good, zone: ready, progress: Progress{Done: true}, checked: []netip.Addr{one, two},
			want: "Accepted=True/Accepted Programmed=True/Programmed Healthy=True/Healthy UnresolvedConflictDiscovered=False/NoConflict"},
		"one is sick": {record: good, zone: ready, progress: Progress{Done: true}, checked: []netip.Addr{one, two}, sick: []netip.Addr{two},
			want:    "Accepted=True/Accepted Programmed=True/Programmed Healthy=False/SomeSick UnresolvedConflictDiscovered=False/NoConflict",
			message: "1 of 2 addresses fail their health check: 192.0.2.2"},
		"all are sick": {record: good, zone: ready, progress: Progress{Done: true}, checked: []netip.Addr{one}, sick: []netip.Addr{one},
			want: "Accepted=True/Accepted Programmed=True/Programmed Healthy=False/AllSick UnresolvedConflictDiscovered=False/NoConflict"},
	} {
		got := Conditions(c.record, c.zone, c.progress, c.checked, c.sick, now)
		if s := short(got); s != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, s, c.want)
		}
		var messages []string
		for _, condition := range got {
			if condition.Message == "" && c.progress.Conflict != "TwoDefaultGeos" {
				t.Errorf("%s: %s has no message", name, condition.Type)
			}
			messages = append(messages, condition.Message)
		}
		if !strings.Contains(strings.Join(messages, "\n")+"\n", c.message) {
			t.Errorf("%s: no %q in %q", name, c.message, messages)
		}
	}
}

func short(conditions []metav1.Condition) string {
	var out []string
	for _, c := range conditions {
		out = append(out, c.Type+"="+string(c.Status)+"/"+c.Reason)
	}
	return strings.Join(out, " ")
}
