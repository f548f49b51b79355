package telemetry

import (
	"bytes"
	"container/list"
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Bounds of the endpoints: pods reach some of them, and what they may take there is the agent's memory.
const (
	mostHeader  = 8 << 10 // of a request; Go's default is 1 MiB
	mostConns   = 64      // of one endpoint: scrapers keep one each
	mostScrapes = 2       // in work at one time
	scrapeWait  = 5 * time.Second
)

// door is a listener that has a bounded number of connections open, shared by source as all else is (D-017): who has as many
// as are free gets the oldest of its own closed for a new one, and who has none finds room where another has more.
type door struct {
	net.Listener
	most int

	mu   sync.Mutex // guards the fields below
	open int
	by   map[netip.Addr]*list.List // of *visit, the oldest first; never an empty one
}

// visit is one open connection.
type visit struct {
	net.Conn
	door   *door
	source netip.Addr
	place  *list.Element // nil: it has left
}

func newDoor(l net.Listener, most int) *door {
	return &door{Listener: l, most: most, by: map[netip.Addr]*list.List{}}
}

// Accept returns the next connection that may come in.
func (d *door) Accept() (net.Conn, error) {
	c, err := d.Listener.Accept()
	if err != nil {
		return nil, err
	}
	v := &visit{Conn: c, door: d}
	if at, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
		v.source = at.Addr().Unmap().WithZone("")
	}
	if goes := d.enter(v); goes != nil {
		_ = goes.Close()
	}
	return v, nil
}

// enter gives a visit its place, and returns the one that has to go for it.
func (d *door) enter(v *visit) (goes *visit) {
	d.mu.Lock()
	defer d.mu.Unlock()
	own := d.by[v.source]
	switch {
	case own != nil && own.Len() >= d.most-d.open:
		goes = own.Front().Value.(*visit)
	case d.open >= d.most:
		goes = d.greediest().Front().Value.(*visit)
	}
	if goes != nil {
		d.leave(goes)
	}
	if own = d.by[v.source]; own == nil {
		own = list.New()
		d.by[v.source] = own
	}
	v.place = own.PushBack(v)
	d.open++
	return goes
}

func (d *door) greediest() *list.List {
	var most *list.List
	for _, l := range d.by {
		if most == nil || l.Len() > most.Len() {
			most = l
		}
	}
	return most
}

// leave gives a visit's place back; mu is held.
func (d *door) leave(v *visit) {
	if v.place == nil {
		return
	}
	own := d.by[v.source]
	own.Remove(v.place)
	v.place = nil
	d.open--
	if own.Len() == 0 {
		delete(d.by, v.source)
	}
}

// Close ends the connection and gives its place back.
func (v *visit) Close() error {
	v.door.mu.Lock()
	v.door.leave(v)
	v.door.mu.Unlock()
	return v.Conn.Close()
}

// few lets a bounded number of requests be worked on at one time, and answers them from memory, so that a slow reader keeps
// nobody out. Who waits too long is told to come again.
func few(h http.Handler) http.Handler {
	places := make(chan struct{}, mostScrapes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), scrapeWait)
		defer cancel()
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			http.Error(w, "too many requests at one time: try again", http.StatusServiceUnavailable)
			return
		}
		answer := &kept{header: w.Header(), code: http.StatusOK}
		func() {
			defer func() { <-places }()
			h.ServeHTTP(answer, r)
		}()
		w.WriteHeader(answer.code)
		_, _ = w.Write(answer.body.Bytes()) // a client that is gone needs no answer
	})
}

// kept is an answer that waits to be sent.
type kept struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (k *kept) Header() http.Header         { return k.header }
func (k *kept) WriteHeader(code int)        { k.code = code }
func (k *kept) Write(b []byte) (int, error) { return k.body.Write(b) }
