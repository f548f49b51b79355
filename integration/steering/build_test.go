package steering

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/integration/programs"
)

// made are the products, and the reference plugins.
var made = programs.Of("neardns", "neardns-agent", "neardns-install", "ptp", "bridge", "host-local", "coredns")

// inside reports that the process has a mount namespace of its own.
const inside = "NEARDNS_STEERING_INSIDE"

// TestMain runs the tests in a mount namespace of their own, with a BPF file system: what agents leave in it outlives them and goes with
// the tests.
func TestMain(m *testing.M) {
	unshare, err := exec.LookPath("unshare")
	if os.Getuid() != 0 || os.Getenv(inside) != "" || err != nil {
		made.Main(m)
		return
	}
	script := `mount -t bpf bpf /sys/fs/bpf || echo "no BPF file system" >&2; exec "$0" "$@"`
	args := append([]string{"unshare", "--mount", "sh", "-c", script}, os.Args...)
	if err := unix.Exec(unshare, args, append(os.Environ(), inside+"=1")); err != nil {
		panic(err)
	}
}
