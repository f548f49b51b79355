package controlplane

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/fleet/controller/placement"
	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/pkg/testutil"
)

// ignored is how long a placement that no node satisfies is looked at: the enhancement's own test does it for so long.
const ignored = 3 * time.Minute

// The placements of the enhancement that this API is made after, from file to pods, on 50 nodes. Then one that no node satisfies.
func TestSeed(t *testing.T) {
	c := newCluster(t, 0, 44)
	taint := func(key string) corev1.Taint { return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule} }
	AddNode(t, c.Client, "i1", map[string]string{"node-role.kubernetes.io/infra": ""}, taint("node-role.kubernetes.io/infra"))
	AddNode(t, c.Client, "i2", map[string]string{"node-role.kubernetes.io/infra": ""}, taint("node-role.kubernetes.io/infra"))
	AddNode(t, c.Client, "m1", map[string]string{"node-role.kubernetes.io/master": ""}, taint("node-role.kubernetes.io/master"))
	AddNode(t, c.Client, "m2", map[string]string{"node-role.kubernetes.io/master": ""}, taint("node-role.kubernetes.io/master"))
	AddNode(t, c.Client, "d1", nil, taint("dns-only"))
	AddNode(t, c.Client, "d2", nil, taint("dns-only"))
	c.controller()
	workers := []string{}
	for _, n := range c.nodes() {
		if strings.HasPrefix(n.Name, "worker") {
			workers = append(workers, n.Name)
		}
	}
	for _, s := range []struct {
		file string
		want []string
	}{
		{"infra", []string{"i1", "i2"}},
		{"masters", []string{"m1", "m2"}},
		{"dns-only", slices.Concat([]string{"d1", "d2"}, workers)},
	} {
		c.apply(testutil.ReadFile(t, "../../fleet/conf/nodedns-"+s.file+".yaml"))
		took := c.reasons("Accepted Applied Available")
		t.Logf("%s: applied after %s", s.file, took.Round(time.Millisecond))
		if got := c.included(); !slices.Equal(got, s.want) {
			t.Errorf("%s: %v, want %v", s.file, got, s.want)
		}
		if got := slices.Sorted(maps.Keys(c.caches())); !slices.Equal(got, s.want) {
			t.Errorf("%s: caches on %v, want %v", s.file, got, s.want)
		}
	}
	nodes, pods := c.nodes(), c.caches()
	c.apply("{nodeSelector: {foo: bar}}")
	refused := c.reasons("NoEligibleNodes Applied Available")
	compat.Say(t, "placement", "the placements of the enhancement", "the same, on 50 nodes")
	compat.Say(t, "placement", "no node satisfies it", fmt.Sprintf("`NoEligibleNodes` with counts and an Event, after %d ms; no label changes", refused.Milliseconds()))
	if m := c.object().Status.Conditions[0].Message; !strings.Contains(m, "none of 50 nodes satisfies it: 50 nodes lack foo=bar") {
		t.Errorf("message %q", m)
	}
	if !demo() {
		<-time.After(ignored) // nothing comes of it later either
	}
	for i, n := range c.nodes() {
		if !maps.Equal(n.Labels, nodes[i].Labels) {
			t.Errorf("%s has other labels now", n.Name)
		}
	}
	if !maps.Equal(pods, c.caches()) {
		t.Error("pods changed")
	}
	Await(t, "an Event tells of it", func() error {
		var list eventsv1.EventList
		if err := c.Client.List(t.Context(), &list); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Reason == placement.NoEligibleNodes && e.Type == "Warning" && e.Regarding.Kind == "NodeDNS" {
				return nil
			}
		}
		return fmt.Errorf("%d Events", len(list.Items))
	})
	testutil.Must(t, c.Client.Delete(t.Context(), c.object()))
	c.awaitCaches("every node has its cache back", 50)
}

