package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
)

// node makes a Ready Linux node with a Ready cache; the words change that.
func node(name string, words ...string) Node {
	n := Node{Name: name, Ready: true, Cache: ReadyCache, Labels: map[string]string{corev1.LabelOSStable: "linux"}}
	for _, w := range words {
		switch key, value, _ := strings.Cut(w, "="); key {
		case "down":
			n.Ready = false
		case "nocache":
			n.Cache = NoCache
		case "unready":
			n.Cache = UnreadyCache
		case "out":
			n.Labels[Label], n.Cache = Excluded, NoCache
		case "going":
			n.Labels[Label], n.Cache = Excluded, UnreadyCache
		case "taint":
			key, effect, _ := strings.Cut(value, ":")
			n.Taints = append(n.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffect(effect)})
		default:
			n.Labels[key] = value
		}
	}
	return n
}

// many makes n nodes alike, named from the prefix on.
func many(prefix string, n int, words ...string) (out []Node) {
	for i := range n {
		out = append(out, node(fmt.Sprintf("%s%03d", prefix, i), words...))
	}
	return out
}

func selector(pairs ...string) *v1alpha1.NodePlacement {
	p := &v1alpha1.NodePlacement{NodeSelector: map[string]v1alpha1.LabelValue{}}
	for _, pair := range pairs {
		k, v, _ := strings.Cut(pair, "=")
		p.NodeSelector[k] = v1alpha1.LabelValue(v)
	}
	return p
}

