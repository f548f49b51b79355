package nri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"go.uber.org/goleak"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/testutil"
)

// world is one node's files: the pods', and those of a runtime that makes a sandbox's resolv.conf after ADD.
type world struct {
	t      *testing.T
	dir    string
	plugin *Plugin
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	w.plugin = New(Config{Log: slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug})), StateDir: filepath.Join(w.dir, "run"),
		Paths: []string{filepath.Join(w.dir, "sandboxes", "{id}", "resolv.conf")}, Socket: filepath.Join(w.dir, "nri.sock")})
	w.plugin.reconnectDelay = 50 * time.Millisecond
	return w
}

// testWriter is the log of a test.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s", strings.TrimSpace(string(b)))
	return len(b), nil
}

const kubeletText = "search shop.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n"

// waiting writes the file that the CNI plugin writes at ADD.
func (w *world) waiting(id string, change func(*podfile.DNS)) {
	w.t.Helper()
	d := &podfile.DNS{State: podfile.Waiting, Reason: "later", Overlay: &resolvconf.Overlay{Settings: resolvconf.Settings{Options: []string{"ndots:1"}}}}
	if change != nil {
		change(d)
	}
	if err := podfile.Write(w.plugin.StateDir, podfile.File{ContainerID: id, IfName: "eth0", NetNS: "/x", PodNamespace: "shop", PodName: id, DNS: d}); err != nil {
		w.t.Fatal(err)
	}
}

// made is what the runtime does after ADD.
func (w *world) made(id string) {
	w.t.Helper()
	testutil.WriteFile(w.t, w.path(id), kubeletText)
}

func (w *world) path(id string) string { return filepath.Join(w.dir, "sandboxes", id, "resolv.conf") }

func (w *world) dns(id string) podfile.DNS {
	w.t.Helper()
	f, err := podfile.Read(podfile.Path(w.plugin.StateDir, id, "eth0"))
	testutil.Must(w.t, err)
	return *f.DNS
}

func (w *world) wantText(id, want string) {
	w.t.Helper()
	testutil.WantFile(w.t, w.path(id), want)
}

const overlaidText = "search shop.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:1\n"

func TestLay(t *testing.T) {
	w := newWorld(t)
	for id, tc := range map[string]struct {
		change func(*podfile.DNS)
		state  podfile.DNSState
		reason string
		text   string
	}{
		"waiting":  {nil, podfile.Overlaid, "", overlaidText},
		"given-up": {func(d *podfile.DNS) { d.State = podfile.NoMethod }, podfile.Overlaid, "", overlaidText},
		"as-given": {func(d *podfile.DNS) { d.State, d.Overlay = podfile.AsGiven, nil }, podfile.AsGiven, "later", kubeletText},
		"overlaid": {func(d *podfile.DNS) { d.State = podfile.Overlaid }, podfile.Overlaid, "later", kubeletText},
		"a-policy": {func(d *podfile.DNS) {
			d.Overlay = &resolvconf.Overlay{Policy: resolvconf.None, Settings: resolvconf.Settings{Nameservers: []string{"::1"}}}
		}, podfile.Overlaid, "", "nameserver ::1\n"},
		"refused":    {func(d *podfile.DNS) { d.Overlay = &resolvconf.Overlay{Policy: resolvconf.None} }, podfile.Failed, "it leaves the pod without any", kubeletText},
		"cut":        {func(d *podfile.DNS) { d.Overlay.Nameservers = []string{"::1", "::2", "::3"} }, podfile.Overlaid, "", "search shop.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\nnameserver ::1\nnameserver ::2\noptions ndots:1\n"},
		"no-file":    {nil, podfile.NoMethod, "add its path to resolvConf.paths", ""},
		"a-folder":   {nil, podfile.Failed, "is no regular file", ""},
		"no-podfile": {nil, "", "", kubeletText},
	} {
		t.Run(id, func(t *testing.T) {
			w.t = t
			if id != "no-podfile" {
				w.waiting(id, tc.change)
			}
			if tc.text != "" {
				w.made(id)
			} else if id == "a-folder" {
				testutil.Must(t, os.MkdirAll(w.path(id), 0o755))
			}
			for range 2 { // twice is as once
				w.plugin.ApplyDNS(id)
			}
			if tc.text != "" {
				defer w.wantText(id, tc.text)
			}
			if tc.state == "" {
				return
			}
			d := w.dns(id)
			if d.State != tc.state || !strings.Contains(d.Reason, tc.reason) || (tc.reason == "") != (d.Reason == "") {
				t.Errorf("%+v, want %s %q", d, tc.state, tc.reason)
			}
			if tc.reason == "" && (d.Method != podfile.MethodNRI || d.Path != w.path(id) || len(d.Settings.Nameservers) == 0) {
				t.Errorf("%+v", d)
			}
		})
	}
	w.plugin.ApplyDNS("../../etc") // the ID of no pod, and no path either
}

// nodeRuntime is the runtime's side of NRI, by the library that containerd has.
type nodeRuntime struct {
	*adaptation.Adaptation
	door net.Listener // where plugins come in
	wg   sync.WaitGroup
	mu   sync.Mutex // guards the fields below
	open []net.Conn
	pods []*api.PodSandbox // that run when a plugin comes
	came int               // how often the runtime has synchronized plugins
}

