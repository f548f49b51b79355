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

// nftRig is a rig with its host's back end.
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

// by returns a check of a query's result: the server named who must have answered. The test goes on. The other arguments name the query.
func by(t testing.TB, who, format string, args ...any) func(*testutil.Answer, error) {
	t.Helper()
	return func(answer *testutil.Answer, err error) {
		t.Helper()
		if err != nil || answer.Who != who {
			t.Errorf("%s: %v, %v; want %s", fmt.Sprintf(format, args...), answer, err, who)
		}
	}
}

// cells runs a test with half of the combinations of kube-proxy's modes and ways to attach a pod: each mode and each way is among them,
// always with both families. The tracer checks all combinations on which rules depend.
func cells(t *testing.T, f func(t *testing.T, o testutil.Options)) {
	t.Helper()
	for i, proxy := range testutil.Proxies() {
		for j, attach := range []testutil.Attach{testutil.PTP, testutil.BridgeNF, testutil.BridgeCNI, testutil.ProxyARP} {
			if (i+j)%2 == 0 {
				o := testutil.Options{Families: testutil.Dual, Proxy: proxy, Attach: attach}
				t.Run(fmt.Sprintf("%s/%s", proxy, attach), func(t *testing.T) { f(t, o) })
			}
		}
	}
}

// modes runs a test with each mode of kube-proxy, and only the attachment PTP.
func modes(t *testing.T, f func(t *testing.T, o testutil.Options)) {
	t.Helper()
	for _, proxy := range testutil.Proxies() {
		mode(t, proxy, f)
	}
}

// mode runs a test with one mode of kube-proxy and the attachment PTP.
func mode(t *testing.T, proxy testutil.ProxyMode, f func(t *testing.T, o testutil.Options)) {
	t.Helper()
	o := testutil.Options{Families: testutil.Dual, Proxy: proxy, Attach: testutil.PTP}
	t.Run(string(proxy), func(t *testing.T) { f(t, o) })
}
