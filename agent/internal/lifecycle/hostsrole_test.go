package lifecycle

import (
	"fmt"
	"io/fs"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestHostsListen: without listen keys, the role's ports differ from those of the node's agent. Otherwise the agent's health checks would
// reach the role.
func TestHostsListen(t *testing.T) {
	for _, c := range []struct{ listen, want string }{
		{"", "192.0.2.7:9263 127.0.0.1:9264"},
		{"listen: {namespaces: true}\n", "192.0.2.7:9263 127.0.0.1:9264"},
		{"listen: {metrics: \"0.0.0.0:9253\"}\n", "0.0.0.0:9253 127.0.0.1:9264"},
		{"listen: {metrics: off, health: \"127.0.0.1:9254\"}\n", "invalid AddrPort 127.0.0.1:9254"},
	} {
		e := Env{Env: config.Env{
			LookupEnv: func(name string) (string, bool) { return "192.0.2.7", name == "NODE_IP" },
			ReadFile: func(path string) ([]byte, error) {
				if path != "node.yaml" {
					return nil, fs.ErrNotExist
				}
				return []byte("apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\nredirects: [10.96.0.10]\n" + c.listen), nil
			},
		}}
		n, _, err := loadHosts(e, "node.yaml")
		testutil.Must(t, err)
		testutil.Equal(t, fmt.Sprintf("%q", c.listen), c.want, fmt.Sprint(n.Listen.Metrics, " ", n.Listen.Health))
	}
}

// TestRemoveHosts: a recent record shows that the role runs. An old one does not, nor one from before the clock stepped back, which would
// otherwise stop every cleanup until the clock is there again.
func TestRemoveHosts(t *testing.T) {
	for _, c := range []struct {
		age          time.Duration
		ended, holds bool
	}{{time.Second, false, true}, {time.Second, true, false}, {time.Hour, false, false}, {-time.Hour, false, false}} {
		synctest.Test(t, func(t *testing.T) {
			dir := t.TempDir()
			testutil.Must(t, nodestate.HostsFile(dir).Write(nodestate.Hosts{Looked: time.Now().Add(-c.age), Ended: c.ended}))
			if err := removeHosts(t.Context(), dir, t.TempDir(), func(string, ...any) {}); IsLocked(err) != c.holds || !c.holds && err != nil {
				t.Errorf("checked %s ago, ended %t: %v", c.age, c.ended, err)
			}
		})
	}
}
