package programs

import (
	"fmt"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// AwaitSteered waits until the agent has steered every redirect of an attachment, which the plugin leaves to it.
func AwaitSteered(t testutil.TB, stateDir, containerID, ifName string) {
	t.Helper()
	testutil.Eventually(t, func() error {
		f, err := podfile.Read(podfile.Path(stateDir, containerID, ifName))
		if err == nil && len(f.In(podfile.Steered)) != len(f.Decisions) {
			err = fmt.Errorf("container %s is not steered: %+v", containerID, f.Decisions)
		}
		return err
	})
}
