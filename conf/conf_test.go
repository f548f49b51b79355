// Package conf holds sample configuration files, and the tests that read them. The NodeConfig samples are read in
// agent/internal/config, where their parser is.
package conf

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/coredns/caddy/caddyfile"

	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// Our entry in each sample is the one that the installer would write.
func TestConflists(t *testing.T) {
	v4 := steer.Redirect{ClusterDNS: netip.MustParseAddr("10.96.0.10")}
	v6 := steer.Redirect{ClusterDNS: netip.MustParseAddr("fd00:10:96::a")}
	local4, local6 := netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:90de:d95::a")
	cases := map[string]conflist.Settings{
		"10-ptp-neardns.conflist":    {Redirects: []steer.Redirect{v4}, LocalAddresses: []netip.Addr{local4}, ClusterDomain: "cluster.local"},
		"10-bridge-neardns.conflist": {Redirects: []steer.Redirect{v4, v6}, LocalAddresses: []netip.Addr{local4, local6}, ClusterDomain: "cluster.local"},
	}
	files, err := filepath.Glob("*.conflist")
	testutil.Must(t, err)
	if len(files) != len(cases) {
		t.Errorf("samples %v: there are %d cases", files, len(cases))
	}
	for file, settings := range cases {
		t.Run(file, func(t *testing.T) {
			data, err := os.ReadFile(file)
			testutil.Must(t, err)
			list, err := libcni.NetworkConfFromBytes(data)
			testutil.Must(t, err)
			ours := list.Plugins[len(list.Plugins)-1]
			if ours.Network.Type != conflist.Type {
				t.Fatalf("the last plugin is %s", ours.Network.Type)
			}
			entry, err := conflist.Entry(settings)
			testutil.Must(t, err)
			var want, got any
			testutil.Must(t, json.Unmarshal(entry, &want))
			testutil.Must(t, json.Unmarshal(ours.Bytes, &got))
			testutil.Equal(t, "our entry", want, got)
		})
	}
}

func TestCorefile(t *testing.T) {
	data, err := os.Open("Corefile")
	testutil.Must(t, err)
	defer data.Close()
	// Only errors, cache and forward of CoreDNS: a sample should not depend on more.
	blocks, err := caddyfile.Parse("Corefile", data, []string{"errors", "cache", "forward"})
	testutil.Must(t, err)
	var zones []string
	for _, b := range blocks {
		zones = append(zones, b.Keys...)
	}
	if !slices.Contains(zones, ".") || !slices.Contains(zones, "cluster.local") {
		t.Errorf("zones: %v", zones)
	}
}

// TestReadmeNamesEach: a reader finds each sample by the README of its folder.
func TestReadmeNamesEach(t *testing.T) {
	for _, folder := range []string{".", "../fleet/conf"} {
		readme, err := os.ReadFile(filepath.Join(folder, "README.md"))
		testutil.Must(t, err)
		files, err := os.ReadDir(folder)
		testutil.Must(t, err)
		for _, f := range files {
			if f.Name() != "README.md" && !strings.HasSuffix(f.Name(), ".go") && !strings.Contains(string(readme), "`"+f.Name()+"`") {
				t.Errorf("%s is not in the README.md of %s", f.Name(), folder)
			}
		}
	}
}
