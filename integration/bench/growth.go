package main

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/neardns/neardns/integration/bench/generator"
	"github.com/neardns/neardns/integration/bench/workload"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// growthPart is what a hit costs a server with many names and with many pods, next to one of either.
const growthPart = "Growth: server's CPU per hit, at full speed"

const (
	growthLimit = 1.2
	growthPods  = 110 // on a full node, by the kubelet's default (maxPods)
	// The least share of hits in a run that is to tell what a hit costs.
	growthHits = 0.99
)

// growth queries a server when all else is measured, since the pods that it adds stay. Names are queried one after the other; pods query W1
// from one socket each, and the one pod from as many. Only neardns is held to the limit: the stock server shows how much is the kernel's
// part,
// whose state of 110 namespaces is in no cache of the processor's.
//
// Each server's cache has twice the places here that the names need. By default it has as many as there are names, and other names have
// some of them: names that are queried in turn are then evicted just before their turn comes, and the figure is one of misses.
func (b *bench) growth(s *stand) {
	of, limit := "", float64(growthLimit)
	if s.name != ours {
		of, limit = ", "+s.name, 0
	}
	s.places(max(2*b.names, 2048)) // no server takes fewer than 1,024
	pods := b.fill(s)
	w, err := workload.New("W1", seed, b.short)
	b.must(err)
	names := func(n int) generator.Load {
		return generator.Load{Workload: "memory", Names: n, Sockets: 2, Window: window / 2}
	}
	from := func(pods []string) generator.Load {
		return generator.Load{Workload: w.Name, Seed: seed, Small: b.short, Sockets: growthPods, Window: 1, Pods: pods}
	}
	many, one := fmt.Sprintf("%d names", b.names), "1 name"
	ways := map[string]generator.Load{one: names(1), many: names(b.names), "1 pod": from(pods[:1]), "110 pods": from(pods)}
	figures, hits := map[string][]float64{}, map[string][]float64{}
	for n := range b.queryRounds() {
		b.quiet([]*stand{s})
		for _, way := range turned([]string{one, many, "1 pod", "110 pods"}, n) {
			warm := ways[way]
			warm.Each, warm.Pods, warm.Sockets, warm.Window = true, nil, 2, 16
			s.ask(warm)
			l := ways[way]
			l.CPU, l.Duration = 1+clientCPU, b.long(measures[0].full, measures[0].short)
			r, hit := s.ofHits(l)
			figures[way] = append(figures[way], round(float64(r.Ran[0].Nanoseconds())/1e3/float64(r.Answered)))
			hits[way] = append(hits[way], hit)
		}
	}
	b.compare(growthPart, many+of, one, "us", figures[many], figures[one], limit)
	b.compare(growthPart, "110 pods"+of, "1 pod", "us", figures["110 pods"], figures["1 pod"], limit)
	if least := slices.Min(hits[many]); least < growthHits {
		b.remark("%s, %s: only %.1f %% were hits in one round, so that row is not of hits alone.", s.name, many, 100*least)
	}
}

// fill adds pods until the node is full, starts its server again, so that the cache is empty, and returns the pods' namespaces.
func (b *bench) fill(s *stand) (pods []string) {
	pods = append(pods, s.pod.Path())
	for i := range growthPods - 1 {
		p := s.node.AddPod(fmt.Sprintf("pod-%d", i))
		if isOurs(s.name) {
			b.steer(s, p, fmt.Sprintf("bench-%d", i))
		}
		pods = append(pods, p.Path())
	}
	s.down()
	s.up()
	return pods
}

// ofHits sends queries until nearly all queries were hits. Servers keep kube-dns's answers for 30 s, so all may end in one run: the next
// one has those that it brought.
func (s *stand) ofHits(l generator.Load) (r outcome, hits float64) {
	for range tries {
		r = s.measured(l)
		if hits = 1 - min(1, float64(r.misses)/float64(r.Asked)); hits >= growthHits {
			break
		}
	}
	return r, hits
}

// steer has the plugin steer a pod.
func (b *bench) steer(s *stand, p *testutil.Pod, id string) {
	add := cniCall{bin: b.bin("neardns"), host: s.node.Host, conf: pluginConf(s.dir, p, map[string]any{"steer": "always"}), id: id, netns: p.Path()}
	b.must(add.run("ADD"))
	f, err := podfile.Read(podfile.Path(filepath.Join(s.dir, "state"), id, "eth0"))
	b.must(err)
	if len(f.In(podfile.Steered)) != 1 {
		b.t.Fatalf("the pod %s is not steered: %+v", id, f.Decisions)
	}
	s.steered++
}
