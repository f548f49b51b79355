package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// InstallProduct applies one of the products' overlays, such as that of kube-proxy's mode, with lines as ApplyProduct, and waits until the
// agent is ready and the fallback is proven.
func (n *Node) InstallProduct(ctx context.Context, overlay string, lines ...string) error {
	if err := n.ApplyProduct(ctx, overlay, lines...); err != nil {
		return err
	}
	return n.AwaitProduct(ctx)
}

// ApplyProduct applies an overlay with lines more in its NodeConfig, in place of those with the same key, and waits for nothing.
func (n *Node) ApplyProduct(ctx context.Context, overlay string, lines ...string) error {
	return n.applyBuild(ctx, n.Own(), overlay, lines...)
}

// InstallBuild is InstallProduct of another build, whose images are on the node.
func (n *Node) InstallBuild(ctx context.Context, b Build, overlay string, lines ...string) error {
	if err := n.applyBuild(ctx, b, overlay, lines...); err != nil {
		return err
	}
	return n.AwaitProduct(ctx)
}

func (n *Node) applyBuild(ctx context.Context, b Build, overlay string, lines ...string) error {
	manifest, err := n.render(ctx, b, "overlays/"+overlay)
	if err != nil {
		return err
	}
	const last = "    kubeDNSConfigMap: /etc/kube-dns\n"
	if strings.Count(manifest, last) != 1 {
		return fmt.Errorf("the overlay's NodeConfig ends in another way than lines can be added to:\n%s", manifest)
	}
	for _, line := range lines {
		key, _, _ := strings.Cut(line, ":")
		manifest = regexp.MustCompile(`(?m)^    `+regexp.QuoteMeta(key)+`:.*\n(     .*\n)*`).ReplaceAllString(manifest, "")
		manifest = strings.Replace(manifest, last, last+"    "+line+"\n", 1)
	}
	return n.Apply(ctx, manifest)
}

// render is a folder of a build's manifests with the tag of its images.
func (n *Node) render(ctx context.Context, b Build, name string) (string, error) {
	manifest, err := n.Kubectl(ctx, "kustomize", filepath.Join(b.Root, "install", name))
	if err != nil {
		return "", err
	}
	const tag = ":" + ownTag + "\n"
	if !strings.Contains(manifest, tag) {
		return "", fmt.Errorf("the manifests of %s have no image with the tag %s:\n%s", b.Root, ownTag, manifest)
	}
	return strings.ReplaceAll(manifest, tag, ":"+b.Tag+"\n"), nil
}

// UninstallProduct takes an overlay off, in the order that the products' README gives. With binary, the plugin's binary goes too:
// containerd ends pods without it.
func (n *Node) UninstallProduct(ctx context.Context, overlay string, binary bool) error {
	return n.UninstallBuild(ctx, n.Own(), overlay, binary)
}

// UninstallBuild is UninstallProduct of another build, whose images are on the node.
func (n *Node) UninstallBuild(ctx context.Context, b Build, overlay string, binary bool) error {
	if _, err := n.Kubectl(ctx, "delete", "-k", filepath.Join(b.Root, "install/overlays", overlay), "--wait", "--timeout=2m"); err != nil {
		return err
	}
	manifest, err := n.render(ctx, b, "uninstall")
	if err != nil {
		return err
	}
	if binary {
		const verb = "        - uninstall\n"
		if strings.Count(manifest, verb) != 1 {
			return fmt.Errorf("the manifest calls the installer in another way than --remove-binary can be added to:\n%s", manifest)
		}
		manifest = strings.Replace(manifest, verb, verb+"        - --remove-binary\n", 1)
	}
	if err := n.Apply(ctx, manifest); err != nil {
		return err
	}
	if err := n.Rollout(ctx, "kube-system", "daemonset/neardns-uninstall"); err != nil {
		return err
	}
	_, err = n.Kubectl(ctx, "delete", "-k", filepath.Join(b.Root, "install/uninstall"), "--wait", "--timeout=2m")
	return err
}

// AwaitProduct waits until every agent is of the last version, and those of this node and of Others have their leases and a fallback that
// is proven in both families.
func (n *Node) AwaitProduct(ctx context.Context) error {
	if err := n.Rollout(ctx, "kube-system", "daemonset/neardns"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, one := range n.All() {
		if err := one.await(ctx, "the agent", func() error { return one.Settled(ctx) }); err != nil {
			return err
		}
	}
	return nil
}

// Settled reports what the agent still lacks to serve every pod.
func (n *Node) Settled(ctx context.Context) error {
	text, err := n.agent(ctx, "status", "--json") // exit code 3 where something is amiss, which is reported below
	var s struct {
		Agent *struct {
			Ready  bool         `json:"ready"`
			Proven []netip.Addr `json:"fallbackProven"`
			Leases []struct {
				Held bool `json:"held"`
			} `json:"leases"`
		} `json:"agent"`
	}
	if bad := json.Unmarshal([]byte(text), &s); bad != nil {
		return errors.Join(err, bad)
	}
	if s.Agent == nil || !s.Agent.Ready || len(s.Agent.Proven) < len(KubeDNS()) {
		return fmt.Errorf("not ready, or not proven: %s", text)
	}
	for _, l := range s.Agent.Leases {
		if !l.Held {
			return fmt.Errorf("not every lease is held: %s", text)
		}
	}
	return nil
}

// Started is when the agent's process began.
func (n *Node) Started(ctx context.Context) (time.Time, error) {
	text, err := n.agent(ctx, "status", "--json") // exit code 3 where something is amiss
	var s struct {
		Agent *struct {
			Started time.Time `json:"started"`
		} `json:"agent"`
	}
	if bad := json.Unmarshal([]byte(text), &s); bad != nil || s.Agent == nil {
		return time.Time{}, errors.Join(err, bad, errors.New("no agent answers"))
	}
	return s.Agent.Started, nil
}

var errNoAgent = errors.New("no such pod")

// Status is what the agent reports about itself.
func (n *Node) Status(ctx context.Context) (string, error) { return n.agent(ctx, "status") }

// agent runs one of the agent's commands in its own pod: the node's newest that runs.
func (n *Node) agent(ctx context.Context, args ...string) (string, error) {
	found, err := n.Kubectl(ctx, "--namespace", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=neardns", "-o", "name",
		"--field-selector", "status.phase=Running,spec.nodeName="+n.Name(), "--sort-by", "metadata.creationTimestamp")
	pods := strings.Fields(found)
	if err != nil || len(pods) == 0 {
		return "", fmt.Errorf("no agent runs on %s: %w", n.Name(), cmp.Or(err, errNoAgent))
	}
	args = append([]string{"--namespace", "kube-system", "exec", pods[len(pods)-1], "-c", "agent", "--", "/bin/neardns-agent"}, args...)
	return n.Kubectl(ctx, append(args, "--config", "/etc/neardns/nodeconfig.yaml")...)
}

// Agents are the processes of agents that serve the node, by the machine's own numbers.
func (n *Node) Agents() ([]int, error) {
	files, err := filepath.Glob(n.Path("/proc/[0-9]*/cmdline"))
	if err != nil {
		return nil, err
	}
	var out []int
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it ended
		}
		args := strings.Split(string(text), "\x00")
		if len(args) > 1 && filepath.Base(args[0]) == "neardns-agent" && args[1] == "node" {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				return nil, err
			}
			out = append(out, pid)
		}
	}
	return out, nil
}
