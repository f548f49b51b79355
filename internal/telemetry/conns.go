package telemetry

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/neardns/neardns/internal/dns/fairshare"
)

// Limits of the endpoints: pods reach some of them, and each connection and scrape takes the agent's memory.
const (
	maxHeader     = 8 << 10 // bytes of a request's header; Go's default is 1 MiB
	maxConns      = 64      // connections to one TCP endpoint; a scraper keeps one
	maxScrapes    = 2       // requests to the metrics endpoint in work at the same time
	scrapeTimeout = 10 * time.Second
)

// fairListener keeps at most max connections open. A connection beyond that closes the oldest one of the client address with the most
// connections (D-045), so that a pod cannot lock out a scraper or the kubelet.
type fairListener struct {
	net.Listener
	max int

	mu   sync.Mutex // guards open
	open []*countedConn
}

type countedConn struct {
	net.Conn
	listener *fairListener
	source   netip.Addr
}

func (l *fairListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	accepted := &countedConn{Conn: c, listener: l, source: fairshare.Client(c.RemoteAddr())}
	if excess := l.add(accepted); excess != nil {
		_ = excess.Close()
	}
	return accepted, nil
}

// add counts a connection, and returns the connection to close if there are now too many.
func (l *fairListener) add(c *countedConn) (excess *countedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, c)
	if len(l.open) <= l.max {
		return nil
	}
	counts := map[netip.Addr]int{}
	for _, o := range l.open {
		counts[o.source]++
	}
	excess = l.open[0]
	for _, o := range l.open {
		if counts[o.source] > counts[excess.source] {
			excess = o
		}
	}
	l.remove(excess)
	return excess
}

// remove removes c from open, if c is still there. mu is held.
func (l *fairListener) remove(c *countedConn) {
	l.open = slices.DeleteFunc(l.open, func(o *countedConn) bool { return o == c })
}

func (c *countedConn) Close() error {
	c.listener.mu.Lock()
	c.listener.remove(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// limitScrapes runs at most maxScrapes requests at the same time; others wait. TimeoutHandler buffers the answer, so that a client that
// reads slowly does not keep others waiting.
func limitScrapes(h http.Handler) http.Handler {
	slots := make(chan struct{}, maxScrapes)
	return http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			h.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	}), scrapeTimeout, "too many requests at the same time: try again")
}
