package testutil

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// left lists the files of namespaces whose names begin with name.
func left(t *testing.T, name string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(nsDir, name+"*"))
	Must(t, err)
	return files
}

func TestProgramCleansUp(t *testing.T) {
	RequireRoot(t)
	linksBefore := rootLinks(t)
	options := Options{Families: Dual, Proxy: NFTables, Attach: BridgeCNI, External: true}
	tests := []struct {
		name string
		end  func(TB, *Node, context.CancelFunc)
		want string
	}{
		{"good", func(TB, *Node, context.CancelFunc) {}, ""},
		{"fails", func(t TB, _ *Node, _ context.CancelFunc) { t.Fatalf("no %d", 7) }, "no 7"},
		{"fails-in-do", func(t TB, n *Node, _ context.CancelFunc) { n.Host.Do(func() { t.Fatalf("no") }) }, "no"},
		{"fails-in-command", func(_ TB, n *Node, _ context.CancelFunc) { n.Host.Run("false") }, "exit status 1"},
		{"interrupted", func(_ TB, _ *Node, cancel context.CancelFunc) { cancel(); select {} }, context.Canceled.Error()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			name := fmt.Sprintf("program-%d-%s", os.Getpid(), tt.name) // another run of the test may be under way
			var out bytes.Buffer
			var process *Process
			err := Program(ctx, &out, func(t TB) {
				o := options
				o.Name = name
				n := NewNode(t, o)
				pod := n.AddPod("pod")
				process = pod.Start("sleep", "1000")
				t.Logf("asked: %v", WantWho(t, "KUBEDNS", pod.NetNS, n.Service(true), "a.cluster.local", "udp"))
				tt.end(t, n, cancel)
			})
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if !strings.Contains(out.String(), "asked: KUBEDNS") {
				t.Errorf("wrote %q", out.String())
			}
			select {
			case <-process.Exited():
			default:
				t.Error("the process still runs")
			}
			Equal(t, "left", nil, left(t, name))
		})
	}
	Equal(t, "links of the machine itself", linksBefore, rootLinks(t))
}

func rootLinks(t *testing.T) string {
	t.Helper()
	out, err := command(t.Context(), "ip", "-o", "link").Output()
	Must(t, err)
	// Those that a Node makes: another program may make its own meanwhile.
	ours := regexp.MustCompile(`(?m)^\d+: (seg0|to-host|kubedns0|external0|veth\d+|pod\d+)\b.*`)
	return strings.Join(ours.FindAllString(string(out), -1), "\n")
}

func TestKeep(t *testing.T) {
	RequireRoot(t)
	name := fmt.Sprintf("keep-%d", os.Getpid())
	var node *Node
	Must(t, Program(t.Context(), &bytes.Buffer{}, func(t TB) {
		node = NewNode(t, Options{Name: name})
		node.AddPod("pod")
		node.AddPod("deleted").Delete()
		node.Keep()
	}))
	for _, ns := range node.made[:4] {
		if files := left(t, filepath.Base(ns.Path())); len(files) != 3 {
			t.Errorf("%s was not kept: %v", ns.Name(), files)
		}
		removeNS(ns.Path())
	}
	Equal(t, "left", nil, left(t, name))
}

func TestProgramEndsInOrder(t *testing.T) {
	var order []string
	err := Program(t.Context(), &bytes.Buffer{}, func(t TB) {
		for _, name := range []string{"first", "second"} {
			t.Cleanup(func() { order = append(order, name); t.Fatalf("cleanup of %s", name) })
		}
		t.Fatalf("the cause")
	})
	if err == nil || err.Error() != "the cause" || strings.Join(order, " ") != "second first" {
		t.Errorf("got %v after %v", err, order)
	}
	if errors.Is(err, context.Canceled) {
		t.Error("not interrupted")
	}
}
