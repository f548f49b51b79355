// Package fastpath is the interface between a socket and a handler that answers queries without CoreDNS: the cache, or an authoritative
// server's zones.
//
// A hit of the cache normally costs no allocation, and a handler never waits. The package knows neither CoreDNS nor sockets.
//
// If a handler cannot answer a query, the plugin chain does.
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
	// Answer appends the answer to b. If ok is false, the plugin chain has to answer, and the returned slice is undefined. If ok is true
	// and nothing was appended, the client of a UDP query gets no answer.
	Answer(b []byte, q *Query) (answer []byte, level queryinfo.Level, ok bool)
}

// Query is a query for a Handler. Each reader of a socket has one, and reuses it.
type Query struct {
	Wire     []byte     // the message as it came, but cut after 512 bytes over UDP and after 4096 over TCP
	Client   netip.Addr // without zone and IPv4 mapping
	Identity any        // what the listener's Observer knows of the client
	TCP      bool
	Received time.Time

	// Query is what msg.Query.Read made of Wire.
	msg.Query
	// MaxSize is the maximum size of a UDP answer, whatever size the client's OPT record has: the lowest limit of the plugins before the
	// cache.
	MaxSize uint16
}

// Zones finds the longest zone that contains a query's name. The zero value has no zones. It must not be changed while it is in use.
type Zones[V any] struct {
	byName  map[string]V // in wire form and lower case
	lengths [msg.MaxName + 1]bool
}

// Add adds a zone, whose name is in presentation form, with its value. If the zone is there already, Add changes nothing.
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

// Find returns the value of the longest zone that contains the query's name; ok is false if there is none.
func (z *Zones[V]) Find(q *msg.Query) (v V, ok bool) {
	name := q.Name()
	for at := 0; at < len(name); at = msg.NextLabel(name, at) {
		if z.lengths[len(name)-at] {
			if v, ok = z.byName[string(name[at:])]; ok {
				return v, true
			}
		}
	}
	return v, false
}
