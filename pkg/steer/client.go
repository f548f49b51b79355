package steer

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"
)

// HoldSteps is the number of steps of Hold.
const HoldSteps = 4

// Hold is how long a suspect is bypassed at a step, from 0; at most one query is lost in this time. The first step is short,
// since the most frequent reason is a policy that arrives a little later than its pod; the last one bounds what a lasting
// policy costs.
func Hold(step int) time.Duration {
	return [HoldSteps]time.Duration{15 * time.Second, time.Minute, 4 * time.Minute, 16 * time.Minute}[min(max(step, 0), HoldSteps-1)]
}

// Client is the unit of evidence: one source that queries one steering or local address over one protocol.
type Client struct {
	Source   netip.Addr
	Protocol Protocol
	Address  netip.Addr // steering or local address, of the source's family
}

func (c Client) String() string {
	return fmt.Sprintf("%s to %s over %s", c.Source, c.Address, c.Protocol)
}

// Compare orders clients for display.
func (c Client) Compare(o Client) int {
	return cmp.Or(c.Source.Compare(o.Source), c.Address.Compare(o.Address), cmp.Compare(o.Protocol, c.Protocol))
}

// Notes has the ages of the switch's records of its clients.
type Notes struct {
	Delivered map[Client]time.Duration // since the switch last delivered a query of the client to the agent
	Arrived   map[Client]time.Duration // since one last passed the host's filters
	// Slack is how far the two ages of a client may differ although one packet set both. It is the time between the two reads, and one
	// tick of the kernel's clock, in which the kernel keeps ages.
	Slack time.Duration
}

// Suspect is a client whose queries did not pass the host's filters.
type Suspect struct {
	Client
	// Held is how much longer the client is bypassed; 0: its next query is the trial.
	Held time.Duration
}

// PodWay is one way in which a pod sends queries: a cluster DNS address and a protocol.
type PodWay struct {
	ClusterDNS netip.Addr
	Protocol   Protocol
}

// ConnectionRecorder is implemented by a back end whose pod table can record a pod's TCP connections before it steers any. Repair then
// leaves the recorded connections on kube-dns. Other back ends choose at a connection's first packet and need no record.
type ConnectionRecorder interface {
	// RecordConnections makes p's table without its steering, unless there is a table. recording reports that the table only records now;
	// that includes one that a killed process left behind.
	RecordConnections(p Pod) (recording bool, err error)
}

// BypassReader is implemented by a back end whose pod tables bypass the agent by themselves. With other back ends, lost queries are
// found only by a query from the pod's netns.
type BypassReader interface {
	// Unanswered lists the ways that the pod table bypasses now, because queries got no answer.
	Unanswered(of Pod) ([]PodWay, error)
	// Generation is the number that the kernel increases with each change of the netns's ruleset. Packets do not change it.
	Generation() (uint32, error)
}
