package zone

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// herd is a zone with clusters that beat every minute, and a watcher of it.
type herd struct {
	t      *testing.T
	now    time.Time
	beats  map[string]uint64
	period time.Duration
	watch  Watch
	owners []Claim // of clusters that have no heartbeat
}

func newHerd(t *testing.T, n int) *herd {
	h := &herd{t: t, now: time.Unix(1_700_000_000, 0), beats: map[string]uint64{}, period: time.Minute}
	for i := range n {
		h.beats[fmt.Sprintf("cluster%d", i)] = 1
	}
	h.observe()
	return h
}

func (h *herd) state() *State {
	s := with(h.t, h.owners...)
	for c, n := range h.beats {
		s.Beats[c] = Beat{n, "x", h.period}
	}
	return s
}

func (h *herd) observe() { h.watch.Observe(h.state(), h.now) }

// pass lets time pass in which these beat once a period, and the watcher looks twice a period.
func (h *herd) pass(periods int, living ...string) {
	for range periods {
		for half := range 2 {
			h.now = h.now.Add(h.period / 2)
			if half == 0 {
				for _, c := range living {
					h.beats[c]++
				}
			}
			h.observe()
		}
	}
}

func (h *herd) clusters(from, to int) (out []string) {
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprintf("cluster%d", i))
	}
	return out
}

// One cluster of nine dies: it is reported after three periods, and then removed by one of the others, the next one a period later.
func TestRemovable(t *testing.T) {
	h := newHerd(t, 9)
	living := h.clusters(1, 9)
	h.pass(2, living...)
	if d := h.watch.Dead(ReportAfter); d != nil {
		t.Errorf("dead after two periods: %v", d)
	}
	h.pass(2, living...)
	if d := h.watch.Dead(ReportAfter); !slices.Equal(d, []string{"cluster0"}) {
		t.Errorf("dead after four periods: %v", d)
	}
	acts := func() (out []string) {
		for _, me := range living {
			if len(h.watch.Removable(me)) > 0 {
				out = append(out, me)
			}
		}
		return out
	}
	h.pass(1, living...)
	if a := acts(); len(a) != 0 {
		t.Errorf("%v act after five periods", a)
	}
	for n := 1; n <= 8; n++ {
		h.pass(1, living...)
		if a := acts(); len(a) != n {
			t.Errorf("%d periods: %v act", n+5, a)
		}
	}
	if r := h.watch.Removable("cluster0"); r != nil {
		t.Errorf("the dead one removes %v", r)
	}
	h.beats["cluster0"]++
	h.observe()
	if a, d := acts(), h.watch.Dead(ReportAfter); a != nil || d != nil {
		t.Errorf("it lives again: %v act on %v", a, d)
	}
}

// No cluster is removed while more than a third are silent, by a cluster whose own heartbeat does not get through, or by one that was away.
func TestNotRemovable(t *testing.T) {
	for name, tt := range map[string]struct {
		n      int
		living []string
		me     string
		away   time.Duration
		want   bool
	}{
		"one of three":         {3, []string{"cluster1", "cluster2"}, "cluster1", 0, true},
		"one of two":           {2, []string{"cluster1"}, "cluster1", 0, false},
		"three of nine":        {9, []string{"cluster3", "cluster4", "cluster5", "cluster6", "cluster7", "cluster8"}, "cluster3", 0, true},
		"four of nine":         {9, []string{"cluster4", "cluster5", "cluster6", "cluster7", "cluster8"}, "cluster4", 0, false},
		"half of fifty":        {50, newHerdNames(25, 50), "cluster30", 0, false},
		"I do not get through": {3, []string{"cluster2"}, "cluster1", 0, false},
		"I have no heartbeat":  {3, []string{"cluster1", "cluster2"}, "cluster9", 0, false},
		"I was away":           {3, []string{"cluster1", "cluster2"}, "cluster1", 2 * time.Minute, false},
	} {
		h := newHerd(t, tt.n)
		h.pass(20, tt.living...)
		if tt.away > 0 {
			h.now = h.now.Add(tt.away)
			h.observe()
		}
		if r := h.watch.Removable(tt.me); (len(r) > 0) != tt.want {
			t.Errorf("%s: %v", name, r)
		}
	}
}

func newHerdNames(from, to int) []string { return (*herd)(nil).clusters(from, to) }

