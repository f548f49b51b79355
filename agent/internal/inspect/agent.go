package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/pkg/nodestate"
)

// agentTimeout is the time limit for a running agent's answer at its socket.
const agentTimeout = 3 * time.Second

// Request sends an HTTP request to a running agent: to its unix socket at address, or with network "tcp" to an endpoint. good reports
// whether the status is 200. An error means that no agent runs there, that this user may not use the socket, or that the agent gives no
// complete answer.
func Request(ctx context.Context, network, address, path string) (text []byte, good bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return nil, false, err
	}
	resp, err := client.Do(req)
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial" && errors.Is(err, fs.ErrPermission): // an agent may still run
		return nil, false, fmt.Errorf("this user has no access to the agent's socket (%w)", op.Err)
	case errors.As(err, &op) && op.Op == "dial":
		return nil, false, fmt.Errorf("no agent runs on this node (%w)", op.Err)
	case err != nil:
		return nil, false, fmt.Errorf("the agent does not answer: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to the end
	text, err = io.ReadAll(resp.Body)
	if err != nil {
		return nil, false, fmt.Errorf("read the agent's answer: %w", err)
	}
	return text, resp.StatusCode == http.StatusOK, nil
}

// readAgent returns the JSON value that the running agent serves at a path of its socket.
func readAgent[T any](ctx context.Context, socket, path string) (v T, err error) {
	text, _, err := Request(ctx, "unix", socket, path)
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return v, fmt.Errorf("read the agent's %s: %w", path, err)
	}
	return v, nil
}

// InEffect returns the configuration in effect on this node. With a path it is the file's. Without one it is the running agent's, or if
// no agent runs, a detected one. If the file has a fault, the agent keeps its previous configuration: InEffect then returns that one,
// with the fault. If no agent runs, it returns the fault as the error.
func InEffect(ctx context.Context, path string, e config.Env) (n *config.Node, fault, err error) {
	n, err = config.Load(path, e)
	if err == nil && path != "" {
		return n, nil, nil
	}
	running, failed := ofAgent(ctx, path, e)
	switch {
	case failed != nil:
		return n, nil, err
	case path == "":
		return running, nil, nil
	}
	return running, fmt.Errorf("the file has a fault, and the agent serves by the one before: %w", err), nil
}

// ofAgent returns the running agent's configuration. It returns an error if no agent answers, or if the agent's release has a
// configuration that this release cannot read.
func ofAgent(ctx context.Context, path string, e config.Env) (*config.Node, error) {
	text, good, err := Request(ctx, "unix", filepath.Join(config.StateDir(path, e), nodestate.AgentSocketName), "/config")
	if err != nil {
		return nil, err
	} else if !good {
		return nil, errors.New("the agent does not show its configuration")
	}
	const name = "the configuration in effect"
	return config.Load(name, config.Env{LookupEnv: e.LookupEnv, Glob: e.Glob, ReadFile: func(path string) ([]byte, error) {
		if path == name { // it has every key that could be detected, so nothing is
			return text, nil
		}
		return e.ReadFile(path)
	}})
}
