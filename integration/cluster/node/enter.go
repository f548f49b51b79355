package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Command prepares a command in the node's namespaces, as root there. Files of the machine that the node covers are not
// found.
func (n *Node) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	enter := []string{"--target", strconv.Itoa(n.PID()), "--mount", "--uts", "--ipc", "--net", "--pid", "--", name}
	return exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
}

// Run runs a command in the node's namespaces and returns its standard output.
func (n *Node) Run(ctx context.Context, name string, args ...string) (string, error) {
	return run(n.Command(ctx, name, args...))
}

// Kubectl runs kubectl, as the administrator, from the machine's own network. Its plugins are those of Bin.
func (n *Node) Kubectl(ctx context.Context, args ...string) (string, error) {
	return run(n.kubectl(ctx, args...))
}

func (n *Node) kubectl(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(n.Kubernetes, "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+Kubeconfig(), "PATH="+n.Bin+":"+os.Getenv("PATH"))
	return cmd
}

func run(cmd *exec.Cmd) (string, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, errs.String())
	}
	return out.String(), nil
}

// Apply makes objects be as a manifest has it.
func (n *Node) Apply(ctx context.Context, manifest string) error {
	cmd := n.kubectl(ctx, "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	_, err := run(cmd)
	return err
}

// Rollout waits until an object's pods are all of its last version and ready.
func (n *Node) Rollout(ctx context.Context, namespace, object string) error {
	_, err := n.Kubectl(ctx, "--namespace", namespace, "rollout", "status", "--timeout=3m", object)
	return err
}

// Path is where a file of the node is found from the machine.
func (n *Node) Path(file string) string {
	return filepath.Join("/proc", strconv.Itoa(n.PID()), "root", file)
}

// SetProxy gives the node's kube-proxy another mode, as an administrator does. It ends when its configuration changes, and is started
// again.
func (n *Node) SetProxy(mode string) error { return n.host.writeProxyConfig(mode) }
