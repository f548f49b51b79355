package attached

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/testutil"
)

var sameAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// printer is a plugin for the test: libcni writes what it prints into the cache.
type printer struct{ result string }

func (p printer) ExecPlugin(context.Context, string, []byte, []string) ([]byte, error) {
	return []byte(p.result), nil
}
func (printer) FindInPath(plugin string, _ []string) (string, error) { return plugin, nil }
func (printer) Decode(b []byte) (version.PluginInfo, error) {
	return (&version.PluginDecoder{}).Decode(b)
}

const result = `{"cniVersion":"1.0.0","interfaces":[{"name":"veth0"},{"name":"eth0","sandbox":"/run/netns/a"},{"name":"net1","sandbox":"/run/netns/a"}],
"ips":[{"address":"10.244.1.7/24","interface":1},{"address":"fd00::7/64","interface":1},{"address":"172.16.0.1/24","interface":2}]}`

// attach has libcni write its cache.
func attach(t *testing.T, root, id string, caps map[string]any, args [][2]string, result string) []byte {
	t.Helper()
	list, err := libcni.ConfListFromBytes([]byte(`{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"ptp"}]}`))
	testutil.Must(t, err)
	_, err = libcni.NewCNIConfigWithCacheDir(nil, root, printer{result}).AddNetworkList(t.Context(), list,
		&libcni.RuntimeConf{ContainerID: id, NetNS: "/run/netns/a", IfName: "eth0", Args: args, CapabilityArgs: caps})
	testutil.Must(t, err)
	return list.Bytes
}

func TestRead(t *testing.T) {
	root := t.TempDir()
	args := [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "cart"}, {"K8S_POD_UID", "7c1f"}}
	config := attach(t, root, "c1", map[string]any{
		"dns":                               map[string]any{"Servers": []string{"10.96.0.10"}, "Searches": []string{"a.b"}, "Options": []string{"ndots:5"}},
		"io.kubernetes.cri.pod-annotations": map[string]string{"neardns.io/steer": "false"},
	}, args, result)
	attach(t, root, "c2", map[string]any{"io.kubernetes.cri.pod-annotations": nil, "dns": "nonsense"}, nil, result)
	attach(t, root, "c3", nil, nil, `{"cniVersion":"0.2.0","ip4":{"ip":"10.244.1.8/24"}}`)
	paths, err := List(root)
	if err != nil || len(paths) != 3 {
		t.Fatalf("%v %v", paths, err)
	}
	addrs := []netip.Addr{netip.MustParseAddr("10.244.1.7"), netip.MustParseAddr("fd00::7")}
	for i, want := range []Pod{
		{ContainerID: "c1", Namespace: "shop", Name: "cart", UID: "7c1f", Addresses: addrs, Annotations: map[string]string{"neardns.io/steer": "false"},
			DNS: &resolvconf.Settings{Nameservers: []string{"10.96.0.10"}, Searches: []string{"a.b"}, Options: []string{"ndots:5"}}},
		{ContainerID: "c2", Addresses: addrs, Annotations: map[string]string{}},
		{ContainerID: "c3", Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.8")}},
	} {
		got, err := Read(paths[i])
		testutil.Must(t, err)
		if got.Made.IsZero() {
			t.Error("it was made never")
		}
		got.Made = want.Made
		want.File, want.Network, want.IfName, want.NetNS, want.Config = "pods-"+want.ContainerID+"-eth0", "pods", "eth0", "/run/netns/a", config
		if diff := cmp.Diff(want, got, sameAddr); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if is := got.IsPod(); is != (i == 0) {
			t.Errorf("%s: IsPod is %v", got, is)
		}
	}
}

// libcni before 1.2 does not write the netns, but the result names it.
func TestReadWithoutNetNS(t *testing.T) {
	root := t.TempDir()
	attach(t, root, "c1", nil, nil, strings.ReplaceAll(result, "/run/netns/a", "/proc/7/ns/net"))
	path := filepath.Join(root, "results", "pods-c1-eth0")
	text, err := os.ReadFile(path)
	testutil.Must(t, err)
	var kept map[string]any
	testutil.Must(t, json.Unmarshal(text, &kept))
	delete(kept, "netns")
	if text, err = json.Marshal(kept); err != nil {
		t.Fatal(err)
	}
	testutil.Must(t, os.WriteFile(path, text, 0o600))
	if got, err := Read(path); err != nil || got.NetNS != "/proc/7/ns/net" {
		t.Errorf("%q, %v", got.NetNS, err)
	}
}

func TestReadFaults(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "cache", "results")
	if paths, err := List(filepath.Dir(filepath.Dir(folder))); len(paths) > 0 || err != nil {
		t.Errorf("a cache that is not there: %v, %v", paths, err)
	}
	testutil.Must(t, os.MkdirAll(folder, 0o700))
	for name, c := range map[string]struct{ text, want string }{
		"half":   {`{"kind":"cniCac`, "not valid JSON"},
		"legacy": {result, "libcni before 0.8"},
		"other":  {`{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"pods"}`, "its contents belong to pods-c1-eth0"},
		"pods-c1-eth0": {`{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"pods","result":{"cniVersion":"9.9.9"}}`,
			"result: "},
		"big": {strings.Repeat(" ", maxSize+1), "larger than"},
	} {
		testutil.Must(t, os.WriteFile(filepath.Join(folder, name), []byte(c.text), 0o600))
		_, err := Read(filepath.Join(folder, name))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if paths, err := List(filepath.Dir(filepath.Dir(folder))); len(paths) != 5 || err != nil {
		t.Errorf("cri-dockerd's folder: %v, %v", paths, err)
	}
	if _, err := Read(filepath.Join(folder, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"kind":"cniCacheV1","containerId":"c1","config":"e30=","ifName":"eth0","networkName":"pods","netns":"/x","cniArgs":[["K8S_POD_NAME","a"]],` +
		`"capabilityArgs":{"dns":{"servers":["1"]},"io.kubernetes.cri.pod-annotations":{"a":"b"}},"result":` + result + `}`))
	f.Add([]byte(`{"kind":"cniCacheV1","result":{"cniVersion":"1.0.0","interfaces":[null],"ips":[null,{"interface":7}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := decode(text)
		if err != nil {
			return
		}
		for _, a := range p.Addresses {
			if !a.IsValid() || a.Is4In6() {
				t.Errorf("address %v", a)
			}
		}
		_, _ = p.IsPod(), p.String()
	})
}
