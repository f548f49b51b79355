package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
)

// TestWalk goes through random clusters to which anything happens at any time, with a DaemonSet controller that does its part some time and
// a controller that dies between any two patches. No step of it may break the package's guarantee, and once nothing happens any more, every
// node is as the placement has it.
func TestWalk(t *testing.T) {
	excluded, converged := 0, 0
	for seed := range uint64(60) {
		w := newWorld(seed)
		for range 150 {
			w.happen()
			w.daemonSet()
			excluded += w.step(t, w.rand.IntN(4) > 0)
		}
		if w.calm(t) {
			converged++
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	// If the walks exclude few nodes, or few come to rest, the test shows nothing.
	if excluded < 500 || converged < 25 {
		t.Errorf("%d nodes were excluded, %d walks came to rest", excluded, converged)
	}
}

type world struct {
	rand       *rand.Rand
	cluster    Cluster
	spec, last *v1alpha1.NodePlacement
	made       int
}

func newWorld(seed uint64) *world {
	w := &world{rand: rand.New(rand.NewPCG(seed, 0)), cluster: Cluster{Upstreams: 1}}
	for range 3 + w.rand.IntN(40) {
		w.join()
	}
	return w
}

func (w *world) join() {
	w.made++
	n := node(fmt.Sprintf("n%03d", w.made), "nocache")
	n.Labels["zone"] = string(rune('a' + w.rand.IntN(3)))
	w.cluster.Nodes = append(w.cluster.Nodes, n)
}

// happen changes one thing that is not the controller's.
func (w *world) happen() {
	if len(w.cluster.Nodes) == 0 {
		w.join()
	}
	i := w.rand.IntN(len(w.cluster.Nodes))
	n := &w.cluster.Nodes[i]
	switch w.rand.IntN(12) {
	case 0:
		n.Labels["zone"] = string(rune('a' + w.rand.IntN(3)))
	case 1:
		n.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoSchedule}}
	case 2, 3:
		n.Taints = nil
	case 4:
		w.join()
	case 5:
		if len(w.cluster.Nodes) > 3 {
			w.cluster.Nodes = slices.Delete(w.cluster.Nodes, i, i+1)
		}
	case 6:
		n.Ready = !n.Ready
	case 7:
		n.Ready = true
	case 8:
		w.cluster.Upstreams = w.rand.IntN(3)
	case 9:
		n.Cache = min(n.Cache, UnreadyCache)
	case 10:
		w.spec = []*v1alpha1.NodePlacement{
			nil, {}, selector("zone=a"), selector("zone=b"), selector("zone=nowhere"), selector("-bad="), {Tolerations: []v1alpha1.Toleration{}},
		}[w.rand.IntN(7)]
	}
}

// daemonSet does on some nodes what the DaemonSet controller and the kubelets do on all of them in the end.
func (w *world) daemonSet() {
	for i := range w.cluster.Nodes {
		n := &w.cluster.Nodes[i]
		if !n.Ready || w.rand.IntN(2) == 0 {
			continue
		}
		switch {
		case n.excluded() && n.Cache == ReadyCache:
			n.Cache = UnreadyCache
		case n.excluded():
			n.Cache = NoCache
		default:
			n.Cache = min(n.Cache+1, ReadyCache)
		}
	}
}

// step does what Decide decides, or the beginning of it, and returns how many nodes it excluded.
func (w *world) step(t *testing.T, whole bool) int {
	t.Helper()
	before := len(w.serving())
	d := Decide(w.cluster, Want{Spec: w.spec, Last: w.last})
	include, exclude := d.Include, d.Exclude
	if !whole {
		include = include[:w.rand.IntN(len(include)+1)]
		exclude = exclude[:min(len(exclude), w.rand.IntN(len(exclude)+1)*len(include)/max(len(d.Include), 1))]
	}
	for _, name := range include {
		n := w.find(name)
		if !n.excluded() {
			t.Errorf("%s is included, and was not excluded", name)
		}
		delete(n.Labels, Label)
	}
	for _, name := range exclude {
		n := w.find(name)
		switch {
		case n.excluded():
			t.Errorf("%s is excluded twice", name)
		case w.cluster.Upstreams == 0:
			t.Errorf("%s is excluded while kube-dns has no endpoint", name)
		case w.spec != nil && newRule(d.Accepted).wants(n):
			t.Errorf("%s is excluded, and is eligible", name)
		}
		n.Labels[Label] = Excluded
	}
	if w.spec != nil {
		w.last = d.Accepted
		if len(exclude) > 0 && !w.eligibleServes(d.Accepted) {
			t.Errorf("%d nodes were excluded while no eligible node has a Ready cache", len(exclude))
		}
	}
	if before > 0 && len(w.serving()) == 0 {
		t.Error("the step left no cache at all")
	}
	onTheirWay := 0
	for i := range w.cluster.Nodes {
		if n := &w.cluster.Nodes[i]; n.excluded() && n.Ready && n.Cache != NoCache {
			onTheirWay++
		}
	}
	if most := max(len(w.cluster.Nodes)/10, 1); len(exclude) > most {
		t.Errorf("%d of %d nodes are excluded in one step", len(exclude), len(w.cluster.Nodes))
	} else if len(exclude) > 0 && onTheirWay > most {
		t.Errorf("%d of %d nodes are on their way out at a time", onTheirWay, len(w.cluster.Nodes))
	}
	return len(exclude)
}

func (w *world) serving() (out []string) {
	for i := range w.cluster.Nodes {
		if n := &w.cluster.Nodes[i]; n.serves() {
			out = append(out, n.Name)
		}
	}
	return out
}

func (w *world) eligibleServes(p *v1alpha1.NodePlacement) bool {
	r := newRule(p)
	return slices.ContainsFunc(w.cluster.Nodes, func(n Node) bool { return possible(&n) && r.wants(&n) && n.serves() })
}

func (w *world) find(name string) *Node {
	return &w.cluster.Nodes[slices.IndexFunc(w.cluster.Nodes, func(n Node) bool { return n.Name == name })]
}

// calm lets nothing more happen to a cluster that is well, and reports whether the placement is one that nodes satisfy.
func (w *world) calm(t *testing.T) bool {
	t.Helper()
	w.cluster.Upstreams = 1
	for i := range w.cluster.Nodes {
		w.cluster.Nodes[i].Ready = true
	}
	patches := map[string]int{}
	for range 200 {
		w.daemonSet()
		d := Decide(w.cluster, Want{Spec: w.spec, Last: w.last})
		for _, name := range slices.Concat(d.Include, d.Exclude) {
			patches[name]++
		}
		w.step(t, true)
	}
	for name, n := range patches {
		if n > 1 {
			t.Errorf("%s was patched %d times, though nothing changed", name, n)
		}
	}
	d := Decide(w.cluster, Want{Spec: w.spec, Last: w.last})
	if w.spec == nil {
		if d.ExcludedNodes > 0 {
			t.Errorf("without an object, %d nodes stay excluded", d.ExcludedNodes)
		}
		return false
	}
	if d.Eligible > 0 && !d.Conditions[1].True {
		t.Errorf("it does not come to rest: %+v", d)
	}
	return d.Conditions[0].True
}
