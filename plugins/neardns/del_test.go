package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestDelBeforeAdd(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	r.must(request{Verb: "DEL", ID: "c1", NetNS: ""})
	r.must(addRequest("c1", pod, nil).with("DEL"))
	r.must(addRequest("c1", pod, nil))
	verify(t, pod.NetNS, steer.Pod{Redirects: []steer.Redirect{redirect4}})
}

// DEL succeeds twice, without a prevResult, and does not wait, whatever is in the place of the netns.
func TestDelWithoutNetns(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	regular, pipe := filepath.Join(t.TempDir(), "stale"), filepath.Join(t.TempDir(), "netns")
	testutil.Must(t, os.WriteFile(regular, nil, 0o600))
	testutil.Must(t, unix.Mkfifo(pipe, 0o600))
	r.wrap = []string{"timeout", "--kill-after=1", "10"}
	for name, path := range map[string]string{"its own": pod.Path(), "empty": "", "missing": "/run/netns/none", "regular file": regular, "folder": t.TempDir(), "pipe": pipe} {
		t.Run(name, func(t *testing.T) {
			r.must(addRequest("c1", pod, nil))
			for range 2 {
				testutil.Equal(t, "output", "", r.must(request{Verb: "DEL", ID: "c1", NetNS: path}).Stdout)
			}
			r.wantFiles(0)
			// The file knows the netns even where the runtime does not.
			wantNoTable(t, pod.NetNS)
		})
	}
	t.Run("gone", func(t *testing.T) {
		q := addRequest("c1", pod, nil)
		r.must(q)
		pod.Delete()
		r.must(q.with("DEL"))
		r.wantFiles(0)
	})
}

func TestDelCorruptState(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	for _, data := range []string{"", "{", `{"version":99}`, "\x00\xff"} {
		r.must(addRequest("c1", pod, nil))
		testutil.Must(t, os.WriteFile(podfile.Path(r.state, "c1", "eth0"), []byte(data), 0o600))
		r.fails(addRequest("c1", pod, nil).with("CHECK"), codeState)
		out := r.must(addRequest("c1", pod, nil).with("DEL"))
		if !strings.Contains(out.Stderr, "state file unreadable") {
			t.Errorf("nothing said about %q: %s", data, out.Stderr)
		}
		wantNoTable(t, pod.NetNS)
		r.wantFiles(0)
	}
}

func TestDelBadConfig(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	for name, stdin := range map[string]string{
		"not JSON":         `{"cniVersion":`,
		"no object":        `[]`,
		"no name":          `{"cniVersion":"1.1.0","type":"neardns"}`,
		"unknown version":  `{"cniVersion":"9.9.9","name":"pods","type":"neardns","redirects":["10.96.0.10"]}`,
		"unknown key":      `{"cniVersion":"1.1.0","name":"pods","type":"neardns","redirects":["10.96.0.10"],"redirect":1}`,
		"no redirects":     `{"cniVersion":"1.1.0","name":"pods","type":"neardns"}`,
		"wrong prevResult": `{"cniVersion":"1.1.0","name":"pods","type":"neardns","redirects":["10.96.0.10"],"prevResult":7}`,
	} {
		t.Run(name, func(t *testing.T) {
			stdin = strings.Replace(stdin, `"type":"neardns"`, `"type":"neardns","stateDir":"`+r.state+`"`, 1)
			r.must(addRequest("c1", pod, nil))
			defer r.must(addRequest("c1", pod, nil).with("DEL"))
			// If the folder is unknown too, DEL uses the default one and clears the netns all the same.
			out := r.must(request{Verb: "DEL", ID: "c1", NetNS: pod.Path(), Stdin: []byte(stdin)})
			if out.Stdout != "" || out.Stderr == "" {
				t.Errorf("stdout %q, stderr %q", out.Stdout, out.Stderr)
			}
			wantNoTable(t, pod.NetNS)
		})
	}
	r.must(request{Verb: "DEL", ID: "../../etc", NetNS: pod.Path()})
	r.must(request{Verb: "DEL", ID: "", NetNS: pod.Path()})
}

// Both tables have one name, so a DEL that names the host's netns must not remove the switch.
func TestDelNamesTheHost(t *testing.T) {
	r, node, pod := ptpNode(t, testutil.IPv4)
	r.must(addRequest("c1", pod, nil))
	before := ruleset(node.Host)
	r.must(request{Verb: "DEL", ID: "other", NetNS: node.Host.Path()})
	testutil.Equal(t, "the host's rules", before, ruleset(node.Host))
	q := addRequest("c2", pod, nil)
	q.NetNS = node.Host.Path()
	r.fails(q, 8)
	r.wantFiles(1)
}

// Paths are reused: the netns that a DEL names may be another pod's by now.
func TestDelNamesAnotherPod(t *testing.T) {
	r, node, pod := ptpNode(t, testutil.IPv4)
	other := node.AddPod("other")
	r.must(addRequest("c1", pod, nil))
	r.must(addRequest("c2", other, nil))
	for range 2 { // with the file, and without it
		r.must(request{Verb: "DEL", ID: "c1", NetNS: other.Path()})
		verify(t, other.NetNS, steer.Pod{Redirects: []steer.Redirect{redirect4}})
	}
	wantNoTable(t, pod.NetNS)
	r.must(addRequest("c2", other, nil).with("CHECK"))
}

// If the kubelet gives up on an ADD, its DEL follows at once, and the ADD may still run. Whichever ends last, the pod has both its rules
// and its file, or neither.
func TestAddAndDelAtOnce(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	r.must(addRequest("other", pod, nil).with("DEL"))
	r.must(addRequest("first", pod, nil)) // the state folder is there from a node's first pod on
	r.must(addRequest("first", pod, nil).with("DEL"))
	for round := range 40 {
		var wg sync.WaitGroup
		for _, verb := range []string{"ADD", "DEL", "ADD", "DEL"} {
			wg.Go(func() { r.call(addRequest("c1", pod, nil).with(verb)) })
		}
		wg.Wait()
		hasTable := strings.Contains(ruleset(pod.NetNS), "table inet neardns")
		// An ADD that runs out of time leaves a pending file, for the agent.
		if hasFile := r.files() > 0 && r.file("c1").Decisions[0].State != podfile.Pending; hasFile != hasTable {
			t.Fatalf("round %d: file of a steered pod %v, pod table %v", round, hasFile, hasTable)
		}
	}
}
