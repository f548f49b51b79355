package steer

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// Both forms are read, and what is written is read as the same.
func TestRedirectJSON(t *testing.T) {
	four, six := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:90de:d95::b")
	for text, want := range map[string]Redirect{
		`"10.96.0.10"`:                {ClusterDNS: four},
		`{"clusterDNS":"10.96.0.10"}`: {ClusterDNS: four},
		`{"clusterDNS":"fd00:90de:d95::b","steering":"10.96.0.10"}`: {ClusterDNS: six, Steering: four}, // Complete refuses it
		`{"clusterDNS":"","later":{"a":1}}`:                         {},
		`null`:                                                      {},
	} {
		var got Redirect
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
		again, err := json.Marshal(want)
		testutil.Must(t, err)
		if err := json.Unmarshal(again, &got); err != nil || got != want {
			t.Errorf("%s: %v, %v", again, got, err)
		}
	}
	for text, want := range map[string]string{
		`7`:                                 `redirect: is a number: write "10.96.0.10" or {"clusterDNS": "10.96.0.10", "steering": "169.254.20.11"}`,
		`{}`:                                "redirect: clusterDNS: missing",
		`{"clusterDNS":"kube-dns"}`:         `redirect: clusterDNS: "kube-dns" is not an IP address`,
		`{"clusterDNS":"::1","steering":1}`: "redirect: steering: is a number: write an IP address, in quotes",
	} {
		var got Redirect
		if err := json.Unmarshal([]byte(text), &got); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
