package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// load is a pod that sends queries all the time.
type load struct {
	questions, lost atomic.Int64
	slowest         atomic.Int64 // nanoseconds
}

// startLoad has a pod query until stop is called. It returns when the first queries are answered, and so does stop.
func (s *show) startLoad(p *pod) (l *load, stop func()) {
	const some = 100
	l = new(load)
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			l.questions.Add(1)
			answer, err := testutil.Ask(p.NetNS, netip.AddrPortFrom(s.node.ClusterDNS()[0], 53), clusterName, typeA, "udp", testutil.AskOptions{})
			if err != nil {
				l.lost.Add(1)
				continue
			}
			l.slowest.Store(max(l.slowest.Load(), int64(answer.Took)))
		}
	})
	await := func() {
		goal := l.questions.Load() + some
		testutil.Eventually(s.t, func() error {
			if l.questions.Load() < goal {
				return errors.New("the pod does not come to ask")
			}
			return nil
		})
	}
	await()
	return l, func() {
		await()
		close(end)
		wg.Wait()
	}
}

// startAgent starts the agent and waits until it serves under its leases.
func (s *show) startAgent() {
	s.tell("node$ neardns-agent node --config nodeconfig.yaml &")
	start := time.Now()
	s.agent = s.start(s.node.Host, agentLog, s.bin+"/neardns-agent", "node", "--config", nodeConfig, "--cni-cache", cniCache)
	testutil.Eventually(s.t, func() error {
		select {
		case <-s.agent.Exited():
			s.t.Fatalf("the agent ended:\n%s", s.read(agentLog))
		default:
		}
		return s.ready()
	})
	s.tell("serving after %s", time.Since(start).Round(10*time.Millisecond))
}

// ready reports whether the agent serves under its leases.
func (s *show) ready() error {
	if !s.status().Ready {
		return fmt.Errorf("the agent does not serve yet:\n%s", s.read(agentLog))
	}
	return nil
}

// status is what the agent reports of itself.
type status struct {
	Ready      bool
	KernelHits struct {
		Answers int
		Fault   string
	}
}

// status is the agent's; empty if it does not answer.
func (s *show) status() status {
	out, _ := s.quiet("neardns-agent", "status", "--json", "--config", nodeConfig) // exit code 3: one fault or other, see Ready
	var all struct{ Agent status }
	_ = json.Unmarshal([]byte(out), &all)
	return all.Agent
}

// heat has a pod ask until the kernel answers.
func (s *show) heat(p *pod) {
	testutil.Eventually(s.t, func() error {
		before := s.status().KernelHits.Answers
		s.freshen(p)
		if s.status().KernelHits.Answers == before {
			return fmt.Errorf("the kernel does not answer %s", p.name)
		}
		return nil
	})
}
