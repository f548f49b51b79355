package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/neardns/neardns/integration/cluster/node"
)

// pod is what the show sends queries from: one of a workload, with the settings that pods have by default.
const pod = `apiVersion: v1
kind: Pod
metadata: {name: shop}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "` + node.PodImage + `", imagePullPolicy: Never}]
`

// up brings the cluster up, shows what is in it, and reports how to use it.
func up(ctx context.Context, out io.Writer, o node.Options, bare bool) error {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }
	say("starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler, %s, kubelet, kube-proxy (%s), CoreDNS", o.Runtime, o.Proxy)
	n, err := node.Start(ctx, o)
	if err != nil {
		return err
	}
	if !bare {
		say("kubectl apply -k install/overlays/%s", n.Proxy)
		err = n.InstallProduct(ctx, n.Proxy)
	}
	if err == nil {
		err = show(ctx, n, say, bare)
	}
	if err != nil {
		return fmt.Errorf("%w\nthe cluster is left as it is; `make cluster-down` takes it away", err)
	}
	return nil
}

func show(ctx context.Context, n *node.Node, say func(string, ...any), bare bool) error {
	if err := n.Apply(ctx, pod); err != nil {
		return err
	}
	if _, err := n.Kubectl(ctx, "wait", "--for=condition=Ready", "--timeout=1m", "pod/shop"); err != nil {
		return err
	}
	commands := [][]string{
		{"get", "nodes", "-o", "wide"}, {"get", "pods", "-A", "-o", "wide"}, {"exec", "shop", "--", "/podimage", "resolvconf"},
		{"exec", "shop", "--", "/podimage", "ask", "udp", "x.who.cluster.local", "x.who.cluster.local"},
	}
	if !bare {
		commands = append(commands, []string{"neardns", "status"})
	}
	for _, args := range commands {
		text, err := n.Kubectl(ctx, args...)
		if err != nil {
			return err
		}
		say("\n$ kubectl %s\n%s", strings.Join(args, " "), text)
	}
	if !bare {
		text, err := n.Status(ctx)
		if err != nil {
			return err
		}
		say("$ neardns-agent status\n%s", text)
	}
	say(`The cluster stays until make cluster-down. To use it:

  export KUBECONFIG=%s
  export PATH=%s:%s:$PATH
  kubectl get pods -A
  kubectl neardns status
  kubectl -n kube-system logs -l app.kubernetes.io/name=neardns -c agent
  kubectl run mine --image=%s --image-pull-policy=Never --restart=Never
  kubectl exec mine -- /podimage ask udp kubernetes.default.svc.cluster.local
  nsenter -t %d -m -n -p nft list table inet neardns     # on the node itself
`, node.Kubeconfig(), n.Kubernetes, n.Bin, node.PodImage, n.PID())
	return nil
}
