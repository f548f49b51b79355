package steer

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"
)

// HoldSteps is how often a hold grows. Holds(0) is the first.
const HoldSteps = 4

// Hold is how long a suspect is in bypass: at most one question is lost in this time. The first is short, since a policy
// that comes a little later than its pod is the most frequent reason; the last bounds what a lasting one costs.
func Hold(step int) time.Duration {
	return [HoldSteps]time.Duration{15 * time.Second, time.Minute, 4 * time.Minute, 16 * time.Minute}[min(max(step, 0), HoldSteps-1)]
}

// Client is whom the evidence is about: one source that asks one of our addresses over one protocol.
type Client struct {
	Source   netip.Addr
	Protocol Protocol
	Address  netip.Addr // steering or local address, of the source's family
}

func (c Client) String() string {
	return fmt.Sprintf("%s to %s over %s", c.Source, c.Address, c.Protocol)
}

// Compare orders clients for people.
func (c Client) Compare(o Client) int {
	return cmp.Or(c.Source.Compare(o.Source), c.Address.Compare(o.Address), cmp.Compare(o.Protocol, c.Protocol))
}

// Notes is what the switch noted of its clients: how long ago each last asked, and was last heard.
type Notes struct {
	Asked map[Client]time.Duration
	Heard map[Client]time.Duration
	// Slack is by how much a client's age in Heard may be above its age in Asked although one packet made both notes: the
	// time from before Asked was read until Heard was, and a tick of the kernel's clock, in which it keeps both.
	Slack time.Duration
}

// Suspect is a client whose questions were not heard.
type Suspect struct {
	Client
	// Held is how long kube-dns still answers all of its questions; 0: the next one is its trial.
	Held time.Duration
}

// PodWay is one of the ways by which a pod asks: a cluster DNS address and a protocol.
type PodWay struct {
	ClusterDNS netip.Addr
	Protocol   Protocol
}

// Noter is what a back end has whose pod table can note a pod's TCP connections before it steers any: Repair keeps those that it noted on
// their way. Others choose a connection's way at its first packet, and need no note.
type Noter interface {
	// Note makes p's table without its steering, where there is none. noting tells that the table only notes now; one that a process
	// left so that was killed counts.
	Note(p Pod) (noting bool, err error)
}

// Witness is what a back end has whose pod tables give back by themselves. Others find lost questions only by asking from the
// pod's netns.
type Witness interface {
	// Unanswered lists the ways of a pod table that the table gives back now, since questions were not answered there.
	Unanswered(of Pod) ([]PodWay, error)
	// Generation is the number that the kernel raises at each change of the netns's rules. Packets change nothing of it.
	Generation() (uint32, error)
}
