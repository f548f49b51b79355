package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
)

var errInjected = errors.New("injected")

// faulty is the real kernel but for the calls that its fail names.
type faulty struct {
	realKernel
	fail func(what string) error
}

func (k faulty) Open(kind rules.Kind, nsFD int) (rules.Rules, error) {
	what := "host"
	if nsFD >= 0 {
		what = "pod"
	}
	if err := k.fail(what + " open"); err != nil {
		return nil, err
	}
	r, err := k.realKernel.Open(kind, nsFD)
	return faultyRules{r, what, k.fail}, err
}

func (k faulty) Uplinks(podSide ...string) ([]string, error) {
	if err := k.fail("uplinks"); err != nil {
		return nil, err
	}
	return k.realKernel.Uplinks(podSide...)
}

func (k faulty) Ways(podNS int, clusterDNS ...netip.Addr) []hostnet.Found {
	if err := k.fail("way"); err != nil {
		return slices.Repeat([]hostnet.Found{{Err: err}}, len(clusterDNS))
	}
	return k.realKernel.Ways(podNS, clusterDNS...)
}

type faultyRules struct {
	rules.Rules
	what string
	fail func(string) error
}

func (r faultyRules) Repair(rs steer.Ruleset) ([]string, error) {
	if err := r.fail(r.what + " repair"); err != nil {
		return nil, err
	}
	return r.Rules.Repair(rs)
}

func (r faultyRules) Ensure(rs steer.Host) error {
	if err := r.fail(r.what + " ensure"); err != nil {
		return err
	}
	return r.Rules.Ensure(rs)
}

func (r faultyRules) Remove() error {
	if err := r.fail(r.what + " remove"); err != nil {
		return err
	}
	return r.Rules.Remove()
}

func (r faultyRules) Exempt(add, gone []netip.Addr) error {
	if err := r.fail(r.what + " exempt"); err != nil {
		return err
	}
	return r.Rules.Exempt(add, gone)
}

// inProcess calls a verb in the host's netns with a kernel that fails at one point.
func inProcess(t *testing.T, r *cri, q request, fail func(string) error, verb func(context.Context, env, *skel.CmdArgs) error) (stdout, stderr string, err error) {
	t.Helper()
	var out, log bytes.Buffer
	e := env{stdout: &out, stderr: &log, kernel: faulty{fail: fail}}
	r.host.Do(func() {
		err = verb(t.Context(), e, &skel.CmdArgs{ContainerID: q.ID, Netns: q.NetNS, IfName: "eth0", Args: q.Args, StdinData: r.conf(q.Conf)})
	})
	return out.String(), log.String(), err
}

func failAt(point string) func(string) error {
	return func(what string) error {
		if what == point {
			return errInjected
		}
		return nil
	}
}

// expired is a canceled context whose deadline has passed.
type expired struct{ context.Context }

func (expired) Deadline() (time.Time, bool) { return time.Unix(0, 0), true }

func (expired) Err() error { return context.DeadlineExceeded }

// If a call is out of time, it leaves the pod unchanged, for the agent to steer. If it is called off, the pod is not steered.
func TestAddOutOfTime(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	off, cancel := context.WithCancel(t.Context())
	cancel()
	for state, ctx := range map[podfile.State]context.Context{podfile.Pending: expired{off}, podfile.LeftAlone: off} {
		q := addRequest("c1", pod, nil)
		stdout, _, err := inProcess(t, r, q, failAt("nowhere"), func(_ context.Context, e env, args *skel.CmdArgs) error { return add(ctx, e, args) })
		testutil.Must(t, err)
		wantPassed(t, reply{Stdout: stdout}, q)
		wantNoTable(t, pod.NetNS)
		r.wantDecision("c1", state, "out of time")
		r.must(q.with("DEL"))
	}
}

// So does an ADD that does not get iptables' lock: the lock will be free while the pod still runs.
func TestAddBehindLock(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	for _, point := range []string{"host ensure", "pod repair"} {
		q := addRequest("c1", pod, nil)
		stdout, _, err := inProcess(t, r, q, func(what string) error {
			if what == point {
				return fmt.Errorf("iptables-legacy-restore: %w", iptables.ErrLocked)
			}
			return nil
		}, add)
		testutil.Must(t, err)
		wantPassed(t, reply{Stdout: stdout}, q)
		wantNoTable(t, pod.NetNS)
		r.wantDecision("c1", podfile.Pending, "lock")
		r.must(q.with("DEL"))
	}
}

