package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/neardns/neardns/integration/image"
)

// patience is for a machine with little to spare; a node is Ready in a dozen seconds otherwise.
const patience = 3 * time.Minute

// settle waits for the parts of all nodes, brings the images and kube-dns in, and waits until it answers.
func (n *Node) settle(ctx context.Context) error {
	images, err := n.images(ctx)
	if err != nil {
		return err
	}
	for _, one := range n.All() {
		if err := one.await(ctx, "the runtime", func() error {
			_, err := one.Run(ctx, n.Release.Program("ctr"), "--address", socket, "version")
			return err
		}); err != nil {
			return err
		}
		for _, i := range images {
			if err := one.Import(ctx, i); err != nil {
				return err
			}
		}
	}
	if err := n.await(ctx, "the API server", func() error {
		_, err := n.Kubectl(ctx, "get", "--raw=/readyz")
		return err
	}); err != nil {
		return err
	}
	if err := n.Apply(ctx, kubeDNSManifest); err != nil {
		return err
	}
	for _, one := range n.All() {
		if err := one.await(ctx, "the node", func() error {
			_, err := n.Kubectl(ctx, "wait", "--for=condition=Ready", "--timeout=5s", "node/"+one.Name())
			return err
		}); err != nil {
			return err
		}
	}
	return n.Rollout(ctx, "kube-system", "deployment/coredns")
}

// await tries until it works, the node's first process ends, or ctx does.
func (n *Node) await(ctx context.Context, what string, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-n.ended:
			return errors.New("the node's first process ended")
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Import takes an image into the runtime's store.
func (n *Node) Import(ctx context.Context, i image.Image) error {
	archive := path("image.tar")
	f, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer os.Remove(archive)
	if err := errors.Join(i.Write(f), f.Close()); err != nil {
		return err
	}
	if _, err := n.Run(ctx, n.Release.Program("ctr"), n.Release.Import(socket, archive)...); err != nil {
		return fmt.Errorf("import %s: %w", i.Name, err)
	}
	return nil
}

// Push pushes an image, whose name begins with the registry's address, over plain HTTP, and takes it out of the runtime's store.
func (n *Node) Push(ctx context.Context, name string) error {
	ctr := []string{"--address", socket, "--namespace", "k8s.io", "images"}
	if _, err := n.Run(ctx, n.Release.Program("ctr"), append(ctr, "push", "--plain-http", name)...); err != nil {
		return fmt.Errorf("push %s: %w", name, err)
	}
	if _, err := n.Run(ctx, n.Release.Program("ctr"), append(ctr, "remove", "--sync", name)...); err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}