// From every node to five and back: no pod that stays is touched, no node is patched twice, and an eligible node has a Ready cache
// throughout.
func TestLarge(t *testing.T) {
	const all, few = 500, 5
	c := newCluster(t, few, all-few)
	c.controller()
	w := c.watch(infraNode)
	before := c.caches()
	c.apply(`{nodeSelector: {infra: ""}}`)
	out := c.reasons("Accepted Applied Available").Round(time.Second)
	if most, changed := w.most(); most != 1 || changed != all-few {
		t.Errorf("%d nodes were patched, one of them %d times", changed, most)
	}
	after := c.caches()
	if len(after) != few {
		t.Errorf("%d caches", len(after))
	}
	w.reset()
	c.apply(`{}`)
	back := c.reasons("Accepted Applied Available").Round(time.Second)
	compat.Say(t, "placement", "a change restarts", fmt.Sprintf("pods on nodes that enter or leave, with one patch a node (%d nodes to %d in %s, and back in %s)", all, few, out, back))
	if most, changed := w.most(); most != 1 || changed != all-few {
		t.Errorf("%d nodes were patched, one of them %d times", changed, most)
	}
	end := c.caches()
	for node, uid := range after {
		if before[node] != uid || end[node] != uid {
			t.Errorf("the pod on %s was not left alone", node)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.faults {
		t.Error(f)
	}
	if len(end) != all || w.fewest < 1 {
		t.Errorf("%d caches at the end, %d at the fewest", len(end), w.fewest)
	}
}

// What happens to nodes later does not take the last cache either, unless its node is deleted, and all goes on by itself when it ends.
func TestLater(t *testing.T) {
	c := newCluster(t, 2, 18)
	c.controller()
	infra := []string{"infra000", "infra001"}
	patch := func(fields string) {
		for _, name := range infra {
			c.patchNode(name, fields)
		}
	}
	c.apply(`{nodeSelector: {infra: ""}, tolerations: []}`)
	c.reasons("Accepted Applied Available")
	var slowest time.Duration
	reported := func(what, reasons string) {
		t.Helper()
		took := c.reasons(reasons)
		t.Logf("%s: reported after %s", what, took.Round(time.Millisecond))
		slowest = max(slowest, took)
	}
	stays := func(what, reasons string) {
		t.Helper()
		reported(what, reasons)
		if got := c.included(); !slices.Equal(got, infra) || len(c.caches()) < len(infra) {
			t.Errorf("%s: %v run the cache", what, got)
		}
	}
	// One node changes before the other, and may leave while that one is eligible. The last one stays.
	oneStays := func(what string) {
		t.Helper()
		reported(what, "NoEligibleNodes NoReadyCache NoEligibleNodes")
		if got := c.included(); len(got) == 0 || !slices.Contains(got, infra[1]) || c.caches()[infra[1]] == "" {
			t.Errorf("%s: %v run the cache", what, got)
		}
	}
	patch(`{"metadata":{"labels":{"infra":null}}}`)
	oneStays("every eligible node is relabelled")
	patch(`{"metadata":{"labels":{"infra":""}}}`)
	stays("labels are back", "Accepted Applied Available")
	patch(`{"spec":{"taints":[{"key":"x","effect":"NoSchedule"}]}}`)
	oneStays("every eligible node is tainted")
	patch(`{"spec":{"taints":null}}`)
	stays("taints are gone", "Accepted Applied Available")
	for _, name := range infra {
		SetReady(t, c.Client, name, corev1.ConditionFalse)
	}
	stays("every eligible node is down", "Accepted Applied NoReadyCache")
	for _, name := range infra {
		SetReady(t, c.Client, name, corev1.ConditionTrue)
	}
	stays("nodes are up", "Accepted Applied Available")
	// Without power: the node lifecycle controller finds it by their Leases, and taints them.
	c.kubelets.Stop(infra...)
	Await(t, "nodes without power are down", func() error {
		for _, n := range c.nodes() {
			unreachable := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable })
			if slices.Contains(infra, n.Name) != unreachable {
				return fmt.Errorf("%s: %v", n.Name, n.Spec.Taints)
			}
		}
		return nil
	})
	reported("every eligible node is without power", "Accepted Applied NoReadyCache")
	if got := c.included(); !slices.Equal(got, infra) {
		t.Errorf("without power: %v run the cache", got)
	}
	c.kubelets.Mend()
	c.awaitCaches("power is back", len(infra))
	stays("power is back", "Accepted Applied Available")

	// Amid a move: images that cannot be pulled, and kube-dns without endpoints.
	c.apply(`{}`)
	c.reasons("Accepted Applied Available")
	c.apply(`{nodeSelector: {absent: ""}}`)
	c.reasons("NoEligibleNodes Applied Available")
	c.kubelets.Break("worker000")
	const out = `{"metadata":{"labels":{"absent":""}}}`
	var pods corev1.PodList
	testutil.Must(t, c.Client.List(t.Context(), &pods, client.InNamespace("kube-system"), client.MatchingLabels{"app.kubernetes.io/name": "neardns"}))
	for i := range pods.Items { // its present pod is Ready: the next one will not be
		if p := &pods.Items[i]; p.Spec.NodeName == "worker000" {
			testutil.Must(t, c.Client.Delete(t.Context(), p))
		}
	}
	Await(t, "the cache of worker000 is not Ready", func() error { return testutil.ErrorIf(c.caches()["worker000"] != "", "it is") })
	c.patchNode("worker000", out)
	reported("no image on the only eligible node", "Accepted NoReadyCache NoReadyCache")
	if got := len(c.included()); got != 20 {
		t.Errorf("%d nodes run the cache, want all", got)
	}
	c.upstreams(0)
	c.kubelets.Mend()
	reported("kube-dns has no endpoint", "Accepted NoUpstream Available")
	if got := len(c.included()); got != 20 {
		t.Errorf("%d nodes run the cache, want all", got)
	}
	c.upstreams(1)
	c.reasons("Accepted Applied Available")
	if got := c.included(); !slices.Equal(got, []string{"worker000"}) {
		t.Errorf("%v run the cache", got)
	}

	// The only eligible node is deleted: those that left stay out, with the reason; another eligible one ends that.
	testutil.Must(t, c.Client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker000"}}))
	reported("the eligible node is deleted", "NoEligibleNodes Applied NoEligibleNodes")
	c.patchNode("worker001", out)
	c.reasons("Accepted Applied Available")
	if got := c.included(); !slices.Equal(got, []string{"worker001"}) {
		t.Errorf("%v run the cache", got)
	}
	compat.Say(t, "placement", "nodes relabelled, tainted, deleted or without power later",
		fmt.Sprintf("the last eligible node stays, no cache is removed then, and the reason is reported (after %.1f s at most); it goes on by itself", slowest.Seconds()))
	compat.Say(t, "placement", "images that cannot be pulled, no kube-dns",
		fmt.Sprintf("no cache is removed until that ends, and the reason is reported (after %.1f s at most)", slowest.Seconds()))
}

// The role hosts is on every Linux node, whatever its state and whatever the placement, which moves no pod of it; nor does the cache's
// account of itself depend on it.
func TestHostsStay(t *testing.T) {
	c := newCluster(t, 1, 1)
	AddNode(t, c.Client, "tainted", nil, corev1.Taint{Key: "x", Effect: corev1.TaintEffectNoSchedule})
	AddNode(t, c.Client, "evicting", nil, corev1.Taint{Key: "x", Effect: corev1.TaintEffectNoExecute})
	AddNode(t, c.Client, "down", nil, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute})
	AddNode(t, c.Client, "excluded", map[string]string{placement.Label: placement.Excluded})
	AddNode(t, c.Client, "windows", map[string]string{corev1.LabelOSStable: "windows"})
	AddNode(t, c.Client, "virtual", map[string]string{"type": "virtual-kubelet"})
	AddNode(t, c.Client, "cordoned", nil)
	c.MustKubectl("cordon", "cordoned")
	c.MustKubectl("apply", "-k", "../../install/hosts")
	where := func() map[string]string {
		var pods corev1.PodList
		testutil.Must(t, c.Client.List(t.Context(), &pods, client.InNamespace("kube-system"), client.MatchingLabels{"app.kubernetes.io/name": "neardns-hosts"}))
		out := map[string]string{}
		for i := range pods.Items {
			out[pods.Items[i].Spec.NodeName] = string(pods.Items[i].UID)
		}
		return out
	}
	want := []string{"cordoned", "down", "evicting", "excluded", "infra000", "tainted", "worker000"}
	Await(t, "the role is on every Linux node", func() error {
		got := slices.Sorted(maps.Keys(where()))
		return testutil.ErrorIf(!slices.Equal(got, want), "%v", got)
	})
	set := func() *appsv1.DaemonSet {
		out := &appsv1.DaemonSet{}
		testutil.Must(t, c.Client.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "neardns-hosts"}, out))
		return out
	}
	was, generation := where(), set().Generation
	c.controller()
	c.apply(`{nodeSelector: {infra: ""}, tolerations: []}`)
	c.reasons("Accepted Applied Available")
	if got := where(); !maps.Equal(got, was) || set().Generation != generation {
		t.Errorf("the placement moved pods of the role:\n%v\n%v", was, got)
	}
	caches := c.caches()
	c.MustKubectl("-n", "kube-system", "delete", "pods", "-l", "app.kubernetes.io/name=neardns-hosts")
	Await(t, "the role's pods are other ones", func() error {
		for node, uid := range where() {
			if was[node] == uid {
				return fmt.Errorf("%s has the old one", node)
			}
		}
		return nil
	})
	c.reasons("Accepted Applied Available")
	if !maps.Equal(caches, c.caches()) {
		t.Error("the cache's pods went with them")
	}
}

