package inspect

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/internal/telemetry"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

// Without a file there is no fault of one, even if nothing can be detected. The agent's socket is at the default path, so the test runs
// in mounts of its own.
func TestInEffectWithoutAFile(t *testing.T) {
	testutil.RequireRoot(t)
	const mounted = "NEARDNS_TEST_MOUNTED"
	if os.Getenv(mounted) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), mounted+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		return
	}
	testutil.Must(t, errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("tmpfs", "/run", "tmpfs", 0, ""),
		os.Mkdir(nodestate.DefaultStateDir, 0o700)))
	running := telemetry.Health{Config: func() string {
		return "apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\nredirects: [10.96.0.10]\n" +
			"localAddresses: [169.254.20.10]\nclusterDomain: cluster.local\n"
	}}
	go telemetry.ServeSocket(t.Context(), slog.New(slog.DiscardHandler), nodestate.DefaultStateDir+"/"+nodestate.AgentSocketName,
		running.SocketHandler())
	e := config.Env{LookupEnv: func(string) (string, bool) { return "", false },
		ReadFile: func(string) ([]byte, error) { return nil, fs.ErrNotExist }, Glob: func(string) ([]string, error) { return nil, nil }}
	testutil.Eventually(t, func() error {
		n, fault, err := InEffect(t.Context(), "", e)
		if err == nil && (fault != nil || len(n.Redirects) != 1) {
			t.Errorf("%d redirects, fault: %v", len(n.Redirects), fault)
		}
		return err
	})
}
