// Package conformance runs Kubernetes' own DNS tests on a real node (package node): without anything of ours, with neardns, and with
// neardns whose agent is killed again and again. The node needs no network for it. What the runs showed is read and compared by the
// pure package of the same name in integration.
//
// Failure policy: a test that fails is a result; what keeps the suite from running is an error, and the node is taken away.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/neardns/neardns/integration/cluster/node"
	"github.com/neardns/neardns/integration/conformance"
)

// focus chooses the tests that name DNS or a Service that is a name in it, and one of a Pod's host name next to it.
const focus = `\[sig-network\] DNS|Networking-DNS|ExternalName|DNS subdomain`

// interval is from one kill of the agent to the next. A new one serves after a second or two.
const interval = 20 * time.Second

// backOff bounds the kubelet's pause before it starts the killed agent again. With Kubernetes' own, of up to five minutes, there
// would be no agent to kill for most of the time.
const backOff = time.Second

// procs is how many tests run at once, but for those that the suite runs by themselves: they wait for pods most of their time.
const procs = "3"

// suiteTime is what one run may take. It takes three minutes where all is well; a test gives up after ten.
const suiteTime = time.Hour

// Options say what is run.
type Options struct {
	Bin     string // the repository's folder of that name: products and tools
	Runtime string // containerd16 or containerd2
	Proxies []string
	On      []conformance.On
	Say     func(format string, args ...any) // hears of each step, in a line
	Done    func(kubernetes string, c conformance.Column) error
}

// Run runs the suite for each of o.Proxies and o.On, and hands each run's result to o.Done. It takes the node away that it made.
func Run(ctx context.Context, o Options) error {
	base, err := root(ctx, o.Bin)
	if err != nil {
		return err
	}
	for _, proxy := range o.Proxies {
		if err := o.onNode(ctx, proxy, base); err != nil {
			return err
		}
	}
	return nil
}

func (o Options) onNode(ctx context.Context, proxy, base string) (err error) {
	o.Say("%s: starting a node", proxy)
	n, err := node.Start(ctx, node.Options{Bin: o.Bin, Proxy: proxy, Runtime: o.Runtime, BackOff: backOff, Attached: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Remove()) }()
	images, err := images(ctx, n, base)
	if err != nil {
		return err
	}
	for _, i := range images {
		if err := n.Import(ctx, i); err != nil {
			return err
		}
	}
	installed := false
	for _, on := range conformance.Everything() { // the bare node is no more once neardns was there
		if !slices.Contains(o.On, on) {
			continue
		}
		if on != conformance.Bare && !installed {
			o.Say("%s: kubectl apply -k install/overlays/%s", proxy, proxy)
			if err := n.ApplyProduct(ctx, proxy, "listen: {namespaces: true}"); err != nil { // for the count of queries
				return err
			}
			if err := n.AwaitProduct(ctx); err != nil {
				return err
			}
			installed = true
		}
		o.Say("%s, %s: running the suite", proxy, on)
		c, err := o.suite(ctx, n, on)
		if err != nil {
			return fmt.Errorf("%s, %s: %w\n%s", proxy, on, err, node.Logs())
		}
		if err := o.Done(strings.TrimPrefix(filepath.Base(n.Kubernetes), "k8s-"), c); err != nil {
			return err
		}
	}
	return nil
}

// suite runs it once.
func (o Options) suite(ctx context.Context, n *node.Node, on conformance.On) (conformance.Column, error) {
	c := conformance.Column{Proxy: n.Proxy, On: on}
	dir := filepath.Join(o.Bin, "conformance", n.Proxy+"-"+string(on))
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return c, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return c, err
	}
	defer log.Close()
	report := filepath.Join(dir, "junit.xml")
	ctx, cancel := context.WithTimeout(ctx, suiteTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(n.Kubernetes, "ginkgo"), "--procs="+procs, "--focus="+focus, "--skip=Feature:PerformanceDNS",
		"--output-dir="+dir, "--junit-report="+filepath.Base(report), "--no-color", "-v", "--timeout="+suiteTime.String(), filepath.Join(n.Kubernetes, "e2e.test"),
		"--", "--kubeconfig="+node.Kubeconfig(), "--kubectl-path="+filepath.Join(n.Kubernetes, "kubectl"),
		"--provider=local", "--num-nodes=1", "--node-os-distro=debian", "--dns-domain=cluster.local")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(os.Interrupt) }, time.Minute // it ends its processes, and they their pods
	begun := time.Now()
	a := &agent{node: n}
	if on != conformance.Bare {
		if err := a.begin(ctx); err != nil {
			return c, err
		}
	}
	killing, stop := context.WithCancel(ctx)
	killed := make(chan error, 1)
	go func() {
		if on == conformance.Killed {
			killed <- a.killAgainAndAgain(killing)
		} else {
			killed <- nil
		}
	}()
	failed := cmd.Run()
	stop()
	if err := <-killed; err != nil {
		return c, err
	}
	c.Seconds = int(time.Since(begun).Seconds())
	if on != conformance.Bare {
		if err := n.AwaitProduct(ctx); err != nil {
			return c, err
		}
		if c.Questions, err = a.questions(ctx); err != nil {
			return c, err
		}
		c.Kills = a.kills
	}
	f, err := os.Open(report)
	if err != nil {
		return c, fmt.Errorf("%w (the suite ended with: %w); %s has its log", err, failed, log.Name())
	}
	defer f.Close()
	if c.Tests, err = conformance.ReadReport(f); err != nil {
		return c, fmt.Errorf("%w; %s has the suite's log", err, log.Name())
	}
	return c, nil
}
