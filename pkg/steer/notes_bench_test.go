package steer_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// What a look costs: the counters alone, which is what an undisturbed node does twice a second, and the notes of 200 clients
// in each set, which are read when somebody is not heard.
func BenchmarkLook(b *testing.B) {
	testutil.RequireRoot(b)
	ns, nft := node(b, host())
	var fill strings.Builder
	for _, set := range []string{"asked4", "heard4"} {
		fmt.Fprintf(&fill, "add element inet neardns %s {", set)
		for i := range 200 {
			fmt.Fprintf(&fill, "10.9.0.%d . udp . 169.254.20.11,", i)
		}
		fill.WriteString("}\n")
	}
	ns.RunInput(fill.String(), "nft", "-f", "-")
	b.Run("counters", func(b *testing.B) {
		for b.Loop() {
			if got, err := nft.Unheard(); err != nil || got[steer.UDP] != 0 {
				b.Fatal(got, err)
			}
		}
	})
	b.Run("notes", func(b *testing.B) {
		for b.Loop() {
			if got, err := nft.Notes(); err != nil || len(got.Asked) != 200 || len(got.Heard) != 200 {
				b.Fatal(len(got.Asked), len(got.Heard), err)
			}
		}
	})
	b.Run("suspects", func(b *testing.B) {
		for b.Loop() {
			if _, err := nft.Suspects(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
