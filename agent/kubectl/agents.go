package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// excludedLabel keeps the cache off a node (the DaemonSet's affinity).
const excludedLabel = "neardns.io/cache"

// agent is one node, and the pod of its agent.
type agent struct {
	Node     string `json:"node"`
	Pod      string `json:"pod,omitempty"`
	excluded bool   // no agent is wanted there
	why      string // it cannot be read; "" if it can
}

// namesOnly makes the API server leave out all of an object but its metadata.
const namesOnly = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

// agents lists the nodes, also those without an agent. A user who may not list nodes sees those that have one.
func (c *cluster) agents(ctx context.Context) ([]agent, error) {
	nodeQuery, podQuery := url.Values{"labelSelector": {corev1.LabelOSStable + "=linux"}}, url.Values{"labelSelector": {c.selector}}
	if c.node != "" {
		nodeQuery.Set("fieldSelector", "metadata.name="+c.node)
		podQuery.Set("fieldSelector", "spec.nodeName="+c.node)
	}
	var nodes metav1.PartialObjectMetadataList
	nodesErr := c.list(ctx, "/api/v1/nodes", nodeQuery, namesOnly, &nodes)
	if hasCode(nodesErr, http.StatusForbidden) {
		fmt.Fprintf(c.stderr, "nodes without an agent are not listed: %v\n", nodesErr)
	} else if nodesErr != nil {
		return nil, fmt.Errorf("list the nodes: %w", nodesErr)
	}
	var pods corev1.PodList
	if err := c.list(ctx, "/api/v1/namespaces/"+c.namespace+"/pods", podQuery, "", &pods); err != nil {
		return nil, fmt.Errorf("list the agents' pods: %w", err)
	}
	out := match(nodes.Items, pods.Items)
	if len(out) == 0 && c.node != "" {
		return nil, fmt.Errorf("there is no Linux node %q", c.node)
	} else if len(out) == 0 {
		return nil, fmt.Errorf("there is no node with an agent: no pod in namespace %s has the label %s", c.namespace, c.selector)
	}
	return out, nil
}

// match gives each node its agent: during an update two pods may be there, and the ready one answers.
func match(nodes []metav1.PartialObjectMetadata, pods []corev1.Pod) []agent {
	slices.SortStableFunc(pods, func(a, b corev1.Pod) int { return cmp.Compare(rank(b), rank(a)) })
	found := map[string]agent{}
	for _, p := range pods {
		if _, ok := found[p.Spec.NodeName]; ok || p.Spec.NodeName == "" {
			continue
		}
		a := agent{Node: p.Spec.NodeName, Pod: p.Name}
		if p.Status.Phase != corev1.PodRunning {
			a.why = fmt.Sprintf("its agent's pod %s is %s", p.Name, cmp.Or(p.Status.Phase, "not started"))
		}
		found[a.Node] = a
	}
	for _, n := range nodes {
		if _, ok := found[n.Name]; ok {
			continue
		}
		a := agent{Node: n.Name, why: "no agent runs on it"}
		if n.Labels[excludedLabel] == "excluded" {
			a.excluded, a.why = true, "its label "+excludedLabel+" excludes it"
		}
		found[n.Name] = a
	}
	out := make([]agent, 0, len(found))
	for _, a := range found {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b agent) int { return cmp.Compare(a.Node, b.Node) })
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

// readAll reads all agents, maxParallel at a time, each within its own timeout. Results are in the order of agents; an error is why there
// is no value.
func readAll[T any](ctx context.Context, agents []agent, timeout time.Duration,
	read func(ctx context.Context, a agent) (T, error)) ([]T, []error) {
	values, errs := make([]T, len(agents)), make([]error, len(agents))
	slots := make(chan struct{}, maxParallel)
	var wg sync.WaitGroup
	for i, a := range agents {
		if a.why != "" {
			errs[i] = fmt.Errorf("%s", a.why)
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			values[i], errs[i] = read(ctx, a)
		})
	}
	wg.Wait()
	return values, errs
}
