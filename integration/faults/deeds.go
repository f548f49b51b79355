package main

import (
	"time"

	"github.com/neardns/neardns/integration/faults/load"
	"github.com/neardns/neardns/pkg/testutil"
)

// deed is what a fault does, apart from the table so that the table can be read without a machine.
type deed struct {
	act     func(*run)
	streams func(*stand) []load.Stream // the load where it is not the usual one
	judge   func(*run)                 // measures what only this fault is about
	// needs returns why the fault cannot be tried with these programs; "": it can.
	needs func(t testutil.TB, bin func(string) string) string
}

// deeds are by the names of the faults.
func deeds() map[string]deed {
	return map[string]deed{
		"sigterm-restart": {
			act: func(r *run) {
				r.at(0)
				r.terminate()
				r.s.start()
			},
		},
		"successor": {
			needs: handOver,
			act: func(r *run) {
				r.at(0)
				r.succeed()
				r.at(3 * time.Second)
				r.terminateOld()
			},
		},
		"reload": {
			act: func(r *run) {
				for i := range reloads {
					r.at(time.Duration(i) * 400 * time.Millisecond)
					r.s.reload(i)
				}
			},
		},
		"kill": {
			act: func(r *run) {
				r.at(0)
				r.kill()
				r.at(downTime)
				r.s.start()
			},
		},
		"sigstop": {
			act: func(r *run) {
				r.at(0)
				r.s.server.Stop()
				r.at(stopTime)
				r.s.server.Cont()
			},
		},
		"sigstop-old": {
			needs: handOver,
			act: func(r *run) {
				r.at(0)
				old := r.s.server
				old.Stop()
				r.succeed()
				r.at(stopTime)
				old.Cont()
			},
		},
		"sigstop-new": {
			needs: handOver,
			act: func(r *run) {
				r.at(0)
				r.succeed()
				r.overlap()
				r.s.server.Stop()
				r.at(stopTime)
				r.s.server.Cont()
			},
		},
		"kill-new": {
			needs: handOver,
			act: func(r *run) {
				r.at(0)
				r.succeed()
				r.overlap()
				r.kill()
				r.at(downTime)
				r.s.server = r.old
				r.succeed()
			},
		},
		"oom": {
			needs: memoryCgroup,
			act: func(r *run) {
				r.oom()
				r.at(r.since() + downTime)
				r.s.start()
			},
		},
		"link-deleted": {
			act: func(r *run) {
				r.at(0)
				link, _ := r.s.steered()
				r.s.node.Host.DelLink(link)
			},
		},
		"table-flushed": {
			act: func(r *run) {
				r.at(0)
				r.s.flushRuleset()
			},
		},
		"address-removed": {
			act: func(r *run) {
				r.at(0)
				link, address := r.s.steered()
				r.s.node.Host.DelAddr(link, testutil.Host(address))
			},
		},
		"upstream-dead": {
			act: func(r *run) {
				r.at(0)
				r.s.upstream(testutil.Behaviour{Drop: true})
				r.at(deadTime)
				r.s.upstream(testutil.Behaviour{})
			},
			streams: func(s *stand) []load.Stream {
				known := usual(s)
				for i := range known {
					// A cluster's name is answered stale only once nothing was heard in a query's whole time, 1.9 s.
					known[i].Patience = muslWaits
				}
				return append(known, s.stream(load.Stream{Name: "unknown", Way: load.UDP, Label: "fresh", Zone: hotZone, First: s.fresh(1000), Rate: 20, Sockets: 4, Patience: 3 * time.Second}))
			},
			judge: func(r *run) { r.servfail(deadTime) },
		},
		"upstream-slow": {
			act: func(r *run) {
				r.at(0)
				r.s.upstream(testutil.Behaviour{Delay: slowness})
				r.at(slowTime)
				r.s.upstream(testutil.Behaviour{})
			},
			streams: hits,
			judge:   func(r *run) { r.slowdown(slowTime) },
		},
		"flood": {
			act: func(r *run) {
				r.at(0)
				r.flood()
			},
			judge: func(r *run) { r.grown() },
		},
	}
}
