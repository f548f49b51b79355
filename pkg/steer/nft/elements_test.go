package nft

import (
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer/nfnetlink"
)

// readElements never panics.
func FuzzReadElements(f *testing.F) {
	f.Add([]byte{})
	f.Add(append(make([]byte, 4), 20, 0, unix.NFTA_SET_ELEM_LIST_ELEMENTS, 0, 16, 0, 1, 0x80, 12, 0, unix.NFTA_SET_ELEM_KEY, 0x80, 8, 0, unix.NFTA_DATA_VALUE, 0, 10, 0, 0, 1))
	f.Fuzz(func(_ *testing.T, data []byte) {
		var out []element
		_ = nfnetlink.Each(netlink.Message{Data: data}, func(dec *netlink.AttributeDecoder) { readElements(&out, dec) })
	})
}
