package inspect

import (
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/pods/podindex"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

// reading returns the Reading of a busy node. times multiplies its counters, except the pod shop/quiet's.
func reading(at time.Time, times uint64) *Reading {
	red := steer.Redirect{ClusterDNS: addr("10.96.0.10"), Steering: addr("169.254.20.11")}
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m := &Reading{At: at, Status: &Status{
		Agent: &node.Status{Instance: "abc", PID: 7, Version: "v1", Started: since, Serving: true, Ready: true,
			Cache: &node.CacheStatus{Bytes: 2 << 20, Limit: 32 << 20, Hits: int64(900 * times), Misses: int64(100 * times)},
			Leases: []node.LeaseStatus{{Address: red.Steering, Protocol: "tcp", Since: since, Reason: "no answer"},
				{Address: red.Steering, Protocol: "udp", Held: true, Since: since}}},
		Counters: map[string]steer.Counter{steer.CounterDeliveredUDP: {Packets: 1000 * times}, steer.CounterFallbackTCP: {Packets: 3 * times}},
	}}
	view := func(name string, queries uint64, state podfile.State) {
		m.Pods = append(m.Pods, PodView{Pod: name, Container: name, Interface: "eth0", Decisions: []podfile.Decision{{Redirect: red, State: state}},
			Counts: &podindex.Counts{Queries: queries, Hits: queries / 2, Failures: queries / 100}})
	}
	view("shop/quiet", 40, podfile.Steered)
	view("shop/waits", 0, podfile.Pending)
	for i := range uint64(12) {
		view("shop/pod-"+string(rune('a'+i)), 10*times*(i+1), podfile.Steered)
	}
	return m
}

// TestReadingText compares the text of `status --watch` with golden files.
func TestReadingText(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC)
	before, now := reading(at, 1), reading(at.Add(2*time.Second), 2)
	golden.Check(t, "reading-first.txt", before.Text(nil))
	golden.Check(t, "reading.txt", now.Text(before))

	// Counts of another agent give no rates for this one. The kernel's counters continue, unless its table was made again.
	other := reading(at.Add(2*time.Second), 2)
	other.Status.Agent.Instance = "def"
	if text := other.Text(before); !strings.Contains(text, "to the cache        500  0") || strings.Contains(text, "shop/pod-a") {
		t.Errorf("rates over two agents:\n%s", text)
	}
	anew := reading(at.Add(2*time.Second), 2)
	anew.Status.Counters[steer.CounterDeliveredUDP] = steer.Counter{Packets: 1}
	if text := anew.Text(before); !strings.Contains(text, "to the cache        -    0") {
		t.Errorf("rates of a counter that began anew:\n%s", text)
	}
	idle := reading(at.Add(2*time.Second), 1)
	if text := idle.Text(before); !strings.Contains(text, "no queries") || strings.Contains(text, "QUERIES PER SECOND  IN THE CACHE") {
		t.Errorf("no queries:\n%s", text)
	}
	dead := &Reading{At: at, Status: &Status{NoAgent: "no agent runs on this node", Switch: true, Counters: before.Status.Counters}}
	golden.Check(t, "reading-dead.txt", dead.Text(before))
	later := *dead
	later.At = at.Add(time.Second)
	if text := later.Text(dead); !strings.Contains(text, "to the cache        0    0") {
		t.Errorf("the kernel counts without an agent:\n%s", text)
	}
}

// TestFrame: on a terminal, the text is drawn over the previous one, within the terminal's size; elsewhere it has no control codes.
func TestFrame(t *testing.T) {
	if got := Frame("a\nb\n", 0, 0); got != "a\nb\n\n" {
		t.Errorf("plain: %q", got)
	}
	if got, want := Frame("abcdé\nb\nc\nd\n", 4, 4), "\x1b[Habcd\x1b[K\nb\x1b[K\nc\x1b[K\n\x1b[J"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
