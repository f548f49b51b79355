package runtimes

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/neardns/neardns/pkg/testutil"
)

// cri is a kubelet as far as pods go.
type cri struct {
	t      *testing.T
	conn   *grpc.ClientConn
	cgroup string // parent of the pods'
	runtimeapi.RuntimeServiceClient
}

// dialCRI connects lazily: the runtime may start, and start again, behind it.
func dialCRI(t *testing.T, socket, cgroup string) *cri {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	testutil.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &cri{t: t, conn: conn, cgroup: cgroup, RuntimeServiceClient: runtimeapi.NewRuntimeServiceClient(conn)}
}

// pod is one pod with one container in it.
type pod struct {
	name      string
	sandbox   string
	container string
}

// podSpec is what differs between pods.
type podSpec struct {
	name        string
	nameservers []string
	annotations map[string]string
}

// runPod does what the kubelet does for a pod, in its order.
func (c *cri) runPod(ctx context.Context, s podSpec) (*pod, error) {
	ctx, cancel := context.WithTimeout(ctx, testutil.Patience())
	defer cancel()
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata:    &runtimeapi.PodSandboxMetadata{Name: s.name, Namespace: "shop", Uid: "uid-" + s.name},
		Hostname:    s.name,
		Annotations: s.annotations,
		DnsConfig:   &runtimeapi.DNSConfig{Servers: s.nameservers, Searches: []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local"}, Options: []string{"ndots:5"}},
		Linux:       &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/" + c.cgroup},
	}
	p := &pod{name: s.name}
	made, err := c.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: sandbox})
	if err != nil {
		return nil, fmt.Errorf("run sandbox of %s: %w", s.name, err)
	}
	p.sandbox = made.PodSandboxId
	container, err := c.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: p.sandbox, SandboxConfig: sandbox, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: podImage},
	}})
	if err != nil {
		return p, fmt.Errorf("create container of %s: %w", s.name, err)
	}
	p.container = container.ContainerId
	if _, err := c.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: p.container}); err != nil {
		return p, fmt.Errorf("start container of %s: %w", s.name, err)
	}
	return p, nil
}

func (c *cri) mustRunPod(s podSpec) *pod {
	c.t.Helper()
	p, err := c.runPod(c.t.Context(), s)
	testutil.Must(c.t, err)
	return p
}

// removePod ends a pod as the kubelet does: without grace, since there is nothing to save.
func (c *cri) removePod(ctx context.Context, sandbox string) error {
	ctx, cancel := context.WithTimeout(ctx, testutil.Patience())
	defer cancel()
	if _, err := c.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox}); err != nil {
		return fmt.Errorf("stop sandbox: %w", err)
	}
	if _, err := c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox}); err != nil {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	return nil
}

func (c *cri) removeAllPods(ctx context.Context) error {
	list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	for _, s := range list.Items {
		if err := c.removePod(ctx, s.Id); err != nil {
			return err
		}
	}
	return nil
}

// exec runs the pod's program in it.
func (c *cri) exec(p *pod, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), testutil.Patience())
	defer cancel()
	r, err := c.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: p.container, Cmd: append([]string{"/podimage"}, args...), Timeout: 30})
	if err != nil {
		return "", fmt.Errorf("run in %s: %w", p.name, err)
	}
	if r.ExitCode != 0 {
		return "", fmt.Errorf("run in %s: exit code %d: %s", p.name, r.ExitCode, r.Stderr)
	}
	return string(r.Stdout), nil
}

// load is what `podimage load` prints.
type load struct {
	Asked int `json:"asked"`
	Lost  []struct {
		Error        string
		Begun, Ended time.Time
	} `json:"lost"`
	Wrong []string `json:"wrong"`
}

// asking has a pod query all the time, until end is called.
func (c *cri) asking(p *pod) (end func() (load, error)) {
	stop, done := make(chan struct{}), make(chan error, 1)
	var sum load
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			var l load
			out, err := c.exec(p, "load", "2s", "l1.cluster.local", "l2.cluster.local", "l3.cluster.local", "l4.cluster.local", "l5.cluster.local")
			if err == nil {
				err = json.Unmarshal([]byte(out), &l)
			}
			if err != nil {
				done <- err
				return
			}
			sum.Asked, sum.Lost, sum.Wrong = sum.Asked+l.Asked, append(sum.Lost, l.Lost...), append(sum.Wrong, l.Wrong...)
		}
	}()
	return func() (load, error) {
		close(stop)
		err := <-done
		return sum, err
	}
}

// answer is one line of what `podimage ask` prints.
type answer struct {
	Name  string        `json:"name"`
	Who   []string      `json:"who"`
	Rcode string        `json:"rcode"`
	Took  time.Duration `json:"took"`
	Error string        `json:"error"`
}

// serial distinguishes what kube-dns answered for this query from what a cache kept of an earlier one.
func (a answer) serial() string {
	if len(a.Who) < 2 {
		return ""
	}
	return a.Who[1]
}

// ask sends queries from within the pod; every name must be answered.
func (c *cri) ask(p *pod, network string, names ...string) ([]answer, error) {
	out, err := c.exec(p, append([]string{"ask", network}, names...)...)
	if err != nil {
		return nil, err
	}
	var answers []answer
	for line := range strings.Lines(out) {
		var a answer
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			return nil, fmt.Errorf("read answer %q: %w", line, err)
		}
		if a.Error != "" || a.Rcode != "NOERROR" {
			return nil, fmt.Errorf("%s asked for %s over %s: %s %s", p.name, a.Name, network, a.Rcode, a.Error)
		}
		answers = append(answers, a)
	}
	if len(answers) != len(names) {
		return nil, fmt.Errorf("%d answers for %d questions", len(answers), len(names))
	}
	return answers, nil
}
