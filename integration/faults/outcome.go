package main

import (
	"time"

	"github.com/neardns/neardns/integration/faults/load"
)

// outcome is what one run came to.
type outcome struct {
	UDP     load.Sum `json:"udp"`
	TCP     load.Sum `json:"tcp"`     // one connection a query
	TCPLong load.Sum `json:"tcpLong"` // connections that stay
	// Control is of the stream past what is tried, if there is one.
	Control load.Sum `json:"-"`
	// Late is the most that the generator itself was behind: what it delays no server is to blame for.
	Late time.Duration `json:"generatorLate"`
	// Waited is the most that a thread of the server waited for a CPU within a second: what that delays is the machine's doing,
	// unless the server itself has more to do than the machine can.
	Waited time.Duration `json:"serverWaited"`
	// Died is how long a killed server took to end: the kernel closes its sockets last, and drops what is in them.
	Died time.Duration `json:"died,omitempty"`
	// Dropped are datagrams that found the buffer of the server's socket full, and that of kube-dns: neither read for so long.
	Dropped [2]int `json:"dropped,omitzero"`
	// Kept is the share of the cache's entries that are still there afterwards; -1 where that is not the matter.
	Kept float64 `json:"kept"`
	// InKernel are answers that the kernel gave, from the beginning of the load until the server was up again.
	InKernel int            `json:"inKernel,omitempty"`
	Slower   float64        `json:"p99Ratio,omitempty"` // of hits, to undisturbed
	Grown    float64        `json:"memoryRatio,omitempty"`
	Refusal  time.Duration  `json:"slowestRefusal,omitempty"`
	Flooded  [2]int         `json:"flood,omitzero"` // sent and answered
	Reasons  map[string]int `json:"reasons,omitempty"`
	Line     string         `json:"line"` // of UDP, see load.Book.Line
}

// tcp is both kinds of TCP together, for the table.
func (o outcome) tcpMissed() int { return o.TCP.Missed() + o.TCPLong.Missed() }
func (o outcome) wrong() int     { return o.UDP.Wrong + o.TCP.Wrong + o.TCPLong.Wrong }
