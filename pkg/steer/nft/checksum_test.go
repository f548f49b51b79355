package nft_test

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// noOffload makes a link compute every checksum before it sends, as a wire between two machines has it. Otherwise the
// kernel never computes the checksum of a packet between two netns, so a test would not see a wrong one.
func noOffload(t testing.TB, ns *testutil.NetNS, link string) {
	t.Helper()
	const setTXChecksum, siocEthtool = 0x17, 0x8946 // linux/ethtool.h, linux/sockios.h
	ns.Do(func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		must(t, err)
		defer func() { _ = unix.Close(fd) }()
		value := struct{ command, data uint32 }{setTXChecksum, 0}
		request := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}{data: unsafe.Pointer(&value)}
		copy(request.name[:], link)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), siocEthtool, uintptr(unsafe.Pointer(&request))); errno != 0 {
			t.Fatalf("turn off checksum offload of %s: %v", link, errno)
		}
	})
}

// Every packet that the rules rewrite leaves with a right checksum, with each attachment and each mode of kube-proxy. Each of
// them runs with and without interception, but not every combination of the three.
func TestChecksumsOnTheWire(t *testing.T) {
	cells(t, func(t *testing.T, o testutil.Options) {
		intercept := (o.Proxy == testutil.NFTables) == (o.Attach == testutil.PTP || o.Attach == testutil.BridgeNF)
		r := newRig(t, o, func(h *steer.Host) { h.InterceptNode = intercept })
		pod, plain := r.Steered("steered"), r.Pod("plain")
		noOffload(t, pod.NetNS, "eth0")
		noOffload(t, plain.NetNS, "eth0")
		noOffload(t, r.Node.KubeDNS, "eth0")
		for _, link := range []string{"kubedns0", pod.HostInterface, plain.HostInterface} {
			noOffload(t, r.Node.Host, link)
		}
		all := append(r.ClusterDNS(), r.Local()...)
		r.Want("KUBEDNS", pod.NetNS, "no agent", all...)
		r.Want("KUBEDNS", plain.NetNS, "no agent", all...)
		r.Serve()
		r.Want("AGENT", pod.NetNS, "lease", all...)
		r.Want("AGENT", plain.NetNS, "lease, by the local address", r.Local()...)
		if intercept {
			r.Want("AGENT", plain.NetNS, "lease, intercepted", r.ClusterDNS()...)
		}
		r.Kill()
		r.Want("KUBEDNS", pod.NetNS, "killed", all...)
		r.Want("KUBEDNS", plain.NetNS, "killed", all...)
	})
}