func TestDecide(t *testing.T) {
	infra := selector("infra=")
	none := &v1alpha1.NodePlacement{Tolerations: []v1alpha1.Toleration{}}
	for name, c := range map[string]struct {
		nodes      []Node
		noUpstream bool
		want       Want
		include    string // names, comma separated
		exclude    string
		reasons    string // Accepted Applied Available
		message    string // in one of the conditions
	}{
		"no object: labels go": {
			nodes: []Node{node("a", "out"), node("b"), node("w", "out", "kubernetes.io/os=windows")}, include: "a,w", reasons: "  ",
		},
		"unset placement: every node": {
			nodes: []Node{node("a", "out"), node("b", "taint=x:NoExecute")}, want: Want{Spec: &v1alpha1.NodePlacement{}}, include: "a",
			reasons: "Accepted Moving Available", message: "1 of 2",
		},
		"all done": {
			nodes: []Node{node("a", "infra="), node("b", "out")}, want: Want{Spec: infra, Last: infra},
			reasons: "Accepted Applied Available", message: "1 nodes run the cache, 1 are excluded",
		},
		"one step": {
			nodes: slices.Concat(many("i", 2, "infra="), many("w", 28)), want: Want{Spec: infra},
			exclude: "w000,w001,w002", reasons: "Accepted Moving Available",
		},
		"a step waits for the pods of the one before": {
			nodes: slices.Concat(many("i", 2, "infra="), many("g", 2, "going"), many("w", 26)), want: Want{Spec: infra, Last: infra},
			exclude: "w000", reasons: "Accepted Moving Available",
		},
		"a dead node's pod holds nobody up": {
			nodes: slices.Concat(many("i", 2, "infra="), many("g", 1, "going", "down"), many("w", 7)), want: Want{Spec: infra, Last: infra},
			exclude: "w000", reasons: "Accepted Moving Available",
		},
		"enter first": {
			nodes: []Node{node("a", "infra=", "out"), node("b")}, want: Want{Spec: infra, Last: selector("x=")}, include: "a",
			reasons: "Accepted NoReadyCache NoReadyCache", message: "no node loses its own",
		},
		"no node leaves, so none waits for a Ready cache": {
			nodes: []Node{node("a", "infra=", "out")}, want: Want{Spec: infra, Last: infra}, include: "a",
			reasons: "Accepted Moving NoReadyCache",
		},
		"the entering cache is not Ready yet": {
			nodes: []Node{node("a", "infra=", "unready"), node("b")}, want: Want{Spec: infra, Last: infra}, reasons: "Accepted NoReadyCache NoReadyCache",
		},
		"late": {
			nodes: []Node{node("a", "infra=", "unready"), node("b")}, want: Want{Spec: infra, Last: infra, Late: true},
			reasons: "Accepted DeadlineExceeded NoReadyCache", message: "(NoReadyCache)",
		},
		"kube-dns is gone": {
			nodes: []Node{node("a", "infra="), node("b")}, noUpstream: true, want: Want{Spec: infra}, reasons: "Accepted NoUpstream Available",
			message: "kube-dns has no ready endpoint",
		},
		"no node satisfies it": {
			nodes: []Node{node("a", "infra="), node("b", "out"), node("c", "out")}, want: Want{Spec: selector("foo=bar"), Last: infra},
			reasons: "NoEligibleNodes Applied Available", message: "none of 3 nodes satisfies it: 3 nodes lack foo=bar; the last accepted placement stays",
		},
		"new nodes are judged by the one before": {
			nodes: append(many("i", 9, "infra="), node("new")), want: Want{Spec: selector("foo=bar"), Last: infra}, exclude: "new",
			reasons: "NoEligibleNodes Moving Available",
		},
		"no node satisfies the first one": {
			nodes: []Node{node("a"), node("b", "out")}, want: Want{Spec: selector("foo=bar")}, include: "b", reasons: "NoEligibleNodes Moving Available",
		},
		"counts by cause": {
			nodes:   []Node{node("a"), node("b"), node("c", "foo=bar", "taint=x:NoSchedule")},
			want:    Want{Spec: &v1alpha1.NodePlacement{NodeSelector: map[string]v1alpha1.LabelValue{"foo": "bar"}, Tolerations: []v1alpha1.Toleration{}}},
			reasons: "NoEligibleNodes Applied Available", message: "2 nodes lack foo=bar, 1 node has taint x:NoSchedule",
		},
		"later the last eligible node is relabelled": {
			nodes: []Node{node("a"), node("b", "out")}, want: Want{Spec: infra, Last: infra}, reasons: "NoEligibleNodes NoReadyCache NoEligibleNodes",
			message: "no further node is excluded",
		},
		"a node that is down for now keeps its cache": {
			nodes: []Node{node("a"), node("b", "down", "unready", "taint=node.kubernetes.io/not-ready:NoSchedule")}, want: Want{Spec: none, Last: none},
			reasons: "Accepted Applied Available", message: "1 of 2",
		},
		"one that was excluded does not come back while it is down": {
			nodes:   []Node{node("a"), node("b", "out", "taint=node.kubernetes.io/unreachable:NoSchedule")},
			want:    Want{Spec: none, Last: none},
			reasons: "Accepted Applied Available",
		},
		"cordoned nodes are nodes": {
			nodes: []Node{node("a", "taint=node.kubernetes.io/unschedulable:NoSchedule"), node("b", "taint=node.kubernetes.io/disk-pressure:NoSchedule")},
			want:  Want{Spec: none}, reasons: "Accepted Applied Available",
		},
		"one of two taints is tolerated": {
			nodes: []Node{node("a", "taint=x:NoSchedule"), node("b", "taint=x:NoSchedule", "taint=y:NoSchedule"), node("c", "taint=y:PreferNoSchedule")},
			want:  Want{Spec: &v1alpha1.NodePlacement{Tolerations: []v1alpha1.Toleration{{Key: "x", Operator: "Exists"}}}}, exclude: "b",
			reasons: "Accepted Moving Available", message: "2 of 2",
		},
		"nodes that can have no cache are left alone": {
			nodes: []Node{node("a", "m="), node("w", "m=", "nocache", "kubernetes.io/os=windows"), node("v", "nocache", "type=virtual-kubelet"),
				node("f", "eks.amazonaws.com/compute-type=fargate")},
			want: Want{Spec: selector("m=")}, reasons: "Accepted Applied Available", message: "1 of 1",
		},
		"another value of the label is none of ours": {
			nodes: []Node{node("a", "infra="), node("b", Label+"=maybe")}, want: Want{Spec: infra}, exclude: "b", reasons: "Accepted Moving Available",
		},
		"invalid": {
			nodes: []Node{node("a", "infra="), node("b", "out")}, want: Want{Spec: selector("-x=y"), Last: infra},
			reasons: "Invalid Applied Available", message: `spec.nodePlacement.nodeSelector: "-x"`,
		},
		"no nodes": {want: Want{Spec: infra}, reasons: "NoEligibleNodes Applied NoEligibleNodes", message: "there are no nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := Cluster{Nodes: c.nodes, Upstreams: 1}
			if c.noUpstream {
				cluster.Upstreams = 0
			}
			d := Decide(cluster, c.want)
			if got := strings.Join(d.Include, ","); got != c.include {
				t.Errorf("include %q, want %q", got, c.include)
			}
			if got := strings.Join(d.Exclude, ","); got != c.exclude {
				t.Errorf("exclude %q, want %q", got, c.exclude)
			}
			var reasons, messages []string
			for _, condition := range d.Conditions {
				reasons, messages = append(reasons, condition.Reason), append(messages, condition.Message)
				if c.want.Spec != nil && condition.True != (condition.Reason == condition.Type) {
					t.Errorf("%s is %v with reason %s", condition.Type, condition.True, condition.Reason)
				}
				if c.want.Spec != nil && !slices.Contains(Reasons()[condition.Type], condition.Reason) {
					t.Errorf("%s has the unknown reason %q", condition.Type, condition.Reason)
				}
			}
			if got := strings.Join(reasons, " "); got != c.reasons {
				t.Errorf("reasons %q, want %q\n%s", got, c.reasons, strings.Join(messages, "\n"))
			}
			if all := strings.Join(messages, "\n"); !strings.Contains(all, c.message) {
				t.Errorf("%q is not in\n%s", c.message, all)
			}
			accepted := c.want.Last
			if d.Conditions[0].True {
				accepted = c.want.Spec
			}
			if diff := cmp.Diff(accepted, d.Accepted); diff != "" && c.want.Spec != nil {
				t.Errorf("accepted (-want +got):\n%s", diff)
			}
		})
	}
}