// If a call to the kernel fails, the pod is not steered, not even in part: ADD passes the result on and records the reason, or, with
// onUnsupported fail, returns an error and leaves no file or rule of the pod.
func TestAddNeverHalf(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	// ADD reads the uplinks only if there is no switch. "pod open" is the first of these faults with which ADD makes one.
	for _, point := range []string{"host open", "host ensure", "uplinks", "pod open", "pod repair", "way"} {
		t.Run(point, func(t *testing.T) {
			q := addRequest("c1", pod, nil)
			stdout, stderr, err := inProcess(t, r, q, failAt(point), add)
			testutil.Must(t, err)
			wantPassed(t, reply{Stdout: stdout}, q)
			wantNoTable(t, pod.NetNS)
			r.wantDecision("c1", podfile.LeftAlone, "injected")
			if !strings.Contains(stderr, "injected") {
				t.Errorf("log %q", stderr)
			}
			r.must(q.with("DEL"))

			if point == "way" || point == "uplinks" {
				return // the pod is left alone because something is unknown, which onUnsupported is not about
			}
			q.Conf["onUnsupported"] = "fail"
			stdout, _, err = inProcess(t, r, q, failAt(point), add)
			var ce *types.Error
			if !errors.As(err, &ce) || ce.Code != codeNotSteer || stdout != "" || !strings.Contains(ce.Msg, "pod shop/web-0") {
				t.Errorf("onUnsupported fail: %v, stdout %q", err, stdout)
			}
			wantNoTable(t, pod.NetNS)
			r.wantFiles(0)
		})
	}
}

// Rules of an earlier ADD go too when a later one cannot be completed.
func TestAddAgainFails(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	q := addRequest("c1", pod, nil)
	r.must(q)
	_, _, err := inProcess(t, r, q, failAt("pod repair"), add)
	testutil.Must(t, err)
	wantNoTable(t, pod.NetNS)
}

// ADD writes the pod's file before its rules: rules without a file would stay when neardns removes the switch.
func TestAddCannotWriteItsFile(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	r.state = filepath.Join(t.TempDir(), "file")
	testutil.Must(t, os.WriteFile(r.state, nil, 0o600))
	q := addRequest("c1", pod, nil)
	out := r.must(q)
	wantPassed(t, out, q)
	wantNoTable(t, pod.NetNS)
	if !strings.Contains(out.Stderr, "pod file") {
		t.Errorf("log %q", out.Stderr)
	}
	r.must(q.with("DEL"))
	q.Conf["onUnsupported"] = "fail"
	r.fails(q, codeNotSteer)
}

func TestOptOutCannotBeNoted(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	for _, point := range []string{"host open", "host ensure", "host exempt"} {
		q := addRequest("c1", pod, object{"onUnsupported": "fail", "runtimeConfig": object{keyAnnotations: object{overlay.AnnotationSteer: "false"}}})
		stdout, stderr, err := inProcess(t, r, q, failAt(point), add)
		if err != nil || !strings.Contains(stderr, "injected") {
			t.Fatalf("%s: %v, %s", point, err, stderr)
		}
		wantPassed(t, reply{Stdout: stdout}, q)
		if !r.file("c1").OptOut {
			t.Error("the agent is not told")
		}
	}
}

func TestDelNeverFails(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	for _, point := range []string{"host open", "pod open", "pod remove"} {
		q := addRequest("c1", pod, object{"runtimeConfig": object{keyAnnotations: object{overlay.AnnotationSteer: "false"}}})
		if point != "host open" {
			q = addRequest("c1", pod, nil)
		}
		r.must(q)
		stdout, stderr, err := inProcess(t, r, q, failAt(point), del)
		if err != nil || stdout != "" || !strings.Contains(stderr, "injected") {
			t.Errorf("%s: %v, stdout %q, log %q", point, err, stdout, stderr)
		}
		r.must(q.with("DEL"))
	}
}

func TestPanicIsACNIError(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	panics := func(what string) error { panic("at " + what) }
	q := addRequest("c1", pod, nil)
	stdout, stderr, err := inProcess(t, r, q, panics, add)
	var ce *types.Error
	if !errors.As(err, &ce) || ce.Code != types.ErrInternal || stdout != "" || !strings.Contains(stderr, "stack=") {
		t.Errorf("ADD: %v, stdout %q", err, stdout)
	}
	_, _, err = inProcess(t, r, q, panics, del)
	testutil.Check(t, err, "DEL")
}

