package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
	if out := r.call(add.with("CHECK")); out.Err == nil || out.Err.Code != codeDrift || !strings.Contains(out.Err.Msg, "the host has no table") {
		t.Errorf("CHECK after a flush in the host: %v", out.Err)
	}
	r.must(add)
	r.must(add.with("CHECK"))
	pod.Run("nft", "flush", "ruleset")
	out := r.call(add.with("CHECK"))
	if out.Err == nil || out.Err.Code != codeDrift || !strings.Contains(out.Err.Msg, "pod shop/web-0") || !strings.Contains(out.Err.Msg, pod.Path()) {
		t.Fatalf("CHECK: %+v", out.Err)
	}
	t.Log(out.Err.Msg)
	// CHECK ignores rules in other programs' tables.
	r.must(add)
	pod.Run("nft", "add", "table", "inet", "mesh")
	r.must(add.with("CHECK"))
	pod.Run("nft", "flush", "table", "inet", steer.TableName)
	if out := r.call(add.with("CHECK")); out.Err == nil || out.Err.Code != codeDrift {
		t.Errorf("CHECK after flush table: %v", out.Err)
	}
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
	if out := r.call(q); out.Err == nil || out.Err.Code != codeState {
		t.Errorf("CHECK with another netns: %v", out.Err)
	}
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
			if out := r.must(request{Verb: "GC", Conf: tc.conf}); out.Stdout != "" {
				t.Errorf("GC printed %q", out.Stdout)
			}
			var left []string
			for _, id := range []string{"a", "b"} {
				if _, err := os.Stat(podfile.Path(r.state, id, "eth0")); err == nil {
					left = append(left, id)
					verify(t, pods[id].NetNS, steer.Pod{Redirects: []steer.Redirect{redirect4}})
				} else {
					wantNoTable(t, pods[id].NetNS)
				}
			}
			if d := cmp.Diff(tc.left, left); d != "" {
				t.Errorf("left (-want +got):\n%s", d)
			}
		})
	}
}

func TestGCRefusesWhatItCannotRead(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	r.must(addRequest("a", pod, nil))
	out := r.call(request{Verb: "GC", Conf: object{"cni.dev/valid-attachments": "none"}})
	if out.Err == nil || out.Err.Code != 7 || r.files() != 1 {
		t.Errorf("GC: %v, %d files", out.Err, r.files())
	}
	// GC removes a corrupt file only if its attachment is not valid.
	testutil.Must(t, os.WriteFile(podfile.Path(r.state, "a", "eth0"), []byte("{"), 0o600))
	r.must(request{Verb: "GC", Conf: object{"cni.dev/valid-attachments": []any{object{"containerID": "a", "ifname": "eth0"}}}})
	if r.files() != 1 {
		t.Error("the file of a valid attachment went")
	}
	r.must(request{Verb: "GC", Conf: object{"cni.dev/valid-attachments": []any{}}})
	if r.files() != 0 {
		t.Error("the corrupt file stays")
	}
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
	out := r.call(request{Verb: "STATUS", Conf: object{"stateDir": blocked, "onUnsupported": "fail"}})
	if out.Err == nil || out.Err.Code != 50 {
		t.Errorf("STATUS: %v", out.Err)
	}
	if out := r.call(request{Verb: "STATUS", Conf: object{"redirects": nil}}); out.Err == nil || out.Err.Code != 7 {
		t.Errorf("STATUS with a bad configuration: %v", out.Err)
	}
}
