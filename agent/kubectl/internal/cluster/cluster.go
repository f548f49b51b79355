// Package cluster reads the agents of one cluster through its API server: what they serve (pods/proxy), what their program prints
// (pods/exec), and objects of the API.
//
// A node has its own timeout and does not delay the others. On failure each call returns an error without URLs, for a table.
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // the ways to log in that a kubeconfig may name

	"github.com/neardns/neardns/internal/cli"
)

// Times and bounds. With 500 nodes of which none answers, two rounds of MaxParallel end within 10 s.
const (
	readTimeout = 3 * time.Second  // of a request that reads
	execTimeout = 15 * time.Second // of a command on a node: it waits for servers that do not answer
	MaxParallel = 250
	maxAnswer   = 64 << 20 // bytes of one answer
)

// The agent's container and its program there.
const (
	container = "agent"
	program   = "/bin/neardns-agent"
)

// Options are the flags that all commands share: kubectl's for the connection, and which agents are meant.
type Options struct {
	kubeconfig, context, namespace, selector string
	timeout                                  time.Duration
	port                                     uint16
	// Node is the only node to look at; "": all.
	Node string
}

// Bind adds the flags.
func (o *Options) Bind(fs *pflag.FlagSet) {
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "`FILE` with the cluster's address and credentials; default: as kubectl finds it")
	fs.StringVar(&o.context, "context", "", "`NAME` of the kubeconfig's context to use")
	fs.StringVarP(&o.namespace, "namespace", "n", "kube-system", "`NAME` of the namespace that the agents run in")
	fs.StringVarP(&o.selector, "selector", "l", "app.kubernetes.io/name=neardns", "`LABELS` of the agents' pods")
	fs.StringVar(&o.Node, "node", "", "`NAME` of the only node to look at")
	fs.DurationVar(&o.timeout, "request-timeout", 0, "how long one node may take, such as 5s; default: 3s, for commands on nodes 15s")
	fs.Uint16Var(&o.port, "port", 9253, "`PORT` of the agents' listen.metrics")
}

// Cluster is one cluster.
type Cluster struct {
	*Options
	config *rest.Config
	client *http.Client
	base   *url.URL
	stderr io.Writer
}

// Open connects to the cluster that the flags name. It reports on stderr what the user has no right to see.
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

// Connect is Open with a configuration of the client.
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

// Note writes a line about what is left out.
func (c *Cluster) Note(format string, args ...any) { fmt.Fprintf(c.stderr, format+"\n", args...) }

// within is the time that one request or command has.
func (c *Cluster) within(usual time.Duration) time.Duration {
	if c.timeout > 0 {
		return c.timeout
	}
	return usual
}

// statusError is an answer of the API server, or of an agent behind it, that is none of success.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string { return e.message }

func hasCode(err error, code int) bool {
	var status *statusError
	return errors.As(err, &status) && status.code == code
}

// IsForbidden reports whether the user has no right to what was read.
func IsForbidden(err error) bool { return hasCode(err, http.StatusForbidden) }

// get reads a path of the API server. accept may be empty.
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
	return nil, &statusError{resp.StatusCode, strings.ReplaceAll(status.Message, "\n", " ")}
}

// reason leaves the URL out of an error, and names the timeout if that ended the request.
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

// Get reads an object or a list of objects into out.
func (c *Cluster) Get(ctx context.Context, path string, out any) error {
	return c.list(ctx, path, nil, "", out)
}

// Log reads the end of the log of an agent, at most maxBytes.
func (c *Cluster) Log(ctx context.Context, pod string, maxBytes int) ([]byte, error) {
	// Not limitBytes: it counts from the first of these lines, and would leave out the newest.
	text, err := c.get(ctx, c.podPath(pod)+"/log", url.Values{"container": {container}, "tailLines": {"5000"}}, "")
	if len(text) > maxBytes {
		_, text, _ = bytes.Cut(text[len(text)-maxBytes:], []byte("\n"))
	}
	return text, err
}

func (c *Cluster) list(ctx context.Context, path string, query url.Values, accept string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, c.within(readTimeout))
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

// Read reads what the agent of a pod serves at a path of its metrics listener.
func (c *Cluster) Read(ctx context.Context, pod, path string, out any) error {
	text, err := c.get(ctx, c.podPath(pod)+":"+strconv.Itoa(int(c.port))+"/proxy"+path, nil, "")
	if hasCode(err, http.StatusNotFound) && strings.Contains(err.Error(), "404 page") {
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

// Exec runs the agent's program in a pod and returns what it prints. An exit code other than 0 is an error only if it prints nothing:
// `doctor` has one if something is wrong.
func (c *Cluster) Exec(ctx context.Context, pod string, args ...string) ([]byte, error) {
	u := c.base.JoinPath(c.podPath(pod), "exec")
	u.RawQuery = url.Values{"container": {container}, "command": append([]string{program}, args...), "stdout": {"true"},
		"stderr": {"true"}}.Encode()
	websocket, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, u.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(c.config, http.MethodPost, u) // for API servers before 1.30
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
		return nil, errors.New(Printable(text))
	}
	return nil, err
}

// Printable replaces control characters, except newlines: the text comes from a node, and a compromised node must not control the terminal.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' || r == 0x7f {
			return '?'
		}
		return r
	}, text)
}
