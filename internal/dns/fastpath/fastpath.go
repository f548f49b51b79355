// Package fastpath is the one interface between a socket and what answers a query without CoreDNS: the cache, or an authoritative
// server's zones.
//
// It guarantees that a hit costs no allocation and that the socket's reader never waits. It knows no CoreDNS and no socket.
//
// On failure the query is not answered here, and the plugin chain answers it.
package fastpath

import (
	"net/netip"
	"time"

	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/dns/queryinfo"
)

// Handler answers a query at once, or leaves it to the plugin chain. The goroutine that reads the socket calls it, so it must never wait.
// Several goroutines may call it at the same time. It counts only queries that it answers.
type Handler interface {
	// Answer appends the answer's message to b. If ok is false, the chain has to answer and b is undefined. If Answer appends nothing to
	// a query over UDP, the client gets no answer.
	Answer(b []byte, q *Query) (answer []byte, level queryinfo.Level, ok bool)
}

// Query is one query. Each reader of a socket has one and reuses it.
type Query struct {
	Wire     []byte     // the message as it came; over UDP it may be cut at 512 bytes
	Client   netip.Addr // without zone and mapping
	Identity any        // what the listener's observer knows of the client
	TCP      bool
	Received time.Time

	// Query is what msg.Query.Read made of Wire.
	msg.Query
	// MaxSize bounds UDP answers whatever size the client's OPT names: the smallest size of the plugins before the cache.
	MaxSize uint16
}

// Zones finds the zone that a query's name is in: the longest one. The zero value has none. It must not change once it is in use.
type Zones[V any] struct {
	byName  map[string]V // in wire form and lower case
	lengths [msg.MaxName + 1]bool
}

// Add adds a zone by its name in presentation form. If the name is there already, the first zone stays.
func (z *Zones[V]) Add(zone string, v V) error {
	name, err := msg.Name(zone)
	if err != nil {
		return err
	}
	if z.byName == nil {
		z.byName = map[string]V{}
	}
	if _, there := z.byName[string(name)]; !there {
		z.byName[string(name)], z.lengths[len(name)] = v, true
	}
	return nil
}

// Find returns the zone of a query.
func (z *Zones[V]) Find(q *msg.Query) (v V, ok bool) {
	name := q.Name()
	for at := 0; at < len(name); at += int(name[at]) + 1 {
		if z.lengths[len(name)-at] {
			if v, ok = z.byName[string(name[at:])]; ok {
				return v, true
			}
		}
	}
	return v, false
}
