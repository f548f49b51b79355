// Package cluster reads the agents of one cluster through its API server: their HTTP endpoints (pods/proxy), the output of their program
// (pods/exec), and objects of the Kubernetes API.
//
// Each node has a timeout of its own.
package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // the login methods that a kubeconfig may name

	"github.com/neardns/neardns/internal/cli"
)

// Timeouts and limits. For 500 nodes of which none answers, two rounds of MaxParallel requests end within 10 s.
const (
	readTimeout = 3 * time.Second  // timeout of a request that reads
	execTimeout = 15 * time.Second // timeout of a command on a node, which itself waits for servers that may not answer
	MaxParallel = 250
	maxAnswer   = 64 << 20 // bytes of one answer
)

// The agent's container and its program there.
const (
	container = "agent"
	program   = "/bin/neardns-agent"
)

// Options are the flags that all commands share: kubectl's flags for the connection, and the choice of agents.
type Options struct {
	kubeconfig, context, namespace, selector string
	timeout                                  time.Duration
	port                                     uint16
	// Node is the only node to read; "" stands for all nodes.
	Node string
}

// Bind adds the flags.
func (o *Options) Bind(fs *pflag.FlagSet) {
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` with the cluster's address and credentials; default: kubectl's")
	fs.StringVar(&o.context, "context", "", "`NAME` of the context in the kubeconfig; default: its current context")
	fs.StringVarP(&o.namespace, "namespace", "n", "kube-system", "`NAME` of the namespace with the pods of neardns's agents")
	fs.StringVarP(&o.selector, "selector", "l", "app.kubernetes.io/name=neardns", "label selector (`LABELS`) of the agents' pods")
	fs.StringVar(&o.Node, "node", "", "`NAME` of a node; only its agent is read")
	fs.DurationVar(&o.timeout, "request-timeout", 0, "timeout for each node, for example 5s; default: 3s, or 15s for commands on nodes")
	fs.Uint16Var(&o.port, "port", 9253, "`PORT` on which the agents serve metrics (listen.metrics in their configuration)")
}

// Cluster is one cluster.
type Cluster struct {
	*Options
	config *rest.Config
	client *http.Client
	base   *url.URL
	stderr io.Writer
}

// Open prepares the connection to the cluster that the flags name. The returned Cluster writes to stderr what it leaves out because the
// user may not read it.
func (o *Options) Open(stderr io.Writer) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: o.context}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("read the kubeconfig: %w", err))
	}
	if o.timeout < 0 {
		return nil, cli.Usagef("--request-timeout %v: it is negative", o.timeout)
	}
	return o.Connect(config, stderr)
}

// Connect does what Open does, with a given client configuration.
func (o *Options) Connect(config *rest.Config, stderr io.Writer) (*Cluster, error) {
	config.UserAgent = "kubectl-neardns"
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("the kubeconfig: %w", err))
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("the kubeconfig: %w", err))
	}
	return &Cluster{Options: o, config: config, client: client, base: base, stderr: stderr}, nil
}

// Note writes a line to stderr about what the output leaves out.
func (c *Cluster) Note(format string, args ...any) { fmt.Fprintf(c.stderr, format+"\n", args...) }

// timeoutFor returns the timeout of one request or command: the user's, or else the usual one.
func (c *Cluster) timeoutFor(usual time.Duration) time.Duration {
	if c.timeout > 0 {
		return c.timeout
	}
	return usual
}

// get reads a path of the API server. accept may be empty. An unsuccessful answer of the server, or of an agent behind it, is an
// apierrors.StatusError.
func (c *Cluster) get(ctx context.Context, path string, query url.Values, accept string) ([]byte, error) {
	u := c.base.JoinPath(path)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, reason(ctx, err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to the end
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, reason(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return text, nil
	}
	var status metav1.Status
	if json.Unmarshal(text, &status) != nil || status.Message == "" {
		status.Message = resp.Status + ": " + strings.TrimSpace(string(text[:min(len(text), 200)]))
	}
	status.Code, status.Message = int32(resp.StatusCode), strings.ReplaceAll(status.Message, "\n", " ") //nolint:gosec // three digits
	return nil, &apierrors.StatusError{ErrStatus: status}
}

// reason returns an error without the request's URL. If the timeout ended the request, the error names the flag for it.
func reason(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errors.New("no answer within the timeout (--request-timeout)")
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// Log returns the end of the log of an agent's pod: whole lines, at most maxBytes.
func (c *Cluster) Log(ctx context.Context, pod string, maxBytes int) ([]byte, error) {
	// The API's limitBytes does not help: it counts from the first of the tailLines lines, and would leave out the newest ones.
	text, err := c.get(ctx, c.podPath(pod)+"/log", url.Values{"container": {container}, "tailLines": {"5000"}}, "")
	if len(text) > maxBytes {
		_, text, _ = bytes.Cut(text[len(text)-maxBytes:], []byte("\n"))
	}
	return text, err
}

// Get reads an object or a list of objects into out. accept may be empty.
func (c *Cluster) Get(ctx context.Context, path string, query url.Values, accept string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeoutFor(readTimeout))
	defer cancel()
	text, err := c.get(ctx, path, query, accept)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, out)
}

func (c *Cluster) podPath(pod string) string {
	return "/api/v1/namespaces/" + c.namespace + "/pods/" + pod
}

// read reads JSON into out from a path of the agent's metrics listener, through the API server's proxy.
func (c *Cluster) read(ctx context.Context, pod, path string, out any) error {
	text, err := c.get(ctx, c.podPath(pod)+":"+strconv.Itoa(int(c.port))+"/proxy"+path, nil, "")
	if apierrors.IsNotFound(err) && strings.Contains(err.Error(), "404 page") {
		return fmt.Errorf("the agent serves no %s: it is of an earlier release", path)
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// Exec runs the agent's program in a pod and returns what it prints. An exit code other than 0 is an error only if the program prints
// nothing on stdout, because `doctor` exits with 3 after a report of faults.
func (c *Cluster) Exec(ctx context.Context, pod string, args ...string) ([]byte, error) {
	u := c.base.JoinPath(c.podPath(pod), "exec")
	u.RawQuery = url.Values{"container": {container}, "command": append([]string{program}, args...), "stdout": {"true"},
		"stderr": {"true"}}.Encode()
	websocket, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, u.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(c.config, http.MethodPost, u) // for API servers older than 1.30
	if err != nil {
		return nil, err
	}
	either, err := remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	err = either.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr})
	switch text := strings.TrimSpace(stderr.String()); {
	case ctx.Err() != nil:
		return nil, reason(ctx, ctx.Err())
	case err == nil || stdout.Len() > 0 && errors.As(err, new(exec.CodeExitError)):
		return stdout.Bytes(), nil
	case text != "":
		return nil, errors.New(cli.Printable(text))
	}
	return nil, err
}
