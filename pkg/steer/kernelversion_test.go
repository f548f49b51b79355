package steer_test

import (
	"os"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestOlderThanTried(t *testing.T) {
	for release, want := range map[string]bool{
		"5.10.0-46-amd64": false, "5.10": false, "5.9.16": true, "4.19.0-27-cloud-amd64": true, "5.4.0-150-generic": true, "3.10.0-1160.el7.x86_64": true,
		"5.11-rc1": false, "6.1.0-56-amd64": false, "6.12.43+deb12-amd64": false, "10.0": false, "": false, "6": false, "x.y": false, "5.-1": false,
	} {
		if got := steer.OlderThanTried(release); got != want {
			t.Errorf("%q: %v, want %v", release, got, want)
		}
	}
}

func TestKernel(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	must(t, err)
	if got, want := steer.Kernel(), strings.TrimSpace(string(text)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	testutil.Must(t, err)
}
