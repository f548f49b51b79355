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

// Ask sends a request to the socket of a running agent. good: the HTTP status is 200. An error means that no agent runs there, or that it
// does not answer.
func Ask(ctx context.Context, socket, path string) (text []byte, good bool, err error) {
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
	text, _, err := Ask(ctx, socket, path)
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return v, fmt.Errorf("read the agent's %s: %w", path, err)
	}
	return v, nil
}

// InEffect is the configuration that this node's agent serves by. If the file at path has a fault, the agent keeps the one before: InEffect
// returns that one and the fault. If no agent runs, the fault is the error.
func InEffect(ctx context.Context, path string, e config.Env) (n *config.Node, fault, err error) {
	n, err = config.Load(path, e)
	if err == nil {
		return n, nil, nil
	}
	text, good, asked := Ask(ctx, filepath.Join(config.StateDir(path, e), nodestate.AgentSocketName), "/config")
	if asked != nil || !good {
		return nil, nil, err
	}
	const name = "the configuration in effect"
	n, asked = config.Load(name, config.Env{LookupEnv: e.LookupEnv, ReadFile: func(path string) ([]byte, error) {
		switch path {
		case name:
			return text, nil
		case config.KubeletConfig: // it leaves nothing to detect
			return nil, fs.ErrNotExist
		}
		return e.ReadFile(path)
	}})
	if asked != nil { // of another release
		return nil, nil, err
	}
	return n, fmt.Errorf("the file has a fault, and the agent serves by the one before: %w", err), nil
}
