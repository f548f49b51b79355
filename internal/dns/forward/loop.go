package forward

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/tick"
)

// loopType is the type of the queries that detect loops; CoreDNS's loop plugin uses it too. Clients hardly ever send it, so it costs
// other queries only one comparison to recognise the agent's own.
const loopType = dns.TypeHINFO

// Pauses between searches for loops. The first searches, which watchLoops has, may come before the agent has its lease, when a query to its
// addresses goes to kube-dns. Later ones find changes on other hosts. After a loop was found, searches are more frequent, to notice when it
// is gone.
const (
	loopLater = 10 * time.Minute
	loopFound = 30 * time.Second
)

// nonceIn makes a random name in zone, for a loop detection query.
func nonceIn(zone string) string {
	if zone == "." {
		zone = strings.ToLower(rand.Text()) + "." // two labels, because a resolver may not forward a single one
	}
	return strings.ToLower(rand.Text()) + "." + zone
}

// isNonce reports whether name is that of a loop detection query in flight, and if so records that it came back.
func (ss *Servers) isNonce(name string) bool {
	back, ours := ss.nonces.Load(strings.ToLower(name)) // a resolver may change the case
	if ours {
		back.(*atomic.Bool).Store(true) //nolint:forcetypeassert // nothing else is in it
	}
	return ours
}

// watchLoops searches for loops until ctx ends.
func (a *Block) watchLoops(ctx context.Context) {
	first := []time.Duration{300 * time.Millisecond, 3 * time.Second, 15 * time.Second}
	pause := first[0]
	for round := 1; tick.Pause(ctx, pause); round++ {
		looped := a.findLoops(ctx)
		switch {
		case round < len(first):
			pause = first[round]
		case looped:
			pause = loopFound
		default:
			pause = loopLater
		}
	}
}

// findLoops sends every server a query for a random name, and marks those whose query comes back to this process. It reports whether
// there is a loop.
func (a *Block) findLoops(ctx context.Context) (looped bool) {
	for i, s := range a.list {
		back, err := a.comesBack(ctx, s)
		switch {
		case ctx.Err() != nil:
			return looped
		case back && !a.loops[i].Swap(true):
			a.servers.log.Error("upstream leads back to this node and is not used", "server", s.name, "zone", a.zones[0],
				"remedy", loopText(s.name, a.zones[0]))
		case !back && err != nil:
			// Without an answer it is not known whether the loop is gone.
		case !back && a.loops[i].Swap(false):
			a.servers.log.Info("upstream no longer leads back to this node; it is used again", "server", s.name, "zone", a.zones[0])
		}
		looped = looped || a.loops[i].Load()
	}
	return looped
}

// comesBack sends s a query for a random name, and reports whether it came back to this process.
func (a *Block) comesBack(ctx context.Context, s *server) (bool, error) {
	name, back := nonceIn(a.zones[0]), new(atomic.Bool)
	a.servers.nonces.Store(name, back)
	defer a.servers.nonces.Delete(name)
	now := time.Now()
	stream := s.tls != nil || a.stream && !s.prefersDatagrams(now)
	_, err := s.once(ctx, new(dns.Msg).SetQuestion(name, loopType), stream, now.Add(silentEnd))
	return back.Load(), err
}

func loopText(server, zone string) string {
	return fmt.Sprintf("%s forwards names in %s to this node, directly or through other servers, so it is not used for them: "+
		"take this node's DNS addresses out of its configuration, or name another server under upstreams", server, zone)
}
