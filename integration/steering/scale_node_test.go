//go:build scale

package steering

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/neardns/neardns/integration/bench/procstat"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// fullNode is how many pods the kubelet runs at most, by default.
const fullNode = 110

// episode is something that happened to a node under load.
type episode struct {
	what string
	took time.Duration
	from time.Time // until the next one begins
}

// episodes are a table of what happened, and of the queries that were lost meanwhile.
type episodes []episode

func (e *episodes) begin(what string, f func() time.Duration) {
	from := time.Now()
	*e = append(*e, episode{what, f(), from})
}

// lost counts the lost queries by episode: those that were due from its begin until the next one's.
func (e episodes) lost(due []time.Time) []int {
	out := make([]int, len(e))
	for _, at := range due {
		for i := len(e) - 1; i >= 0; i-- {
			if !at.Before(e[i].from) {
				out[i]++
				break
			}
		}
	}
	return out
}

// timed is how long f takes.
func timed(f func()) time.Duration {
	begun := time.Now()
	f()
	return time.Since(begun)
}

// middle is the median of several runs' times.
func middle(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)/2].Round(time.Millisecond)
}

// reAdd is how long the last pod's ADD and DEL take on a full node: the medians of nine runs.
func reAdd(t *testing.T, p *pod) (add, del time.Duration) {
	t.Helper()
	verb := func(call func(*libcni.CNIConfig, *libcni.NetworkConfigList, *libcni.RuntimeConf) error) time.Duration {
		return timed(func() {
			testutil.Must(t, p.cni(true, call))
		})
	}
	var adds, dels []time.Duration
	for range 9 {
		dels = append(dels, verb(func(c *libcni.CNIConfig, l *libcni.NetworkConfigList, r *libcni.RuntimeConf) error {
			return c.DelNetworkList(context.Background(), l, r)
		}))
		adds = append(adds, verb(func(c *libcni.CNIConfig, l *libcni.NetworkConfigList, r *libcni.RuntimeConf) error {
			_, err := c.AddNetworkList(context.Background(), l, r)
			return err
		}))
	}
	return middle(adds), middle(dels)
}

