package node

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// manifest is the products', as users apply it.
func (n *Node) manifest() string { return filepath.Join(n.Bin, "../install/neardns.yaml") }

// InstallProduct applies the products' manifests and waits until the agent is ready and the fallback is proven.
func (n *Node) InstallProduct(ctx context.Context) error {
	if _, err := n.Kubectl(ctx, "apply", "-f", n.manifest()); err != nil {
		return err
	}
	return n.AwaitProduct(ctx)
}

// AwaitProduct waits until every agent is of the last version, ready, and the fallback of both families is proven.
func (n *Node) AwaitProduct(ctx context.Context) error {
	if err := n.Rollout(ctx, "kube-system", "daemonset/neardns"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return n.await(ctx, "the fallback's proof", func() error {
		text, err := n.Status(ctx)
		if err == nil && !strings.Contains(text, "proven") {
			err = fmt.Errorf("not proven:\n%s", text)
		}
		return err
	})
}

// Status is what the agent says of itself.
func (n *Node) Status(ctx context.Context) (string, error) {
	return n.Kubectl(ctx, "--namespace", "kube-system", "exec", "daemonset/neardns", "-c", "agent", "--", "/bin/neardns-agent", "status", "--config", "/etc/neardns/nodeconfig.yaml")
}