// When a cut ends that kept half of all away, some come back before others: no cluster is removed for that.
func TestCutEnds(t *testing.T) {
	h := newHerd(t, 50)
	h.pass(20, h.clusters(25, 50)...)
	h.pass(5, h.clusters(10, 50)...)
	for _, me := range h.clusters(10, 50) {
		if r := h.watch.Removable(me); r != nil {
			t.Fatalf("five periods after the cut %s removes %v", me, r)
		}
	}
	h.pass(3, h.clusters(10, 50)...)
	removed := map[string]bool{}
	for _, me := range h.clusters(10, 50) {
		for _, r := range h.watch.Removable(me) {
			removed[r] = true
		}
	}
	if len(removed) != 10 {
		t.Errorf("eight periods after the cut %v are removed", removed)
	}
}

// A cluster's period may be shorter than the time between two looks: its death is seen nevertheless, by the watcher's own pace.
func TestShortPeriod(t *testing.T) {
	h := newHerd(t, 3)
	h.watch.Pace, h.period = 10*time.Second, time.Second
	h.observe()
	look := func(periods int, living ...string) {
		for range periods {
			h.now = h.now.Add(h.watch.Pace)
			for _, c := range living {
				h.beats[c]++
			}
			h.observe()
		}
	}
	living := h.clusters(1, 3)
	look(2, living...)
	if d := h.watch.Dead(ReportAfter); d != nil {
		t.Errorf("dead after two looks: %v", d)
	}
	look(1, living...)
	if d := h.watch.Dead(ReportAfter); !slices.Equal(d, []string{"cluster0"}) {
		t.Errorf("dead after three looks: %v", d)
	}
	look(4, living...)
	if !slices.ContainsFunc(living, func(me string) bool { return slices.Equal(h.watch.Removable(me), []string{"cluster0"}) }) {
		t.Error("it is never removed")
	}
	h.now = h.now.Add(h.watch.Pace + time.Second)
	h.observe()
	if d := h.watch.Dead(ReportAfter); d != nil {
		t.Errorf("the watcher was away: %v", d)
	}
}

// Owners without a heartbeat are never removed, and count among all.
func TestNoBeatNoDeath(t *testing.T) {
	h := newHerd(t, 2)
	h.owners = []Claim{claimOf("clusterx", www)}
	h.pass(20, "cluster1")
	if r := h.watch.Removable("cluster1"); !slices.Equal(r, []string{"cluster0"}) {
		t.Errorf("one of three: %v", r)
	}
	if _, _, ok := h.watch.Silent("clusterx"); ok {
		t.Error("a cluster without a heartbeat is silent")
	}
}

func TestMayRemove(t *testing.T) {
	other := edit(www, func(p *Publication) { p.Addresses = addrs("192.0.2.2") })
	works, sick := func(Claim) bool { return true }, func(Claim) bool { return false }
	checked := edit(www, func(p *Publication) { p.Health = &Health{Protocol: TCP, Port: 80} })
	for name, tt := range map[string]struct {
		claims []Claim
		dead   []string
		works  func(Claim) bool
		want   bool
	}{
		"another has an address":        {[]Claim{claimOf("cluster1", www), claimOf("cluster2", other)}, []string{"cluster1"}, nil, true},
		"the same address":              {[]Claim{claimOf("cluster1", www), claimOf("cluster2", www)}, []string{"cluster1"}, nil, true},
		"the last address":              {[]Claim{claimOf("cluster1", www)}, []string{"cluster1"}, nil, false},
		"the other one is dead as well": {[]Claim{claimOf("cluster1", www), claimOf("cluster2", other)}, []string{"cluster1", "cluster2"}, nil, false},
		"its health check passes":       {[]Claim{claimOf("cluster1", www), claimOf("cluster2", other)}, []string{"cluster1"}, works, false},
		"its health check fails":        {[]Claim{claimOf("cluster1", checked), claimOf("cluster2", other)}, []string{"cluster1"}, sick, true},
		"nobody asks for its health":    {[]Claim{claimOf("cluster1", checked), claimOf("cluster2", other)}, []string{"cluster1"}, nil, false},
		"bookkeeping without a claim":   {[]Claim{claimOf("cluster2", other)}, []string{"cluster1"}, nil, true},
	} {
		h := with(t, tt.claims...).Hosts[www.Host]
		if got := h.MayRemove("cluster1", tt.dead, tt.works); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
