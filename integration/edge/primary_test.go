package edge_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// readyPrimary is fleet/install/primary, its programs run as its pod runs them, but for paths.
type readyPrimary struct {
	t      *testing.T
	ns     *testutil.NetNS
	folder string // in the volume's place
	env    []string
	setup  []string // the init container's command
	named  []string
	server *testutil.Process
}

const primaryManifests = "../../fleet/install/primary/"

func newReadyPrimary(t *testing.T, ns *testutil.NetNS) *readyPrimary {
	t.Helper()
	read := func(name string) string { return testutil.ReadFile(t, primaryManifests+name) }
	scripts := t.TempDir()
	p := &readyPrimary{t: t, ns: ns, folder: filepath.Join(scripts, "data")}
	testutil.Must(t, os.Chmod(filepath.Dir(scripts), 0o755)) // the other user has to get there
	testutil.Must(t, os.Mkdir(p.folder, 0o700))
	testutil.Must(t, os.Chown(p.folder, podUser, podUser))
	for _, name := range []string{"setup.sh", "name-servers.sh"} {
		testutil.Must(t, os.WriteFile(filepath.Join(scripts, name), []byte(read(name)), 0o644))
	}
	type container struct {
		Command []string
		Env     []struct{ Name, Value string }
	}
	var set struct {
		Spec struct {
			Template struct {
				Spec struct {
					SecurityContext            struct{ RunAsUser int }
					InitContainers, Containers []container
				}
			}
		}
	}
	paths := strings.NewReplacer("/var/lib/neardns-primary", p.folder, "/scripts", scripts)
	testutil.Must(t, yaml.Unmarshal([]byte(paths.Replace(read("statefulset.yaml"))), &set))
	pod := set.Spec.Template.Spec
	if pod.SecurityContext.RunAsUser != podUser {
		t.Errorf("the pod runs as %d", pod.SecurityContext.RunAsUser)
	}
	p.setup, p.named = pod.InitContainers[0].Command, pod.Containers[0].Command
	p.env = append(p.env, "PATH="+os.Getenv("PATH")+":/usr/sbin")
	for _, e := range pod.Containers[0].Env {
		p.env = append(p.env, e.Name+"="+e.Value)
	}
	for line := range strings.Lines(read("primary.env")) {
		if !strings.HasPrefix(line, "#") {
			p.env = append(p.env, strings.TrimSpace(line))
		}
	}
	return p
}

// podUser is the user and group that the pod runs as.
const podUser = 65532

// command is what runs in the pod: as its user, without capabilities.
func (p *readyPrimary) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(p.t.Context(), args[0], args[1:]...)
	cmd.Env, cmd.Dir = p.env, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: podUser, Gid: podUser}}
	return cmd
}

