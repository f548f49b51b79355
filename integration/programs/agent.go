package programs

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"

	"github.com/neardns/neardns/pkg/testutil"
)

// ReadAgent reads what the running agent serves at a path of its socket. Tests that wait for a state use it: a start of the program
// `status` costs fifty times the CPU.
func ReadAgent(stateDir, path string, out any) error {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(stateDir, "agent.sock"))
	}
	c := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: testutil.Attempt}
	reply, err := c.Get("http://agent" + path)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	return json.NewDecoder(reply.Body).Decode(out)
}
