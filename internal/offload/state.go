package offload

import (
	"net/netip"

	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/offload/entries"
	"github.com/neardns/neardns/internal/telemetry"
)

// State is the state of kernel hits: the cache hits that the kernel program at the pods' links answers.
type State struct {
	Auto bool `json:"auto,omitempty"` // kernelHits.mode is auto: Fault and Refused do not count as faults
	Pods int  `json:"pods"`           // pod links where the kernel program serves hits
	Lent int  `json:"lent"`           // offloaded entries
	// Served is only set with arrangement: transparent: the cluster DNS addresses and their backends, to which the kernel program
	// answers queries.
	Served []netip.AddrPort `json:"served,omitempty"`
	// Fetched counts mirrored queries that the agent looked up. Dropped counts mirrored queries for which it had no free slot.
	Fetched uint64    `json:"fetched,omitempty"`
	Dropped uint64    `json:"dropped,omitempty"`
	Answers uint64    `json:"answers"`           // hits since the kernel maps were made; 0 while the program is not loaded
	Refused []Refused `json:"refused,omitempty"` // pods whose hits the kernel program should answer, but does not
	Fault   string    `json:"fault,omitempty"`   // why there are no kernel hits
}

// State returns the state of kernel hits for `neardns-agent status`; nil if kernelHits.mode is off.
func (h *Hits) State() *State {
	h.mu.Lock()
	defer h.mu.Unlock()
	mode := h.Mode()
	if mode.Off {
		return nil
	}
	at := h.keeper.State()
	s := &State{Auto: mode.Optional, Fault: h.fault, Lent: h.Entries.State().Items, Pods: at.Pods, Refused: at.Refused}
	for _, one := range h.hits() {
		s.Answers += one.Hits
	}
	if h.mirror != nil {
		s.Served = h.seen.served
		c := h.mirror.Counts()
		s.Fetched, s.Dropped = c.Fetched, c.Dropped
	}
	return s
}

// Unknown returns why not all backends of the addresses in Options.Served are known; "" if all are.
func (h *Hits) Unknown() string {
	_, why := h.backends.Known()
	return why
}

// Count passes the kernel program's new hits to Options.Answered. Call it before reading the clients' counts.
func (h *Hits) Count() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.paused {
		if err := h.keeper.CountNow(); err != nil {
			h.Log.Debug("cannot read the kernel's hit counts of pods; the shown counts are older", "err", err)
		}
	}
}

// Series returns the counts for the metrics. The hits are counted in pinned maps, which survive a restart of the agent. ok is false if
// kernelHits.mode is off.
func (h *Hits) Series() (_ telemetry.KernelHits, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	mode := h.Mode()
	if mode.Off {
		return telemetry.KernelHits{}, false
	}
	at := h.keeper.State()
	out := telemetry.KernelHits{OK: h.level != nil, Auto: mode.Optional, Entries: h.Entries.State().Items, Series: h.hits(),
		Pods: at.Pods, Refused: len(at.Refused)}
	if h.mirror != nil {
		c := h.mirror.Counts()
		out.Copies = map[string]uint64{"first": c.First, "fetched": c.Fetched, "pending": c.Pending, "dropped": c.Dropped}
		if h.level != nil {
			if limited, full, err := h.level.Uncopied(); err != nil {
				h.Log.Debug("cannot read how many queries the kernel program did not mirror", "err", err)
			} else {
				out.Copies["limited"], out.Copies["full"] = limited, full
			}
		}
	}
	return out, true
}

// hits returns the number of kernel hits for each record type and response code; nil if they cannot be read. The caller holds mu.
func (h *Hits) hits() []telemetry.KernelSeries {
	if h.level == nil {
		return nil
	}
	counts, err := h.level.Counts()
	if err != nil {
		h.Log.Debug("cannot read the kernel program's hit counters; metrics and status lack them", "err", err)
		return nil
	}
	out := series
	for i := range out {
		out[i].Hits = counts[i]
	}
	return out[:]
}

// series lists the combinations of record type and response code for which the BPF program counts hits, in the order of its indexes, which
// are also those of pinned maps. The types have the same names as in CoreDNS's metrics.
var series = [...]telemetry.KernelSeries{
	{Type: "A", Rcode: "NOERROR"}, {Type: "AAAA", Rcode: "NOERROR"}, {Type: "other", Rcode: "NOERROR"},
	{Type: "A", Rcode: "NXDOMAIN"}, {Type: "AAAA", Rcode: "NXDOMAIN"}, {Type: "other", Rcode: "NXDOMAIN"},
}

// seriesOf returns the index in series at which hits of an offloaded entry are counted.
func seriesOf(l entries.Item) (index uint16) {
	if t := l.Key.Type(); t == msg.TypeAAAA {
		index = 1
	} else if t != msg.TypeA {
		index = 2
	}
	if l.Entry.Rcode() != 0 {
		index += 3
	}
	return index
}