// The controller is killed at random points, the leader is stopped beyond its Lease, the API server hangs and is restarted.
func TestKilled(t *testing.T) {
	const kills = 100
	c := newCluster(t, 3, 27)
	w := c.watch(infraNode)
	placements := []string{`{nodeSelector: {infra: ""}}`, `{}`}
	random := rand.New(rand.NewPCG(1, 1))
	for i := range kills {
		c.apply(placements[i/5%2])
		p := c.controller()
		<-time.After(time.Duration(500+random.IntN(1500)) * time.Millisecond) // this is the random point
		p.Kill()
		// A killed one does not give its Lease back; the next would wait for it.
		c.MustKubectl("-n", "kube-system", "delete", "lease", "neardns-placement", "--ignore-not-found")
	}
	w.mu.Lock()
	changes := 0
	for _, n := range w.count {
		changes += n
	}
	w.mu.Unlock()
	// Kills that hit no working controller show nothing.
	compat.Say(t, "placement", "the controller is killed", fmt.Sprintf("another goes on from what is there: %d kills amid %d changes, and never without an eligible Ready cache", kills, changes))
	if t.Logf("%d labels changed between %d kills", changes, kills); changes < kills {
		t.Errorf("only %d labels changed", changes)
	}
	c.apply(placements[0])
	first := c.controller()
	c.reasons("Accepted Applied Available")
	if got := c.included(); !slices.Equal(got, []string{"infra000", "infra001", "infra002"}) {
		t.Errorf("%v run the cache", got)
	}

	second := c.controller()
	c.apply(placements[1])
	c.reasons("Accepted Applied Available")
	led := c.leader()
	stopped := time.Now()
	testutil.Must(t, first.Process.Signal(syscall.SIGSTOP))
	c.apply(placements[0])
	Await(t, "the other leads", func() error {
		now := c.leader()
		return testutil.ErrorIf(now == led, "%s does", now)
	})
	took := time.Since(stopped)
	compat.Say(t, "placement", "the leader is stopped beyond its Lease", fmt.Sprintf("the other leads after %.1f s; the first one ends when it wakes", took.Seconds()))
	compat.Say(t, "placement", "the API server hangs amid a move, or restarts", "the move goes on when it is back, and never without an eligible Ready cache")
	c.reasons("Accepted Applied Available")
	testutil.Must(t, first.Process.Signal(syscall.SIGCONT))
	select {
	case <-first.Ended():
	case <-time.After(Patience):
		t.Error("who lost the lead goes on")
	case <-second.Ended():
		t.Error("who leads has ended")
	}
	settle := func(what string, nodes int) {
		t.Helper()
		Await(t, what, func() error {
			select {
			case <-second.Ended():
				second = c.controller() // as a Deployment does
			default:
			}
			n := len(c.included())
			return testutil.ErrorIf(n != nodes, "%d", n)
		})
	}
	// An API server that hangs amid a move, for longer than a leader may go on by what it knew.
	c.apply(placements[1])
	settle("every node has its cache back", 30)
	c.apply(placements[0])
	<-time.After(time.Second) // amid it
	for i, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		testutil.Must(t, c.api.Process.Signal(signal))
		if i == 0 {
			<-time.After(20 * time.Second)
		}
	}
	settle("the move goes on after the API server hung", 3)
	w.mu.Lock()
	for _, f := range w.faults {
		t.Error(f)
	}
	w.mu.Unlock()

	c.api.Kill()
	c.api = c.RunAPIServer()
	c.apply(placements[1])
	settle("every node has its cache back after the API server was started anew", 30)
}

// leader is who holds the Lease.
func (c *cluster) leader() string {
	c.t.Helper()
	var l coordinationv1.Lease
	testutil.Must(c.t, c.Client.Get(c.t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "neardns-placement"}, &l))
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}
