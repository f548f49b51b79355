package nft_test

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil/rig"
)

func TestCheckLocals(t *testing.T) {
	good := []steer.Local{{Address: local4.Address, ClusterDNS: rig.Upstream(true)}, {Address: redirect4.ClusterDNS, ClusterDNS: redirect4.ClusterDNS}, local6}
	if err := steer.CheckLocals(good); err != nil {
		t.Error(err)
	}
	for says, bad := range map[string]steer.Local{
		"missing":            {ClusterDNS: rig.Upstream(true)},
		"fallback of 169":    {Address: addr("169.254.20.9")},
		"different families": {Address: addr("169.254.20.9"), ClusterDNS: rig.Upstream(false)},
		"is listed twice":    local4,
		"prober's own":       {Address: steer.ProbeSource4, ClusterDNS: rig.Upstream(true)},
	} {
		if err := steer.CheckLocals(append(good[:3:3], bad)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", bad, err, says)
		}
	}
}
