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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ExcludedLabel keeps the cache off a node (the DaemonSet's affinity).
const ExcludedLabel = "neardns.io/cache"

// Agent is one node, and the pod of its agent.
type Agent struct {
	Node     string `json:"node"`
	Pod      string `json:"pod,omitempty"`
	Excluded bool   `json:"-"` // no agent is wanted there
	Why      string `json:"-"` // it cannot be read; "" if it can
}

// namesOnly makes the API server leave out all of an object but its metadata.
const namesOnly = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

// Agents lists the nodes, also those without an agent. A user who may not list nodes sees those that have one.
func (c *Cluster) Agents(ctx context.Context) ([]Agent, error) {
	nodeQuery, podQuery := url.Values{"labelSelector": {corev1.LabelOSStable + "=linux"}}, url.Values{"labelSelector": {c.selector}}
	if c.Node != "" {
		nodeQuery.Set("fieldSelector", "metadata.name="+c.Node)
		podQuery.Set("fieldSelector", "spec.nodeName="+c.Node)
	}
	var nodes metav1.PartialObjectMetadataList
	nodesErr := c.list(ctx, "/api/v1/nodes", nodeQuery, namesOnly, &nodes)
	if IsForbidden(nodesErr) {
		c.Note("nodes without an agent are not listed: %v", nodesErr)
	} else if nodesErr != nil {
		return nil, fmt.Errorf("list the nodes: %w", nodesErr)
	}
	var pods corev1.PodList
	if err := c.list(ctx, "/api/v1/namespaces/"+c.namespace+"/pods", podQuery, "", &pods); err != nil {
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

// match gives each node its agent: during an update two pods may be there, and the ready one answers.
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
		if n.Labels[ExcludedLabel] == "excluded" {
			a.Excluded, a.Why = true, "its label "+ExcludedLabel+" excludes it"
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

// rank orders the pods of one node: the higher, the likelier it serves.
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

// ReadAll has read called for all agents that can be read, each within the time that a request has.
func ReadAll[T any](ctx context.Context, c *Cluster, agents []Agent, read func(ctx context.Context, a Agent) (T, error)) ([]T, []error) {
	return parallel(ctx, agents, c.within(readTimeout), read)
}

// ExecAll is ReadAll with the time that a command on a node has.
func ExecAll[T any](ctx context.Context, c *Cluster, agents []Agent, run func(ctx context.Context, a Agent) (T, error)) ([]T, []error) {
	return parallel(ctx, agents, c.within(execTimeout), run)
}

// parallel calls do for all agents, MaxParallel at a time. Results are in the order of agents; an error is why there is no value.
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