// run runs a command in the pod to its end.
func (p *readyPrimary) run(args ...string) {
	p.t.Helper()
	var out []byte
	var err error
	p.ns.Do(func() { out, err = p.command(args...).CombinedOutput() })
	if err != nil {
		p.t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

// start makes the pod, or restarts it.
func (p *readyPrimary) start() {
	p.t.Helper()
	if p.server != nil {
		p.server.Kill()
	}
	p.run(p.setup...)
	p.server = p.ns.StartCmd(p.command(p.named...))
	testutil.Eventually(p.t, func() error {
		got, err := p.ns.TryRun("", "dig", "+short", "-p", "5353", "@192.0.2.53", "shared.example", "SOA")
		return testutil.ErrorIf(err != nil || got == "", "SOA: %q, %w\n%s", got, err, p.server.Output())
	})
}

// secret reads the Secret that setup made for a cluster or the edges: its text, and one of its values.
func (p *readyPrimary) secret(of, value string) (text, found string) {
	p.t.Helper()
	text = testutil.ReadFile(p.t, filepath.Join(p.folder, "shared.example", of+".yaml"))
	var s struct{ StringData map[string]string }
	testutil.Must(p.t, yaml.Unmarshal([]byte(text), &s))
	return text, s.StringData[value]
}

// publish has the controller publish app.shared.example by the cluster's own key.
func (p *readyPrimary) publish(cluster, address string) {
	p.t.Helper()
	text, _ := p.secret(cluster, "")
	file := filepath.Join(p.t.TempDir(), "zone.yaml")
	testutil.Must(p.t, os.WriteFile(file, []byte(text+`---
apiVersion: neardns.io/v1alpha1
kind: DNSZone
metadata: {name: shared}
spec:
  zone: shared.example
  primary: 192.0.2.53:5353
  tsig: {secretName: shared-key}
  publishers:
  - {namespaces: ["*"], hosts: ["*.shared.example"], targets: [203.0.113.0/24]}
---
apiVersion: neardns.io/v1alpha1
kind: DNSRecord
metadata: {name: app, namespace: default}
spec: {host: app.shared.example, addresses: [`+address+`]}
`), 0o600))
	p.ns.Run(made.Path("neardns-controller"), "zones", "publish", "--file", file, "--cluster-id", cluster, "--once")
}

// TestReadyPrimary: fleet/install/primary needs no server of one's own. Its keys let two clusters write one host, two edges become the
// zone's name servers by one command, and a new pod with one more cluster keeps keys and zone.
func TestReadyPrimary(t *testing.T) {
	t.Parallel()
	zoneserver.Require(t, zoneserver.BIND)
	made.Make(t)
	edges := []string{edgeAt, "192.0.2.11"}
	p := newReadyPrimary(t, node(t, "192.0.2.53/32", edges[0]+"/32", edges[1]+"/32"))
	p.start()
	p.publish("k1x9m2qa", "203.0.113.1")
	p.publish("7hw3zp0c", "203.0.113.2")
	const primary = "192.0.2.53 -p 5353"
	wantAnswers := func(at, kind, name string, want ...string) {
		t.Helper()
		testutil.Eventually(t, func() error {
			out, err := p.ns.TryRun("", slices.Concat([]string{"dig", "+short", name, kind}, strings.Fields("@"+at))...)
			got := strings.Fields(out)
			if slices.Sort(got); err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("%s %s: %v, want %v", name, kind, got, want)
			}
			return err
		})
	}
	wantAnswers(primary, "A", "app.shared.example.", "203.0.113.1", "203.0.113.2")
	wantAnswers(primary, "NS", "shared.example.", "ns1.shared.example.")
	wantAnswers(primary, "A", "ns1.shared.example.", "192.0.2.53")

	_, name := p.secret("edge", "name")
	_, secret := p.secret("edge", "secret")
	p.run("/bin/sh", filepath.Join(filepath.Dir(p.folder), "name-servers.sh"), "edge1="+edges[0], "edge2="+edges[1])
	for _, at := range edges {
		e := configureOf(t, p.ns, at, source{"shared.example.", netip.MustParseAddrPort("192.0.2.53:5353"), name, secret}, "")
		e.run()
		wantAnswers(at, "NS", "shared.example.", "edge1.shared.example.", "edge2.shared.example.")
		wantAnswers(at, "A", "edge2.shared.example.", edges[1])
		wantAnswers(at, "A", "ns1.shared.example.")
		wantAnswers(at, "A", "app.shared.example.", "203.0.113.1", "203.0.113.2")
	}

	for i, e := range p.env {
		if strings.HasPrefix(e, "CLUSTERS=") {
			p.env[i] += " newhere0"
		}
	}
	p.start()
	if _, again := p.secret("edge", "secret"); again != secret || secret == "" {
		t.Error("a new pod made another key")
	}
	p.publish("newhere0", "203.0.113.3")
	p.publish("k1x9m2qa", "203.0.113.1")
	wantAnswers(primary, "A", "app.shared.example.", "203.0.113.1", "203.0.113.2", "203.0.113.3")
	wantAnswers(primary, "NS", "shared.example.", "edge1.shared.example.", "edge2.shared.example.")
}

// TestReadyPrimarysRules: the ready primary allows each key what the documented configuration allows it.
func TestReadyPrimarysRules(t *testing.T) {
	parts, err := zoneserver.Example(zoneserver.BIND)
	testutil.Must(t, err)
	policy := func(text string) string {
		_, text, _ = strings.Cut(text, "update-policy {")
		text, _, _ = strings.Cut(text, "};")
		return strings.ReplaceAll(text, "$ZONE", "shared.example")
	}
	if got, want := policy(testutil.ReadFile(t, primaryManifests+"setup.sh")), policy(parts[0].Text); got != want || len(want) < 100 {
		t.Errorf("setup.sh has\n%s\nthe document has\n%s", got, want)
	}
}
