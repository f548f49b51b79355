package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/neardns/neardns/integration/programs"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

// made is the binary that the tests run, as a runtime would.
var made = programs.Of("neardns")

func TestMain(m *testing.M) {
	if os.Getenv(verbsChild) != "" {
		os.Exit(verbsMain())
	}
	made.Main(m)
}

func mustBinary(t testing.TB) string {
	t.Helper()
	made.Make(t)
	return made.Path("neardns")
}

// object is a JSON object of a test.
type object = map[string]any

// cri stands in for a container runtime on one node: it runs the binary in the host's netns with the environment and the
// standard input of the CNI specification.
type cri struct {
	t       testing.TB
	host    *testutil.NetNS
	state   string
	persist string
	version string
	// wrap is a command with arguments that runs the binary.
	wrap []string
}

func newCRI(t testing.TB, host *testutil.NetNS) *cri {
	t.Helper()
	mustBinary(t)
	return &cri{t: t, host: host, state: t.TempDir(), persist: t.TempDir(), version: "1.1.0"}
}

// request is one call.
type request struct {
	Verb, ID, IfName, NetNS, Args string
	Conf                          object // merged over the runtime's own keys; a nil value takes a key out
	Stdin                         []byte // instead of Conf
}

// reply is what the runtime sees.
type reply struct {
	Stdout, Stderr string
	Err            *types.Error // nil: exit status 0
}

func (r *cri) conf(extra object) []byte {
	conf := object{
		"cniVersion": r.version, "name": "pods", "type": "neardns", "redirects": []string{"10.96.0.10"}, "steer": "always",
		"stateDir": r.state, "persistDir": r.persist, "capabilities": object{"dns": true},
	}
	for k, v := range extra {
		if conf[k] = v; v == nil {
			delete(conf, k)
		}
	}
	data, err := json.Marshal(conf)
	testutil.Must(r.t, err)
	return data
}

func (r *cri) call(q request) reply {
	r.t.Helper()
	stdin := q.Stdin
	if stdin == nil {
		stdin = r.conf(q.Conf)
	}
	if q.IfName == "" {
		q.IfName = "eth0"
	}
	args := append(append([]string{}, r.wrap...), mustBinary(r.t))
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + q.Verb, "CNI_CONTAINERID=" + q.ID, "CNI_NETNS=" + q.NetNS, "CNI_IFNAME=" + q.IfName,
		"CNI_ARGS=" + q.Args,
		"CNI_PATH=" + filepath.Dir(mustBinary(r.t)),
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	var err error
	r.host.Do(func() { err = cmd.Start() })
	if err == nil {
		err = cmd.Wait()
	}
	out := reply{Stdout: stdout.String(), Stderr: stderr.String()}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		// A runtime sees no code and no reason unless stdout is exactly one error object.
		out.Err = &types.Error{}
		if err := json.Unmarshal(stdout.Bytes(), out.Err); err != nil || out.Err.Code == 0 {
			r.t.Fatalf("%s failed without a CNI error on stdout (%v): %q\nstderr: %s", q.Verb, err, out.Stdout, out.Stderr)
		}
	case err != nil:
		r.t.Fatal(err)
	}
	return out
}

// must is call, and ends the test if the call fails.
func (r *cri) must(q request) reply {
	r.t.Helper()
	out := r.call(q)
	if out.Err != nil {
		r.t.Fatalf("%s: code %d: %v\nstderr: %s", q.Verb, out.Err.Code, out.Err, out.Stderr)
	}
	return out
}

// fails calls, and fails the test, which goes on, unless the call ends with an error that has the code and each text.
func (r *cri) fails(q request, code uint, texts ...string) {
	r.t.Helper()
	err := r.call(q).Err
	if err == nil || err.Code != code {
		r.t.Errorf("%s: error %+v, want code %d", q.Verb, err, code)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Msg, text) {
			r.t.Errorf("%s: error %+v, want one with %q", q.Verb, err, text)
		}
	}
}

// addRequest is the ADD for a pod with the given addresses.
func addRequest(id string, pod *testutil.Pod, conf object) request {
	merged := object{"prevResult": prevResult("1.1.0", pod.Path(), pod.Addrs...)}
	for k, v := range conf {
		merged[k] = v
	}
	return request{Verb: "ADD", ID: id, NetNS: pod.Path(), Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID=7c1f",
		Conf: merged}
}

func (q request) with(verb string) request {
	q.Verb = verb
	return q
}

// file reads the pod file of a container's eth0.
func (r *cri) file(id string) podfile.File {
	r.t.Helper()
	f, err := podfile.Read(podfile.Path(r.state, id, "eth0"))
	testutil.Must(r.t, err)
	return f
}

// wantDecision fails the test, which goes on, unless a pod's first decision has a state and a text in its reason.
func (r *cri) wantDecision(id string, state podfile.State, reason string) {
	r.t.Helper()
	if d := r.file(id).Decisions[0]; d.State != state || !strings.Contains(d.Reason, reason) {
		r.t.Errorf("%s: decision %+v, want %s, %q", id, d, state, reason)
	}
}

// files counts what is in the pods folder, temporary files included.
func (r *cri) files() int {
	names, _ := os.ReadDir(filepath.Join(r.state, "pods"))
	return len(names)
}

func (r *cri) wantFiles(n int) {
	r.t.Helper()
	testutil.Equal(r.t, "files", n, r.files())
}

// verify compares a netns's table with a description through the same code as the agent does.
func verify(t testing.TB, ns *testutil.NetNS, want steer.Ruleset) {
	t.Helper()
	n, err := nft.Open(ns.FD())
	testutil.Must(t, err)
	defer n.Close()
	if err := n.Verify(want); err != nil {
		t.Errorf("rules in %s: %v\n%s", ns.Name(), err, ruleset(ns))
	}
}

// ruleset is what an operator sees, without handles and counters' values.
func ruleset(ns *testutil.NetNS) string { return ns.Run("nft", "-s", "list", "ruleset") }

func wantNoTable(t testing.TB, ns *testutil.NetNS) {
	t.Helper()
	if rules := ruleset(ns); strings.Contains(rules, steer.TableName) {
		t.Errorf("%s has our table:\n%s", ns.Name(), rules)
	}
}

func redirect(clusterDNS, steering string) steer.Redirect {
	return steer.Redirect{ClusterDNS: netip.MustParseAddr(clusterDNS), Steering: netip.MustParseAddr(steering)}
}

var (
	redirect4 = redirect("10.96.0.10", "169.254.20.11")
	redirect6 = redirect("fd00:96::a", "fd00:90de:d95::b")
)

// prevResult is what a main plugin gives: the host's side without addresses, the pod's with them.
func prevResult(version, sandbox string, addrs ...netip.Addr) object {
	var ips []any
	for _, a := range addrs {
		ip := object{"address": netip.PrefixFrom(a, a.BitLen()).String(), "interface": 1}
		if version < "1" {
			if ip["version"] = "4"; !a.Is4() {
				ip["version"] = "6"
			}
		}
		ips = append(ips, ip)
	}
	return object{
		"cniVersion": version,
		"interfaces": []any{object{"name": "veth1", "mac": "0a:00:00:00:00:01"}, object{"name": "eth0", "mac": "0a:00:00:00:00:02", "sandbox": sandbox}},
		"ips":        ips,
		"routes":     []any{object{"dst": "0.0.0.0/0"}},
		"dns":        object{"nameservers": []string{"10.96.0.10"}, "search": []string{"svc.cluster.local"}},
	}
}
