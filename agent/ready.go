package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
)

// get asks a running agent at its socket. cancel ends what is left of the answer.
func get(ctx context.Context, socket, path string) (resp *http.Response, cancel func(), err error) {
	ctx, cancel = context.WithTimeout(ctx, statusTimeout)
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return nil, cancel, err
	}
	resp, err = client.Do(req)
	var op *net.OpError
	switch {
	case err == nil:
		return resp, cancel, nil
	case errors.As(err, &op) && op.Op == "dial":
		return nil, cancel, fmt.Errorf("no agent runs on this node (%w)", op.Err)
	}
	return nil, cancel, fmt.Errorf("the agent does not answer: %w", err)
}

// runReady asks one agent whether it is ready, or alive: that of a pod's folder, or else the one that has the node. Two may run
// side by side while one hands over, and an address that both share would tell of the wrong one.
func runReady(ctx context.Context, e env, args []string) error {
	fs := flags(e, "ready")
	path := configFlag(fs)
	podDir := fs.String("pod-dir", "", "`FOLDER` of the agent's pod, as the agent was given it")
	alive := fs.Bool("alive", false, "ask only whether it runs, and nothing in it stands still")
	if err := parse(fs, args); err != nil {
		return err
	}
	dir := *podDir
	if dir == "" {
		conf, err := loadConfig(e, *path)
		if err != nil {
			return err
		}
		dir = conf.StateDir
	}
	about := "/readyz"
	if *alive {
		about = "/healthz"
	}
	resp, cancel, err := get(ctx, filepath.Join(dir, socketName), about)
	if err != nil {
		return &exitError{code: exitDegraded, err: err}
	}
	defer cancel()
	defer resp.Body.Close() //nolint:errcheck // read to the end
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err == nil {
		_, err = e.stdout.Write(text)
	}
	if err == nil && resp.StatusCode != http.StatusOK {
		err = &exitError{code: exitDegraded}
	}
	return err
}
