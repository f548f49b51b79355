package hostnet

import (
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/neardns/neardns/pkg/testutil"
)

// Without CAP_SYS_ADMIN, which node-cache's manifest does not grant, InNetNS still runs code in the caller's own netns. The library's
// pkg/ns does not, because it always calls setns. If it stops doing that, use it instead of InNetNS.
func TestEntersWithoutSysAdmin(t *testing.T) {
	testutil.RequireRoot(t)
	if !testutil.InChild(t, "setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin") {
		return
	}
	own, err := ns.GetCurrentNS()
	testutil.Must(t, err)
	defer own.Close()
	ran := false
	if err := InNetNS(int(own.Fd()), func() error { ran = true; return nil }); err != nil || !ran {
		t.Errorf("in the own netns: ran %v, %v", ran, err)
	}
	if err := own.Do(func(ns.NetNS) error { return nil }); err == nil {
		t.Error("pkg/ns runs code without CAP_SYS_ADMIN now: use it in place of InNetNS")
	}
}
