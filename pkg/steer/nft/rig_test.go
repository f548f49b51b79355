package nft_test

import (
	"fmt"
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/rig"
)

// nftRig is a rig whose host's table is also at hand by itself.
type nftRig struct {
	*rig.Rig
	t   testing.TB
	nft *nft.Nftables
}

func newRig(t testing.TB, o testutil.Options, change ...func(*steer.Host)) *nftRig {
	t.Helper()
	r := rig.New(t, rules.Kind{}, o, change...)
	return &nftRig{r, t, open(t, r.Node.Host)}
}

// cells runs a test in each combination of kube-proxy mode and attachment, both families in each.
func cells(t *testing.T, f func(t *testing.T, o testutil.Options)) {
	t.Helper()
	for _, proxy := range testutil.Proxies() {
		for _, attach := range []testutil.Attach{testutil.PTP, testutil.BridgeCNI, testutil.BridgeNF, testutil.ProxyARP} {
			o := testutil.Options{Families: testutil.Dual, Proxy: proxy, Attach: attach}
			t.Run(fmt.Sprintf("%s/%s", proxy, attach), func(t *testing.T) { f(t, o) })
		}
	}
}

// modes is cells with ptp alone.
func modes(t *testing.T, f func(t *testing.T, o testutil.Options)) {
	t.Helper()
	for _, proxy := range testutil.Proxies() {
		o := testutil.Options{Families: testutil.Dual, Proxy: proxy, Attach: testutil.PTP}
		t.Run(string(proxy), func(t *testing.T) { f(t, o) })
	}
}
