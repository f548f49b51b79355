// Package controlplane runs a Kubernetes control plane for tests: etcd, API server, controller manager and scheduler, the real programs as
// `make cluster` builds them, and no node. Nodes are objects, and their kubelets a few lines (Kubelets). All of it is on the loopback,
// several fit on one machine, and it ends with the test.
package controlplane

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/pkg/testutil"
)

// Patience is for what has no promised time, on a busy machine.
const Patience = 3 * time.Minute

// Plane is a running one.
type Plane struct {
	t       testing.TB
	dir     string
	bin     string // folder of Kubernetes' programs
	address string
	scheme  *runtime.Scheme
	// Client has every right.
	Client client.WithWatch
	etcd   string
	// api is the API server; RunAPIServer starts the next.
	api *Process
}

const token = "administrator"

// Start brings a control plane up, with the controllers named (as kube-controller-manager names them), and returns when its API answers.
// With scheduler it has one.
func Start(t testing.TB, scheduler bool, controllers string) *Plane {
	t.Helper()
	found, err := filepath.Glob("../../bin/tools/k8s-*/kube-apiserver")
	if err != nil || len(found) == 0 {
		t.Fatal("Kubernetes' programs are not built: make test-controller does it")
	}
	p := &Plane{t: t, dir: t.TempDir(), bin: filepath.Dir(found[len(found)-1]), address: "127.0.0.1:" + freePort(t)}
	if p.bin, err = filepath.Abs(p.bin); err != nil {
		t.Fatal(err)
	}
	p.scheme = runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, discoveryv1.AddToScheme, eventsv1.AddToScheme,
		coordinationv1.AddToScheme, authenticationv1.AddToScheme, v1alpha1.AddToScheme} {
		testutil.Must(t, add(p.scheme))
	}
	p.write("tokens.csv", token+",admin,admin,system:masters\n")
	p.write("accounts.key", key(t))
	p.etcd = "127.0.0.1:" + freePort(t)
	p.run("etcd", "--data-dir="+p.path("etcd"), "--unsafe-no-fsync", "--log-level=error", "--listen-client-urls=http://"+p.etcd,
		"--advertise-client-urls=http://"+p.etcd, "--listen-peer-urls=http://127.0.0.1:"+freePort(t))
	p.api = p.RunAPIServer()
	p.Client = p.As(token)
	p.write("kubeconfig", p.kubeconfig(token))
	common := []string{"--kubeconfig=" + p.path("kubeconfig"), "--leader-elect=false", "--kube-api-qps=1000", "--kube-api-burst=2000", "--secure-port=0"}
	p.run("kube-controller-manager", append(common, "--controllers="+controllers, "--node-monitor-grace-period="+grace.String(),
		"--service-account-private-key-file="+p.path("accounts.key"))...)
	if scheduler {
		p.run("kube-scheduler", common...)
	}
	return p
}

// RunAPIServer starts the API server and waits for it.
func (p *Plane) RunAPIServer() *Process {
	p.t.Helper()
	_, port, _ := net.SplitHostPort(p.address)
	api := p.run("kube-apiserver", "--etcd-servers=http://"+p.etcd, "--service-cluster-ip-range=10.96.0.0/16", "--bind-address=127.0.0.1",
		"--secure-port="+port, "--cert-dir="+p.path("pki"), "--token-auth-file="+p.path("tokens.csv"), "--authorization-mode=RBAC", "--allow-privileged",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+p.path("accounts.key"),
		"--service-account-signing-key-file="+p.path("accounts.key"), "--max-requests-inflight=4000", "--max-mutating-requests-inflight=2000")
	p.AwaitKubectl("get", "--raw=/readyz")
	return api
}

// As is a client with another's token.
func (p *Plane) As(token string) client.WithWatch {
	p.t.Helper()
	c, err := client.NewWithWatch(p.config(token), client.Options{Scheme: p.scheme})
	testutil.Must(p.t, err)
	return c
}

func (p *Plane) config(token string) *rest.Config {
	return &rest.Config{Host: "https://" + p.address, BearerToken: token, QPS: 1000, Burst: 2000, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

// Token is one of a service account.
func (p *Plane) Token(namespace, name string) string {
	p.t.Helper()
	hours := int64(24 * 3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &hours}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := p.Client.SubResource("token").Create(p.t.Context(), account, request); err != nil {
		p.t.Fatalf("ask for a token: %v", err)
	}
	return request.Status.Token
}

func (p *Plane) kubeconfig(token string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "https://%s", insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: %q}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
`, p.address, token)
}

// Kubeconfig writes a file that leads here with a token.
func (p *Plane) Kubeconfig(name, token string) string {
	p.t.Helper()
	p.write(name, p.kubeconfig(token))
	return p.path(name)
}

// Kubectl runs it as the administrator. The error has what it printed.
func (p *Plane) Kubectl(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(p.bin, "kubectl"), append([]string{"--server=https://" + p.address, "--token=" + token, "--insecure-skip-tls-verify",
		"--cache-dir=" + p.path("kubectl")}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// MustKubectl ends the test if the command fails.
func (p *Plane) MustKubectl(args ...string) string {
	p.t.Helper()
	out, err := p.Kubectl(args...)
	testutil.Must(p.t, err)
	return out
}

// AwaitKubectl waits until the command succeeds.
func (p *Plane) AwaitKubectl(args ...string) {
	p.t.Helper()
	Await(p.t, "kubectl "+strings.Join(args, " "), func() error {
		_, err := p.Kubectl(args...)
		return err
	})
}

// run starts a program of Kubernetes', which ends with the test at the latest.
func (p *Plane) run(name string, args ...string) *Process {
	p.t.Helper()
	return Run(p.t, p.path(name+".log"), filepath.Join(p.bin, name), args...)
}

// Process is a program that the test started.
type Process struct {
	*exec.Cmd
	Log   string
	ended chan struct{}
}

// Run starts a program, which ends with the test at the latest. Its log is shown if the test fails.
func Run(t testing.TB, log, path string, args ...string) *Process {
	t.Helper()
	file, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	testutil.Must(t, err)
	defer file.Close()
	p := &Process{Cmd: exec.Command(path, args...), Log: log, ended: make(chan struct{})}
	p.Stdout, p.Stderr, p.SysProcAttr = file, file, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	testutil.Must(t, p.Start())
	go func() {
		_ = p.Wait() // the log has the reason
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			text, _ := os.ReadFile(log)
			t.Logf("== %s\n%s", filepath.Base(log), text[max(len(text)-3000, 0):])
		}
	})
	return p
}

// Kill ends it at once and waits until it is gone.
func (p *Process) Kill() {
	_ = p.Process.Kill()
	<-p.ended
}

// Ended is closed when it has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

func (p *Plane) path(elem ...string) string {
	return filepath.Join(append([]string{p.dir}, elem...)...)
}

func (p *Plane) write(name, text string) {
	p.t.Helper()
	testutil.Must(p.t, os.WriteFile(p.path(name), []byte(text), 0o600))
}

// Await tries until f returns nil, and ends the test after Patience.
func Await(t testing.TB, what string, f func() error) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(Patience); ; <-tick.C {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not so after %s: %s: %v", Patience, what, err)
		}
	}
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func key(t testing.TB) string {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testutil.Must(t, err)
	der, err := x509.MarshalECPrivateKey(k)
	testutil.Must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}
