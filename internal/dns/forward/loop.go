package forward

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// loopType is what CoreDNS's loop plugin asks for, too: next to nobody else does, so looking for our own questions costs
// the others one comparison.
const loopType = dns.TypeHINFO

// When loops are looked for. The first looks may come before the lease, when a question for our addresses goes to kube-dns
// instead; later ones find what was changed elsewhere; a found one is looked at more often, to see that it was mended.
const (
	loopLater = 10 * time.Minute
	loopFound = 30 * time.Second
)

func loopFirst() []time.Duration {
	return []time.Duration{300 * time.Millisecond, 3 * time.Second, 15 * time.Second}
}

// nonces are the names that were asked to see whether they come back.
type nonces struct {
	mu  sync.Mutex // guards out
	out map[string]bool
}

// add makes a name in zone that nobody else asks for.
func (n *nonces) add(zone string) string {
	name := strings.ToLower(rand.Text()) + "."
	if zone == "." {
		name += strings.ToLower(rand.Text()) + "." // as a name below a top-level domain, which a resolver asks others for
	} else {
		name += zone
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.out == nil {
		n.out = map[string]bool{}
	}
	n.out[name] = false
	return name
}

// seen notes that name was asked of us, and reports whether it is one of ours.
func (n *nonces) seen(name string) bool {
	name = strings.ToLower(name) // a resolver may change the case
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ours := n.out[name]; !ours {
		return false
	}
	n.out[name] = true
	return true
}

// drop forgets a name and reports whether it came back.
func (n *nonces) drop(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	back := n.out[name]
	delete(n.out, name)
	return back
}

// watchLoops looks for loops until ctx ends.
func (a *Ask) watchLoops(ctx context.Context) {
	first := loopFirst()
	pause := first[0]
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for round := 1; ; round++ {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		looped := a.lookForLoops(ctx)
		switch {
		case round < len(first):
			pause = first[round]
		case looped:
			pause = loopFound
		default:
			pause = loopLater
		}
		timer.Reset(pause)
	}
}

// lookForLoops asks every server for a name that nobody knows, and notes who has asked us for it. It reports whether there
// is a loop.
func (a *Ask) lookForLoops(ctx context.Context) (looped bool) {
	for i, s := range a.list {
		back, err := a.comesBack(ctx, s)
		switch {
		case ctx.Err() != nil:
			return looped
		case back && !a.loops[i].Swap(true):
			a.servers.log.Error("upstream leads back to this node and is not asked", "server", s.name, "zone", a.zones[0], "remedy", loopText(s.name, a.zones[0]))
		case !back && err != nil:
			// Who does not answer has not shown that the loop is gone.
		case !back && a.loops[i].Swap(false):
			a.servers.log.Info("upstream leads back to this node no more", "server", s.name, "zone", a.zones[0])
		}
		looped = looped || a.loops[i].Load()
	}
	return looped
}

// comesBack asks s once, and reports whether the question came to our own sockets.
func (a *Ask) comesBack(ctx context.Context, s *server) (bool, error) {
	name := a.servers.nonces.add(a.zones[0])
	req := new(dns.Msg).SetQuestion(name, loopType)
	buf, wire, err := a.servers.bufs.pack(req)
	if err != nil {
		a.servers.nonces.drop(name)
		return false, err
	}
	defer a.servers.bufs.put(buf)
	now := time.Now()
	stream := s.tls != nil || a.stream && !s.streamless(now)
	_, err = s.exchange(ctx, req, wire, way{stream: stream, fresh: true}, now.Add(silentEnd))
	return a.servers.nonces.drop(name), err
}

func loopText(server, zone string) string {
	return fmt.Sprintf("%s asks this node for names in %s, directly or by others, so it is not asked for them: "+
		"take this node's DNS addresses out of its configuration, or name another server under upstreams", server, zone)
}
