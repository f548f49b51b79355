package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/neardns/neardns/agent/internal/overview"
)

// ExcludedLabel is the node label that, with the value "excluded", keeps the cache off a node, by an affinity of the agents' DaemonSet.
const ExcludedLabel = "neardns.io/cache"

// Agent is a node with the pod of its agent, if it has one.
type Agent struct {
	Node     string `json:"node"`
	Pod      string `json:"pod,omitempty"`
	Excluded bool   `json:"-"` // no agent is wanted there
	Why      string `json:"-"` // why the agent cannot be read; "" if it can be read
}

// namesOnly is an Accept header that makes the API server return only the metadata of objects.
const namesOnly = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

// Agents lists the Linux nodes with their agents, including nodes without one. If the user may not list nodes, it lists only those with an
// agent.
func (c *Cluster) Agents(ctx context.Context) ([]Agent, error) {
	nodeQuery, podQuery := url.Values{"labelSelector": {corev1.LabelOSStable + "=linux"}}, url.Values{"labelSelector": {c.selector}}
	if c.Node != "" {
		nodeQuery.Set("fieldSelector", "metadata.name="+c.Node)
		podQuery.Set("fieldSelector", "spec.nodeName="+c.Node)
	}
	var nodes metav1.PartialObjectMetadataList
	nodesErr := c.Get(ctx, "/api/v1/nodes", nodeQuery, namesOnly, &nodes)
	if apierrors.IsForbidden(nodesErr) {
		c.Note("nodes without an agent are not listed: %v", nodesErr)
	} else if nodesErr != nil {
		return nil, fmt.Errorf("list the nodes: %w", nodesErr)
	}
	var pods corev1.PodList
	if err := c.Get(ctx, "/api/v1/namespaces/"+c.namespace+"/pods", podQuery, "", &pods); err != nil {
		return nil, fmt.Errorf("list the agents' pods: %w", err)
	}
	out := match(nodes.Items, pods.Items)
	if len(out) == 0 && c.Node != "" {
		return nil, fmt.Errorf("there is no Linux node %q", c.Node)
	} else if len(out) == 0 {
		return nil, fmt.Errorf("there is no node with an agent: no pod in namespace %s has the label %s", c.namespace, c.selector)
	}
	return out, nil
}

// match pairs each node with its agent's pod. During an update a node may have two pods; match prefers a ready one.
func match(nodes []metav1.PartialObjectMetadata, pods []corev1.Pod) []Agent {
	slices.SortStableFunc(pods, func(a, b corev1.Pod) int { return cmp.Compare(rank(b), rank(a)) })
	found := map[string]Agent{}
	for _, p := range pods {
		if _, ok := found[p.Spec.NodeName]; ok || p.Spec.NodeName == "" {
			continue
		}
		a := Agent{Node: p.Spec.NodeName, Pod: p.Name}
		if p.Status.Phase != corev1.PodRunning {
			a.Why = fmt.Sprintf("its agent's pod %s is %s", p.Name, cmp.Or(p.Status.Phase, "not started"))
		}
		found[a.Node] = a
	}
	for _, n := range nodes {
		if _, ok := found[n.Name]; ok {
			continue
		}
		a := Agent{Node: n.Name, Why: "no agent runs on it"}
		selected := func(p corev1.Pod) bool {
			return labels.SelectorFromSet(p.Spec.NodeSelector).Matches(labels.Set(n.Labels))
		}
		switch {
		case n.Labels[ExcludedLabel] == "excluded":
			a.Excluded, a.Why = true, "its label "+ExcludedLabel+" excludes it"
		case len(pods) > 0 && !slices.ContainsFunc(pods, selected):
			a.Excluded, a.Why = true, "the DaemonSet's nodeSelector excludes it"
		}
		found[n.Name] = a
	}
	out := make([]Agent, 0, len(found))
	for _, a := range found {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b Agent) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// rank orders the pods of one node: the pod with the highest rank most likely serves.
func rank(p corev1.Pod) (n int) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			n += 4
		}
	}
	if p.Status.Phase == corev1.PodRunning {
		n += 2
	}
	if p.DeletionTimestamp == nil {
		n++
	}
	return n
}

// ReadAll reads the state that all agents that can be read report, in parallel, each within the timeout of a request.
func (c *Cluster) ReadAll(ctx context.Context, agents []Agent) ([]overview.Node, []error) {
	return parallel(ctx, agents, c.timeoutFor(readTimeout), func(ctx context.Context, a Agent) (n overview.Node, err error) {
		err = c.read(ctx, a.Pod, overview.Path, &n)
		return n, err
	})
}

// ExecAll calls run for all agents that can be read, in parallel, each within the timeout of a command on a node.
func ExecAll[T any](ctx context.Context, c *Cluster, agents []Agent, run func(ctx context.Context, a Agent) (T, error)) ([]T, []error) {
	return parallel(ctx, agents, c.timeoutFor(execTimeout), run)
}

// parallel calls do for all agents, at most MaxParallel at a time. Results and errors are in the order of agents. An agent that cannot be
// read gets an error with the reason.
func parallel[T any](ctx context.Context, agents []Agent, timeout time.Duration,
	do func(ctx context.Context, a Agent) (T, error)) ([]T, []error) {
	values, errs := make([]T, len(agents)), make([]error, len(agents))
	slots := make(chan struct{}, MaxParallel)
	var wg sync.WaitGroup
	for i, a := range agents {
		if a.Why != "" {
			errs[i] = errors.New(a.Why)
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			values[i], errs[i] = do(ctx, a)
		})
	}
	wg.Wait()
	return values, errs
}
