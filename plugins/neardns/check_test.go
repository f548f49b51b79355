package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestCheckAfterFlush(t *testing.T) {
	r, node, pod := ptpNode(t, testutil.IPv4)
	add := addRequest("c1", pod, nil)
	r.must(add)
	r.must(add.with("CHECK"))
	node.Host.Run("nft", "flush", "ruleset")
	r.fails(add.with("CHECK"), codeDrift, "the host has no table")
	r.must(add)
	r.must(add.with("CHECK"))
	pod.Run("nft", "flush", "ruleset")
	r.fails(add.with("CHECK"), codeDrift, "pod shop/web-0", pod.Path())
	// CHECK ignores rules in other programs' tables.
	r.must(add)
	pod.Run("nft", "add", "table", "inet", "mesh")
	r.must(add.with("CHECK"))
	pod.Run("nft", "flush", "table", "inet", steer.TableName)
	r.fails(add.with("CHECK"), codeDrift)
}

func TestCheckOfWhatIsNotSteered(t *testing.T) {
	r, node, pod := ptpNode(t, testutil.IPv4)
	r.must(addRequest("unknown", pod, nil).with("CHECK"))
	add := addRequest("c1", pod, object{"runtimeConfig": object{"dns": object{"servers": []string{"9.9.9.9"}}}})
	r.must(add)
	r.must(add.with("CHECK"))
	other := node.AddPod("other")
	q := add.with("CHECK")
	q.NetNS = other.Path()
	r.fails(q, codeState)
}

func TestGC(t *testing.T) {
	attachment := func(id, ifName string) object { return object{"containerID": id, "ifname": ifName} }
	for name, tc := range map[string]struct {
		conf object
		left []string
	}{
		"absent":            {object{}, []string{"a", "b"}},
		"empty":             {object{"cni.dev/valid-attachments": []any{}}, nil},
		"one":               {object{"cni.dev/valid-attachments": []any{attachment("a", "eth0")}}, []string{"a"}},
		"one, old key":      {object{"cni.dev/attachments": []any{attachment("b", "eth0")}}, []string{"b"}},
		"another interface": {object{"cni.dev/valid-attachments": []any{attachment("a", "net1"), attachment("b", "eth0")}}, []string{"b"}},
		"another network":   {object{"name": "others", "cni.dev/valid-attachments": []any{}}, []string{"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			r, node, podA := ptpNode(t, testutil.IPv4)
			pods := map[string]*testutil.Pod{"a": podA, "b": node.AddPod("b")}
			for id, pod := range pods {
				r.must(addRequest(id, pod, nil))
			}
			testutil.Equal(t, "output", "", r.must(request{Verb: "GC", Conf: tc.conf}).Stdout)
			var left []string
			for _, id := range []string{"a", "b"} {
				if _, err := os.Stat(podfile.Path(r.state, id, "eth0")); err == nil {
					left = append(left, id)
					verify(t, pods[id].NetNS, steer.Pod{Redirects: []steer.Redirect{redirect4}})
				} else {
					wantNoTable(t, pods[id].NetNS)
				}
			}
			testutil.Equal(t, "left", tc.left, left)
		})
	}
}

func TestGCRefusesWhatItCannotRead(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	r.must(addRequest("a", pod, nil))
	r.fails(request{Verb: "GC", Conf: object{"cni.dev/valid-attachments": "none"}}, 7)
	r.wantFiles(1)
	// GC removes a corrupt file only if its attachment is not valid.
	testutil.Must(t, os.WriteFile(podfile.Path(r.state, "a", "eth0"), []byte("{"), 0o600))
	r.must(request{Verb: "GC", Conf: object{"cni.dev/valid-attachments": []any{object{"containerID": "a", "ifname": "eth0"}}}})
	r.wantFiles(1)
	r.must(request{Verb: "GC", Conf: object{"cni.dev/valid-attachments": []any{}}})
	r.wantFiles(0)
}

func TestStatus(t *testing.T) {
	testutil.RequireRoot(t)
	host := testutil.NewNS(t, "status")
	r := newCRI(t, host)
	r.must(request{Verb: "STATUS"})
	r.must(request{Verb: "STATUS", Conf: object{"onUnsupported": "fail"}})
	wantNoTable(t, host)
	blocked := filepath.Join(t.TempDir(), "file")
	testutil.Must(t, os.WriteFile(blocked, nil, 0o600))
	r.must(request{Verb: "STATUS", Conf: object{"stateDir": blocked}})
	r.fails(request{Verb: "STATUS", Conf: object{"stateDir": blocked, "onUnsupported": "fail"}}, 50)
	r.fails(request{Verb: "STATUS", Conf: object{"redirects": nil}}, 7)
}
