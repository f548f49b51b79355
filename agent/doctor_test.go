package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestDoctorChangesNothing runs the command on an empty node: it reports what is missing and creates none of it.
func TestDoctorChangesNothing(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "doctor")
	dir := t.TempDir()
	conf := filepath.Join(dir, "node.yaml")
	text := head + "redirects: [10.96.0.10]\nupstreams: {external: [192.0.2.1]}\nstateDir: " + dir + "/run\npersistDir: " + dir + "/lib\n"
	state := func() string {
		return ns.Run("nft", "list", "ruleset") + ns.Run("sh", "-c", "ip -o link | cut -d: -f2; ip -o address | awk '{print $2, $4}'")
	}
	before := state()
	for _, tc := range []struct {
		args []string
		want string
		code int
	}{{nil, "\nDEGRADED: ", cli.Degraded}, {[]string{"--json"}, `"good": false`, cli.Degraded},
		{[]string{"--bundle", dir + "/none/report.tar.gz"}, "\nDEGRADED: ", cli.Failed}} { // the findings are printed all the same
		e, stdout, stderr := fake(map[string]string{conf: text})
		args := append([]string{"doctor", "--config", conf, "--cni-conf", dir, "--cni-bin", dir}, tc.args...)
		var code int
		ns.Do(func() { code = run(t.Context(), e, args) })
		if code != tc.code || !strings.Contains(stdout.String(), tc.want) {
			t.Errorf("doctor %v: exit code %d\n%s%s", tc.args, code, stdout, stderr)
		}
	}
	testutil.Equal(t, "the doctor changed the node", before, state())
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the doctor left files: %v %v", left, err)
	}
}
