package evidence

import (
	"net/netip"
	"testing"
	"time"

	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

var (
	pod   = steer.Client{Source: netip.MustParseAddr("10.244.1.3"), Protocol: steer.UDP, Address: netip.MustParseAddr("169.254.20.11")}
	other = steer.Client{Source: netip.MustParseAddr("fd00:244::4"), Protocol: steer.TCP, Address: netip.MustParseAddr("fd00:90de:d95::b")}
)

const gap = 800 * time.Millisecond

// reading is one reading of the switch: its time, each client's last delivered and last arrived query, and the lease.
type reading struct {
	at           time.Duration // since the test's beginning
	asked, heard map[steer.Client]time.Duration
	slack        time.Duration
	unleased     bool
	since        time.Duration
	proven       time.Duration // 0: at this moment
}

type notes = map[steer.Client]time.Duration

func TestJudge(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	for _, c := range []struct {
		name     string
		readings []reading
		want     []steer.Client // in all
		again    bool           // after the last
	}{
		{name: "two questions, not heard", readings: []reading{
			{at: 1 * s, asked: notes{pod: 900 * ms}}, {at: 7 * s, asked: notes{pod: 5900 * ms}},
		}, want: []steer.Client{pod}},
		{name: "one question", readings: []reading{
			{at: 1 * s, asked: notes{pod: 900 * ms}}, {at: 2 * s, asked: notes{pod: 900 * ms}}, {at: 30 * s, asked: notes{pod: 900 * ms}},
		}},
		{name: "heard", readings: []reading{
			{at: 1 * s, asked: notes{pod: 900 * ms}, heard: notes{pod: 900 * ms}}, {at: 7 * s, asked: notes{pod: 5900 * ms}, heard: notes{pod: 5900 * ms}},
		}},
		{name: "heard long ago, not any more", readings: []reading{
			{at: 10 * s, asked: notes{pod: 9 * s}, heard: notes{pod: 1 * s}}, {at: 16 * s, asked: notes{pod: 15 * s}, heard: notes{pod: 1 * s}},
		}, want: []steer.Client{pod}},
		{name: "heard between the two", readings: []reading{
			{at: 1 * s, asked: notes{pod: 900 * ms}}, {at: 7 * s, asked: notes{pod: 5900 * ms}, heard: notes{pod: 3 * s}},
		}},
		{name: "a burst: its questions are one", readings: []reading{
			{at: 1 * s, asked: notes{pod: 300 * ms}}, {at: 1500 * ms, asked: notes{pod: 1000 * ms}},
		}},
		{name: "a minute between the two: the first counts no more", readings: []reading{
			{at: 1 * s, asked: notes{pod: 900 * ms}}, {at: 62 * s, asked: notes{pod: 61500 * ms}},
		}},
		{name: "reading was held up: heard seems older by that", readings: []reading{
			{at: 1 * s, asked: notes{pod: 900 * ms}, heard: notes{pod: 700 * ms}, slack: 200 * ms},
			{at: 7 * s, asked: notes{pod: 5900 * ms}, heard: notes{pod: 5700 * ms}, slack: 200 * ms},
		}},
		{name: "a tick of the clock", readings: []reading{
			{at: 1 * s, asked: notes{pod: 900 * ms}, heard: notes{pod: 896 * ms}}, {at: 7 * s, asked: notes{pod: 5900 * ms}, heard: notes{pod: 5896 * ms}},
		}},
		{name: "no lease", readings: []reading{
			{at: 1 * s, asked: notes{pod: 900 * ms}, unleased: true}, {at: 7 * s, asked: notes{pod: 5900 * ms}, unleased: true},
		}},
		{name: "the lease began anew between the two", readings: []reading{
			{at: 1 * s, asked: notes{pod: 900 * ms}}, {at: 7 * s, asked: notes{pod: 5900 * ms}, since: 3 * s},
		}},
		{name: "no proof yet after the second", readings: []reading{
			{at: 1 * s, asked: notes{pod: 900 * ms}}, {at: 7 * s, asked: notes{pod: 5900 * ms}, proven: 5800 * ms},
		}, again: true},
		{name: "the proof comes at the next look", readings: []reading{
			{at: 1 * s, asked: notes{pod: 900 * ms}}, {at: 7 * s, asked: notes{pod: 5900 * ms}, proven: 5800 * ms}, {at: 7500 * ms, asked: notes{pod: 5900 * ms}},
		}, want: []steer.Client{pod}},
		{name: "the stopped agent of a busy node: all asked, all heard", readings: []reading{
			{at: 60 * s, asked: notes{pod: 59 * s, other: 59500 * ms}, heard: notes{pod: 59 * s, other: 59500 * ms}},
		}},
		{name: "one of two", readings: []reading{
			{at: 1 * s, asked: notes{pod: 900 * ms, other: 900 * ms}, heard: notes{other: 900 * ms}},
			{at: 7 * s, asked: notes{pod: 5900 * ms, other: 5900 * ms}, heard: notes{other: 5900 * ms}},
		}, want: []steer.Client{pod}},
		{name: "a suspect's trial fails, and fails, and fails", readings: []reading{
			{at: 1 * s, asked: notes{pod: 900 * ms}}, {at: 7 * s, asked: notes{pod: 5900 * ms}},
			{at: 24 * s, asked: notes{pod: 23 * s}}, {at: 120 * s, asked: notes{pod: 119 * s}},
			{at: 600 * s, asked: notes{pod: 599 * s}}, {at: 2000 * s, asked: notes{pod: 1999 * s}},
		}, want: []steer.Client{pod, pod, pod, pod, pod}},
		{name: "a suspect's trial came under an earlier lease", readings: []reading{
			{at: 1 * s, asked: notes{pod: 900 * ms}}, {at: 7 * s, asked: notes{pod: 5900 * ms}}, {at: 24 * s, asked: notes{pod: 23 * s}, since: 23500 * ms},
		}, want: []steer.Client{pod}},
		{name: "a suspect that was not tried since", readings: []reading{
			{at: 1 * s, asked: notes{pod: 900 * ms}}, {at: 7 * s, asked: notes{pod: 5900 * ms}}, {at: 8 * s, asked: notes{pod: 6900 * ms}},
		}, want: []steer.Client{pod}},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := time.Unix(1_800_000_000, 0)
			j := newJudge()
			var got []steer.Client
			var again bool
			for _, r := range c.readings {
				now := start.Add(r.at)
				ages := func(n notes) notes {
					out := notes{}
					for client, at := range n {
						out[client] = r.at - at
					}
					return out
				}
				var dropped []steer.Client
				dropped, again = j.findDropped(now, steer.Notes{Delivered: ages(r.asked), Arrived: ages(r.heard), Slack: r.slack + 4*time.Millisecond}, gap, func(steer.Client) (Lease, bool) {
					proven := now
					if r.proven > 0 {
						proven = start.Add(r.proven)
					}
					return Lease{Since: start.Add(r.since), Renewed: proven}, !r.unleased
				})
				for _, c := range dropped {
					j.noteBypass(c, j.next(c, true, now))
				}
				got = append(got, dropped...)
			}
			testutil.Equal(t, "verdicts", c.want, got)
			testutil.Equal(t, "again", c.again, again)
		})
	}
}

