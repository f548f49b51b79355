package steer

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"
)

// HoldSteps is the number of durations that Hold returns.
const HoldSteps = 4

// Hold is how long the host's rules bypass a suspect: short at step 0, longer at each further step. Afterwards its next query is a
// trial, which is lost if the cause lasts. The first duration is short, because the most frequent cause is a network policy that is
// applied a little later than its pod starts. The last one limits what a lasting policy costs.
func Hold(step int) time.Duration {
	return [HoldSteps]time.Duration{15 * time.Second, time.Minute, 4 * time.Minute, 16 * time.Minute}[min(max(step, 0), HoldSteps-1)]
}

// Client is one source address that queries one steering or local address over one protocol. With nftables, the host's rules keep
// records, and can bypass the agent, for each Client.
type Client struct {
	Source   netip.Addr
	Protocol Protocol
	Address  netip.Addr // the steering or local address that Source queries, of the same IP family
}

func (c Client) String() string {
	return fmt.Sprintf("%s to %s over %s", c.Source, c.Address, c.Protocol)
}

// Compare orders clients for display.
func (c Client) Compare(o Client) int {
	return cmp.Or(c.Source.Compare(o.Source), c.Address.Compare(o.Address), cmp.Compare(o.Protocol, c.Protocol))
}

// Notes has what the host's rules recorded about clients, each record with its age.
type Notes struct {
	// time since the last query that the rules sent to the agent, before the host's own filters saw the query
	Delivered map[Client]time.Duration
	// time since the last query that had also passed the host's filters
	Arrived map[Client]time.Duration
	// Slack is how far the two ages of a client may differ although one packet set both: the time that reading the two sets took,
	// plus the precision of the kernel's ages.
	Slack time.Duration
}

// Suspect is a client whose queries the host's rules sent to the agent, but the host's filters dropped.
type Suspect struct {
	Client
	// Held is how long the client is still bypassed. 0 means that the agent gets its next query, as a trial.
	Held time.Duration
}

// PodWay is a way in which a pod sends DNS queries: to one cluster DNS address, over one protocol.
type PodWay struct {
	ClusterDNS netip.Addr
	Protocol   Protocol
}

// ConnectionRecorder is implemented by a back end whose pod table can record a pod's TCP connections before it steers the pod.
// When Repair adds the steering rules, the recorded connections stay on kube-dns. Other back ends rewrite only a connection's
// first packet and need no record.
type ConnectionRecorder interface {
	// RecordConnections makes p's table with rules that record connections, while the record has room, and steer none. If a
	// table exists, RecordConnections leaves it. recording reports that the table now only records; it may be the work of an
	// earlier process that was killed.
	RecordConnections(p Pod) (recording bool, err error)
}

// BypassReader is implemented by a back end whose pod tables bypass the agent by themselves if queries get no answer. With
// other back ends, only a trial query from the pod's netns finds lost queries.
type BypassReader interface {
	// Unanswered lists the addresses and protocols for which the pod table bypasses the agent now, because queries got no
	// answer.
	Unanswered(of Pod) ([]PodWay, error)
	// Generation is the number that the kernel increases with each transaction on the netns's nftables ruleset. Set elements
	// that packets add do not change it.
	Generation() (uint32, error)
}
