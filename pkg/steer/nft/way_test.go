package nft_test

import (
	"testing"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/testutil"
)

// hostnet.Way leaves no descriptor and no link behind.
func TestWayGivesDescriptorsBack(t *testing.T) {
	r := newRig(t, testutil.Options{Families: testutil.Dual, Attach: testutil.ProxyARP})
	pod := r.Pod("pod")
	look := func() {
		for _, d := range r.Host.Redirects {
			_, err := hostnet.Way(pod.FD(), r.Node.Host.FD(), d.ClusterDNS)
			must(t, err)
		}
	}
	look()
	before := openFiles(t)
	for range 50 {
		look()
	}
	if after := openFiles(t); after > before+3 {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