// TestScaleNode is a node full of pods, 109 of which send 545 queries per second while it is looked at and broken.
func TestScaleNode(t *testing.T) {
	n := newNode(t, setup{families: testutil.Dual, attach: testutil.PTP, proven: true, install: true})
	f := &figures{t: t, name: "node", drawing: drawing{Head: []string{"a node of 110 pods, dual stack", "takes", "queries lost meanwhile"}}}
	group := testutil.NewCgroup(t, "memory")
	running := n.addRunningPods(fullNode/2, nil)
	start := func() time.Duration {
		return timed(func() {
			n.startIn(group)
		}).Round(10 * time.Millisecond)
	}
	f.row("the agent's start with 55 running pods, until it is ready", start(), "")
	f.row("from then on, until they are adopted", until(t, func() error {
		steered := n.steeredOf(running)
		return testutil.ErrorIf(steered < len(running), "%d are steered", steered)
	}), "")
	pods := slices.Clone(running)
	for len(pods) < fullNode {
		pods = append(pods, n.addPod(nil))
	}
	last := pods[fullNode-1]
	add, del := reAdd(t, last)
	f.row("ADD of the 110th pod: ptp, host-local and neardns", add, "")
	f.row("its DEL", del, "")

	stop := make(chan struct{})
	results := make([]outcome, fullNode-1)
	var wg sync.WaitGroup
	for i, p := range pods[:fullNode-1] {
		wg.Go(func() {
			names := []string{"a.default.svc.cluster.local", "b.default.svc.cluster.local", fmt.Sprintf("own%d.default.svc.cluster.local", i)}
			results[i] = load{from: p.NetNS, server: n.Service(i%2 == 0), qps: 5, sockets: 1, names: names}.run(t, stop)
		})
	}
	var seen episodes
	used := func() time.Duration {
		cpu, err := procstat.CPU(n.agent.PID())
		testutil.Must(t, err)
		return cpu
	}
	const youth = 10 * time.Second // of a pod (agent/internal/pods/podstate)
	idle := func(what string) (share string) {
		seen.begin(what, func() time.Duration {
			before := used()
			took := timed(func() { <-time.After(youth) }).Round(100 * time.Millisecond)
			share = fmt.Sprintf("%.1f %% of a core", 100*(used()-before).Seconds()/took.Seconds())
			return took
		})
		return share
	}
	young := idle("nothing happens; 55 pods are new, and tried twice a second") // network policies may follow a pod's start
	share := idle("nothing happens")
	for _, command := range []string{"status", "pods", "doctor"} {
		seen.begin("`neardns-agent "+command+"`", func() time.Duration {
			var took []time.Duration
			for range 5 {
				took = append(took, timed(func() {
					args := []string{command, "--config", n.configFile()}
					if command == "doctor" {
						args = append(args, "--cni-conf", n.path("net.d"), "--cni-bin", made.Dir())
					}
					if code, text, errs := n.run(args...); code != 0 {
						t.Errorf("%s ends with %d:\n%s%s", command, code, text, errs)
					}
				}))
			}
			return middle(took)
		})
	}
	seen.begin("a reload with one stub domain more", func() time.Duration {
		return timed(func() { n.reload("stubDomains: {corp.example: [\"192.0.2.1:53\"]}\n", true) }).Round(time.Millisecond)
	})
	own, all := memory(t, n.agent.PID(), "RssAnon"), memory(t, n.agent.PID(), "VmRSS")
	seen.begin("the host table deleted, until all leases are held again", func() time.Duration {
		n.Host.Run("nft", "delete", "table", "inet", "neardns")
		return until(t, n.held)
	})
	seen.begin("the link deleted, until it is back and all leases are held", func() time.Duration {
		n.Host.Run("ip", "link", "delete", "neardns0")
		return until(t, func() error {
			return errors.Join(testutil.ErrorIf(!n.hasLink("neardns0"), "there is no link"), n.held()) // leases outlive it for a while
		})
	})
	seen.begin("all 110 pods' tables deleted, until the last one is back; the agent looks every 30 s", func() time.Duration {
		for _, p := range pods {
			p.Run("nft", "delete", "table", "inet", "neardns")
		}
		return until(t, func() error {
			for _, p := range pods {
				if !p.ours() {
					return fmt.Errorf("%s has no table", p.name)
				}
			}
			return nil
		})
	})
	seen.begin("the agent killed and started, until it is ready", func() time.Duration {
		n.agent.Kill()
		return start()
	})
	testutil.Eventually(t, func() error { return last.in(podfile.Steered) })
	close(stop)
	wg.Wait()
	var sum outcome
	for _, got := range results {
		sum.sent, sum.answered, sum.wrong = sum.sent+got.sent, sum.answered+got.answered, sum.wrong+got.wrong
		sum.unanswered = append(sum.unanswered, got.unanswered...)
	}
	if sum.wrong > 0 || sum.lost()*100 > sum.sent {
		t.Errorf("%d of %d questions are lost, %d wrong", sum.lost(), sum.sent, sum.wrong)
	}
	lost := seen.lost(sum.unanswered)
	for i, e := range seen {
		f.row(e.what, e.took, lost[i])
	}
	f.row("queries in all", sum.sent, sum.lost())
	f.keep()
	f = &figures{t: t, name: "memory", drawing: drawing{Head: []string{"the agent of that node", ""}}}
	f.row("CPU while nothing happens but the queries", share)
	f.row("CPU in the ten seconds before, while 55 pods are new", young)
	f.row("resident memory", mebi(all))
	f.row("of it its own, without pages of the program's file", mebi(own))
	f.row("the most of its control group, with pages of the program's file", mebi(group.PeakMemory()))
	f.keep()
}
