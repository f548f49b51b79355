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

// agentTimeout is how long a running agent may take to answer at its socket.
const agentTimeout = 3 * time.Second

// Request sends a request to the socket of a running agent. good: the HTTP status is 200. An error means that no agent runs there, or that
// it does not answer.
func Request(ctx context.Context, socket, path string) (text []byte, good bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return nil, false, err
	}
	resp, err := client.Do(req)
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial" && errors.Is(err, fs.ErrPermission): // one may run or not
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

// readAgent reads what the running agent serves at a path of its socket.
func readAgent[T any](ctx context.Context, socket, path string) (v T, err error) {
	text, _, err := Request(ctx, socket, path)
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return v, fmt.Errorf("read the agent's %s: %w", path, err)
	}
	return v, nil
}

// InEffect is the configuration that this node's agent works with. Without a path it is the running agent's, or else what is detected. If
// the file at path has a fault, the agent keeps the previous configuration: InEffect returns that one and the fault. If no agent runs, the
// fault is the error.
func InEffect(ctx context.Context, path string, e config.Env) (n *config.Node, fault, err error) {
	n, err = config.Load(path, e)
	if err == nil && path != "" {
		return n, nil, nil
	}
	running, failed := ofAgent(ctx, path, e)
	switch {
	case failed != nil:
		return n, nil, err
	case err == nil:
		return running, nil, nil
	}
	return running, fmt.Errorf("the file has a fault, and the agent serves by the one before: %w", err), nil
}

// ofAgent is the configuration that the running agent works with. It fails if none answers, or one of a release that this one cannot read.
func ofAgent(ctx context.Context, path string, e config.Env) (*config.Node, error) {
	text, good, err := Request(ctx, filepath.Join(config.StateDir(path, e), nodestate.AgentSocketName), "/config")
	if err != nil {
		return nil, err
	} else if !good {
		return nil, errors.New("the agent does not show its configuration")
	}
	const name = "the configuration in effect"
	return config.Load(name, config.Env{LookupEnv: e.LookupEnv, ReadFile: func(path string) ([]byte, error) {
		if path == name { // it leaves nothing to detect
			return text, nil
		}
		return e.ReadFile(path)
	}})
}