func startRuntime(t *testing.T, socket string, running ...string) *nodeRuntime {
	t.Helper()
	door, err := net.Listen("unix", socket)
	testutil.Must(t, err)
	r := &nodeRuntime{door: door}
	for _, id := range running {
		r.pods = append(r.pods, &api.PodSandbox{Id: id})
	}
	inner := socket + ".runtime"
	adaptation.SetPluginRegistrationTimeout(testutil.Patience())
	adaptation.SetPluginRequestTimeout(testutil.Patience())
	r.Adaptation, err = adaptation.New("test", "v2.0.0", func(ctx context.Context, sync adaptation.SyncCB) error {
		_, err := sync(ctx, r.pods, nil)
		r.mu.Lock()
		r.came++
		r.mu.Unlock()
		return err
	}, func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
		return nil, errors.New("none asked for")
	},
		adaptation.WithSocketPath(inner), adaptation.WithPluginPath(t.TempDir()), adaptation.WithPluginConfigPath(t.TempDir()))
	if err == nil {
		err = r.Start()
	}
	testutil.Must(t, err)
	r.wg.Go(func() { r.admit(inner) })
	return r
}

// admit passes connections on. The library's side closes none when it stops: that is left to the end of the runtime's process.
func (r *nodeRuntime) admit(inner string) {
	for {
		in, err := r.door.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("unix", inner)
		if err != nil {
			in.Close()
			return
		}
		r.mu.Lock()
		r.open = append(r.open, in, out)
		r.mu.Unlock()
		for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
			r.wg.Go(func() {
				_, _ = io.Copy(way[0], way[1])
				way[0].Close()
			})
		}
	}
}

// end is the end of the runtime's process.
func (r *nodeRuntime) end() {
	r.Stop()
	r.door.Close()
	r.mu.Lock()
	for _, c := range r.open {
		c.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

func (r *nodeRuntime) awaitPlugin(t *testing.T) {
	t.Helper()
	testutil.Eventually(t, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		return testutil.ErrorIf(r.came < 2, "no plugin came") // the first is for the plugins that a runtime starts itself
	})
}

// run does what containerd 2 does for a pod after ADD.
func (r *nodeRuntime) run(t *testing.T, id string) {
	t.Helper()
	if err := r.RunPodSandbox(testutil.Context(t), &adaptation.RunPodSandboxRequest{Pod: &api.PodSandbox{Id: id}}); err != nil {
		t.Errorf("the runtime would fail the pod: %v", err)
	}
}

// Pods are changed before their first container, those that run already when the agent comes, and again after the runtime was
// restarted; whatever goes wrong fails no pod.
func TestRun(t *testing.T) {
	testutil.RequireRoot(t) // a runtime's connections and their ends are the kernel's
	nrilog.Set(silent{})
	before := goleak.IgnoreCurrent()
	w := newWorld(t)
	w.waiting("early", nil)
	w.made("early")
	runtime := startRuntime(t, w.plugin.Socket, "early", "foreign")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { w.plugin.Run(ctx) })
	runtime.awaitPlugin(t)
	w.wantText("early", overlaidText)
	for i := range 20 {
		id := fmt.Sprintf("pod-%d", i)
		w.waiting(id, nil)
		w.made(id)
		runtime.run(t, id)
		w.wantText(id, overlaidText)
	}
	w.waiting("broken", nil)
	runtime.run(t, "broken")
	runtime.run(t, "unknown")
	testutil.Equal(t, "state of a broken pod", podfile.NoMethod, w.dns("broken").State)
	runtime.end()
	w.made("broken")
	again := startRuntime(t, w.plugin.Socket, "broken")
	again.awaitPlugin(t)
	w.wantText("broken", overlaidText)
	stop()
	wg.Wait()
	again.end()
	testutil.Eventually(t, func() error { return goleak.Find(before) })
}

// If no runtime answers, the files of waiting pods record it after the grace period, and Run ends with its context.
func TestNobodyThere(t *testing.T) {
	testutil.RequireRoot(t) // a runtime's connections and their ends are the kernel's
	for name, listen := range map[string]bool{"no socket": false, "a socket that says nothing": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if listen {
				l, err := net.Listen("unix", w.plugin.Socket)
				testutil.Must(t, err)
				l.Close() // its file is gone with it
				if _, err := os.Stat(w.plugin.Socket); !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
				testutil.Must(t, os.WriteFile(w.plugin.Socket, nil, 0o600))
			}
			w.waiting("a", nil)
			var mu sync.Mutex
			at := time.Unix(1_800_000_000, 0)
			w.plugin.now = func() time.Time {
				mu.Lock()
				defer mu.Unlock()
				at = at.Add(grace / 4)
				return at
			}
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { w.plugin.Run(ctx) })
			testutil.Eventually(t, func() error {
				d := w.dns("a")
				noted := d.State == podfile.NoMethod && strings.Contains(d.Reason, "not connected to its NRI (connect to NRI: ")
				return testutil.ErrorIf(!noted, "%+v", d)
			})
			stop()
			wg.Wait()
			w.made("a")
			w.plugin.ApplyDNS("a")
			w.wantText("a", overlaidText)
		})
	}
}

// silent is for the runtime's side.
type silent struct{}

func (silent) Debugf(context.Context, string, ...any) {}
func (silent) Infof(context.Context, string, ...any)  {}
func (silent) Warnf(context.Context, string, ...any)  {}
func (silent) Errorf(context.Context, string, ...any) {}