// Bad input of a call gives one clear error and changes nothing.
func TestAddBadInput(t *testing.T) {
	r, node, pod := ptpNode(t, testutil.IPv4)
	regular := filepath.Join(t.TempDir(), "regular")
	testutil.Must(t, os.WriteFile(regular, nil, 0o600))
	for name, tc := range map[string]struct {
		change func(*request)
		code   uint
		want   string
	}{
		"no prevResult":         {func(q *request) { q.Conf["prevResult"] = nil }, 7, "must be called as chained plugin"},
		"prevResult unreadable": {func(q *request) { q.Conf["prevResult"] = 7 }, 6, "prevResult cannot be read"},
		"back end":              {func(q *request) { q.Conf["backend"] = "ebpf" }, 7, "backend: \"ebpf\" is not known"},
		"no redirects":          {func(q *request) { q.Conf["redirects"] = nil }, 7, "redirects: missing"},
		"netns missing":         {func(q *request) { q.NetNS = "/run/netns/none" }, codeNetNS, "/run/netns/none"},
		"netns a file":          {func(q *request) { q.NetNS = regular }, codeNetNS, "is not a network namespace"},
		"netns the host's":      {func(q *request) { q.NetNS = node.Host.Path() }, 8, ""},
		"container ID":          {func(q *request) { q.ID = "../x" }, 4, ""},
		"container ID too long": {func(q *request) { q.ID = strings.Repeat("a", 300) }, 4, "300 characters"},
		"interface":             {func(q *request) { q.IfName = "a/b" }, 4, ""},
		"version":               {func(q *request) { q.Conf["cniVersion"] = "0.2.0" }, 1, ""},
		"not JSON":              {func(q *request) { q.Stdin = []byte("{") }, 6, ""},
	} {
		t.Run(name, func(t *testing.T) {
			q := addRequest("c1", pod, nil)
			tc.change(&q)
			r.fails(q, tc.code, tc.want)
			wantNoTable(t, pod.NetNS)
			wantNoTable(t, node.Host)
			r.wantFiles(0)
		})
	}
}

// Runtimes add keys of their own to a plugin's configuration (Multus does, for networks with a device), and later ones will add more. ADD
// succeeds with unknown keys, and logs them; validate reports them to the person who wrote them.
func TestUnknownKeysFailNoPod(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	q := addRequest("c1", pod, object{"deviceID": "0000:af:00.1", "pciBusID": "0000:af:00.1", "colour": "red", "redirect": 1})
	for _, verb := range []string{"ADD", "CHECK", "STATUS", "DEL"} {
		out := r.must(q.with(verb))
		for _, want := range []string{`key="colour: unknown key: take it out`, `write \"redirects\"`} {
			if !strings.Contains(out.Stderr, want) {
				t.Errorf("%s: no line with %q: %s", verb, want, out.Stderr)
			}
		}
		if strings.Contains(out.Stderr, "deviceID") {
			t.Errorf("%s: a key that runtimes are known to add is no news: %s", verb, out.Stderr)
		}
	}
	wantNoTable(t, pod.NetNS)
	report := checkList([]byte(`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"},{"type":"neardns","redirects":["10.96.0.10"],"colour":"red"}]}`))
	if len(report.Faults) != 1 || !strings.HasPrefix(report.Faults[0], "plugins[1].colour: unknown key") {
		t.Errorf("validate finds %v, want the unknown key", report.Faults)
	}
}

// Every version of the specification, each verb that it has, with the result of each call as the next one's prevResult.
func TestEverySpecVersion(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.Dual)
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			r.version = version
			q := addRequest("c1", pod, object{"redirects": []string{"10.96.0.10", "fd00:96::a"}, "prevResult": prevResult(version, pod.Path(), pod.Addrs...)})
			out := r.must(q)
			wantPassed(t, out, q)
			verify(t, pod.NetNS, steer.Pod{Redirects: []steer.Redirect{redirect4, redirect6}})
			q.Conf["prevResult"] = json.RawMessage(out.Stdout)
			for verb, since := range map[string]string{"CHECK": "0.4.0", "STATUS": "1.1.0", "GC": "1.1.0"} {
				out := r.call(q.with(verb))
				if known := version >= since; known != (out.Err == nil) {
					t.Errorf("%s: %v", verb, out.Err)
				} else if !known && out.Err.Code != 1 {
					t.Errorf("%s: %+v", verb, out.Err)
				}
			}
			r.must(q.with("DEL"))
			wantNoTable(t, pod.NetNS)
		})
	}
	out := r.must(request{Verb: "VERSION"})
	var v struct{ SupportedVersions []string }
	if err := json.Unmarshal([]byte(out.Stdout), &v); err != nil || strings.Join(v.SupportedVersions, " ") != "0.3.1 0.4.0 1.0.0 1.1.0" {
		t.Errorf("VERSION: %s, %v", out.Stdout, err)
	}
}

// If steering fails and cannot be undone, the warning has both reasons.
func TestWarningNamesWhySteeringFailed(t *testing.T) {
	var log bytes.Buffer
	fail := func(what string) error { return fmt.Errorf("%s fails", what) }
	v := &verb{env: env{kernel: faulty{fail: fail}}, conf: &Conf{StateDir: t.TempDir()}, log: slog.New(slog.NewTextHandler(&log, nil))}
	p := &Plan{File: podfile.File{ContainerID: "pod", IfName: "eth0", Decisions: []podfile.Decision{{State: podfile.Steered}}}}
	ns, err := os.Open(os.DevNull)
	testutil.Must(t, err)
	defer ns.Close()
	testutil.Must(t, v.apply(t.Context(), p, ns))
	for _, want := range []string{"host open fails", "pod open fails"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %q in: %s", want, &log)
		}
	}
}
