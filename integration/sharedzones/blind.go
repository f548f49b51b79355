package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"

	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// The seed's loop (RFC 0008 of Kuadrant's architecture): read the host, add one's own address, write the whole set, look again after five
// seconds, and write again if the own address is gone. Nothing proves to the server that the set is still as it was read.
const (
	seedInterval = 5 * time.Second
	seedScale    = 50 // the loop runs so many times faster here
)

// blindResult is what the seed's loop does.
type blindResult struct {
	Lost, Joins  int           // of clusters that join at once and do not look again
	Agreed       time.Duration // until ten clusters see each other, as long as it takes at the seed's pace
	AgreedWrites int
	Jittered     time.Duration // the same, where each draws its pause from half to one and a half times five seconds
}

// blind runs the seed's loop next to a server, with the key that may write everything.
func blind(ctx context.Context, s *zoneserver.Server, clusters, rounds int) (blindResult, error) {
	var out blindResult
	for round := range rounds {
		host := fmt.Sprintf("blind%d.%s", round, s.Zone())
		var joining errgroup.Group
		for i := range clusters {
			joining.Go(func() error { return blindWrite(ctx, s, host, blindAddress(i)) })
		}
		if err := joining.Wait(); err != nil {
			return out, err
		}
		set, err := addresses(ctx, s, host)
		if err != nil {
			return out, err
		}
		out.Lost += clusters - len(set)
		out.Joins += clusters
	}
	var err error
	if out.Agreed, out.AgreedWrites, err = agree(ctx, s, "agree."+s.Zone(), 0); err != nil {
		return out, err
	}
	out.Jittered, _, err = agree(ctx, s, "jitter."+s.Zone(), 0.5)
	return out, err
}

func blindAddress(i int) string { return fmt.Sprintf("203.0.113.%d", 1+i) }

// agree runs the whole loop for ten clusters until each finds its address, twice in turn, and reports how long that took.
func agree(ctx context.Context, s *zoneserver.Server, host string, jitter float64) (time.Duration, int, error) {
	const clusters = 10
	start := time.Now()
	var last atomic.Int64 // when another program wrote last
	var writes atomic.Int64
	done := make([]atomic.Bool, clusters)
	all := func() bool {
		for i := range done {
			if !done[i].Load() {
				return false
			}
		}
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var looping errgroup.Group
	var mu sync.Mutex // guards set's reading against the verdict: a cluster that finds its address and one that writes must not cross
	for i := range clusters {
		looping.Go(func() error {
			for {
				set, err := addresses(ctx, s, host)
				if err != nil {
					return err
				}
				there := set[blindAddress(i)]
				mu.Lock()
				done[i].Store(there)
				finished := all()
				mu.Unlock()
				if finished {
					return nil
				}
				if !there {
					if err := blindWrite(ctx, s, host, blindAddress(i)); err != nil {
						return err
					}
					writes.Add(1)
					last.Store(int64(time.Since(start)))
				}
				pause := float64(seedInterval) / seedScale * (1 + jitter*(2*rand.Float64()-1))
				select {
				case <-time.After(time.Duration(pause)):
				case <-ctx.Done():
					return fmt.Errorf("the seed's loop does not end: %w", ctx.Err())
				}
			}
		})
	}
	err := looping.Wait()
	return time.Duration(last.Load()) * seedScale, int(writes.Load()), err
}

// blindWrite reads the host and replaces the whole set by what it read and one's own address.
func blindWrite(ctx context.Context, s *zoneserver.Server, host, own string) error {
	set, err := addresses(ctx, s, host)
	if err != nil {
		return err
	}
	set[own] = true
	m := new(dns.Msg).SetUpdate(s.Zone())
	var rrs []dns.RR
	for a := range set {
		rrs = append(rrs, &dns.A{Hdr: dns.RR_Header{Name: host, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP(a).To4()})
	}
	m.RemoveRRset(rrs[:1])
	// RemoveRRset makes an RR of its own; Insert writes the class into those that it is given.
	m.Insert(rrs)
	if err := persist(ctx, s, m); err != nil {
		return fmt.Errorf("write %s: %w", host, err)
	}
	return nil
}

// persist sends an update with the operator's key until the server takes it: PowerDNS answers SERVFAIL while SQLite is locked.
func persist(ctx context.Context, s *zoneserver.Server, m *dns.Msg) error {
	for {
		answer, err := exchange(ctx, s, m)
		switch {
		case err != nil:
			return err
		case answer.Rcode == dns.RcodeSuccess:
			return nil
		case answer.Rcode != dns.RcodeServerFailure:
			return errors.New(dns.RcodeToString[answer.Rcode])
		}
	}
}

// addresses queries a host's A records.
func addresses(ctx context.Context, s *zoneserver.Server, host string) (map[string]bool, error) {
	answer, err := exchange(ctx, s, new(dns.Msg).SetQuestion(host, dns.TypeA))
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, rr := range answer.Answer {
		if a, ok := rr.(*dns.A); ok && strings.EqualFold(rr.Header().Name, host) {
			out[a.A.String()] = true
		}
	}
	return out, nil
}

// exchange sends one message over TCP, an update with the operator's key.
func exchange(ctx context.Context, s *zoneserver.Server, m *dns.Msg) (*dns.Msg, error) {
	return exchangeAs(ctx, s, s.Operator(), m)
}

// exchangeAs is exchange with another key. A refusal is an answer, not an error.
func exchangeAs(ctx context.Context, s *zoneserver.Server, key zoneserver.Key, m *dns.Msg) (*dns.Msg, error) {
	conn, err := s.Dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	} else {
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
	}
	m = m.Copy()
	if m.Opcode == dns.OpcodeUpdate {
		conn.TsigSecret = map[string]string{key.Name: key.Secret}
		m.SetTsig(key.Name, dns.HmacSHA256, 300, time.Now().Unix())
	}
	if err := conn.WriteMsg(m); err != nil {
		return nil, err
	}
	answer, err := conn.ReadMsg()
	if answer != nil && answer.Rcode == dns.RcodeNotAuth { // such an answer is not signed
		err = nil
	}
	return answer, err
}
