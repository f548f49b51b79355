package nft_test

import (
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/rig"
)

func TestCheckLocals(t *testing.T) {
	good := []steer.Local{{Address: local4.Address, ClusterDNS: rig.Upstream(true)}, {Address: redirect4.ClusterDNS, ClusterDNS: redirect4.ClusterDNS}, local6}
	testutil.Check(t, steer.CheckLocals(good))
	for want, bad := range map[string]steer.Local{
		"missing":            {ClusterDNS: rig.Upstream(true)},
		"fallback of 169":    {Address: addr("169.254.20.9")},
		"different families": {Address: addr("169.254.20.9"), ClusterDNS: rig.Upstream(false)},
		"is listed twice":    local4,
		"prober's own":       {Address: steer.ProbeSource4, ClusterDNS: rig.Upstream(true)},
	} {
		testutil.WantError(t, steer.CheckLocals(append(good[:3:3], bad)), want)
	}
}