// The switch's bypassed clients are taken over.
func TestReconcile(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	j := newJudge()
	if ended := j.reconcile(start, []steer.Suspect{{Client: pod}, {Client: other, Held: time.Minute}}); len(ended) != 0 || len(j.bypassed) != 2 {
		t.Fatalf("an earlier agent's: %v, %v", ended, j.bypassed)
	}
	j.dueTrials(start, func(steer.Client) (Lease, bool) { return Lease{}, true })
	j.noteBypass(pod, j.next(pod, true, start.Add(time.Second)))
	if h := j.bypassed[pod]; !h.Since.Equal(start) || !h.nextTrial().Equal(start.Add(podstate.Soon)) {
		t.Errorf("held again, so its next trial is put off: %+v", h)
	}
	if ended := j.reconcile(start, []steer.Suspect{{Client: pod}}); len(ended) != 1 || ended[0] != other || len(j.bypassed) != 1 {
		t.Errorf("one cleared: %v, %v", ended, j.bypassed)
	}
}

// Suspected clients are forgotten with the switch's records, so that the switch's sets bound the memory.
func TestJudgeForgets(t *testing.T) {
	j := newJudge()
	lease := func(steer.Client) (Lease, bool) { return Lease{}, true }
	now := time.Unix(1_800_000_000, 0)
	j.findDropped(now, steer.Notes{Delivered: notes{pod: time.Second}}, gap, lease)
	if len(j.firstDropped) != 1 {
		t.Fatalf("not remembered: %v", j.firstDropped)
	}
	j.findDropped(now.Add(2*time.Minute), steer.Notes{}, gap, lease)
	testutil.Equal(t, "drops that are still remembered", 0, len(j.firstDropped))
}
