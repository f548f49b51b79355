// Package nri is the agent as a plugin of the container runtime's Node Resource Interface: it changes a pod's resolv.conf, as
// the CNI plugin noted it in the pod's file, where the runtime makes that file only after ADD (containerd 2).
//
// The runtime calls between a pod's sandbox and its first container, so every process of the pod sees the change. Pods that
// started while the agent was away are caught up with when it comes back; libraries read a changed file again.
//
// It must never keep a pod from starting: it answers no call with an error, asks for no adjustment, and does nothing that waits
// for anybody. What it did, or why not, stands in the pod's file. A runtime without NRI is looked for again and again.
package nri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/neardns/neardns/pkg/attached"
	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/sandbox"
	"github.com/neardns/neardns/pkg/tick"
)

const (
	// again is how long a connection that failed waits for the next attempt.
	again = 5 * time.Second
	// grace is how long a pod may wait before it is said that nobody will change its file: a runtime or an agent that is just
	// starting needs some.
	grace = 30 * time.Second
	// hostRoot is where an agent in a container sees the host's files that are not mounted into it, if it may.
	hostRoot = "/proc/1/root"
	// index orders plugins; nobody else changes this file, so ours has no meaning.
	index, name = "50", "neardns"
)

// Config is what it works by.
type Config struct {
	Log      *slog.Logger
	StateDir string   // of the pod files
	Paths    []string // where the runtime keeps a sandbox's resolv.conf, as sandbox.CheckPattern wants them
	Socket   string   // of the runtime's NRI
}

// Plugin lays overlays. All methods may be called at the same time.
type Plugin struct {
	Config
	now   func() time.Time
	again time.Duration // see the constant

	mu      sync.Mutex // guards the fields below
	pods    map[string]attached.Pod
	settled bool // the runtime has told of its pods, or there is none to tell
}

// New makes one. Nothing happens before Run.
func New(c Config) *Plugin {
	return &Plugin{Config: c, now: time.Now, again: again, pods: map[string]attached.Pod{}}
}

// Pods are those that the runtime told of, by container ID. settled is false while nobody knows yet whether it will tell.
func (p *Plugin) Pods() (pods map[string]attached.Pod, settled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.pods), p.settled
}

// note keeps what the runtime says of a pod. It names no interface, but a pod's first one has one name with all runtimes.
func (p *Plugin) note(pod *api.PodSandbox) {
	a := attached.Pod{ContainerID: pod.GetId(), IfName: "eth0", Namespace: pod.GetNamespace(), Name: pod.GetName(), UID: pod.GetUid(),
		Annotations: map[string]string{}}
	maps.Copy(a.Annotations, pod.GetAnnotations())
	for _, ns := range pod.GetLinux().GetNamespaces() {
		if ns.GetType() == "network" {
			a.NetNS = ns.GetPath()
		}
	}
	for _, ip := range pod.GetIps() {
		if addr, err := netip.ParseAddr(ip); err == nil {
			a.Addresses = append(a.Addresses, addr.Unmap())
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods[a.ContainerID] = a
}

func (p *Plugin) settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settled = true
}

// Run stays connected to the runtime until ctx ends.
func (p *Plugin) Run(ctx context.Context) {
	away := p.now() // since when nobody is connected
	said := ""
	for ctx.Err() == nil {
		began := p.now()
		err := p.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		p.settle()
		var late *connectError
		if !errors.As(err, &late) {
			away = p.now() // it was connected until now
			p.Log.Warn("the runtime's NRI is gone", "err", err, "after", p.now().Sub(began))
		} else if text := err.Error(); text != said {
			said = text
			p.Log.Debug("not connected to the runtime's NRI", "err", err) // who needs it is told for each pod
		}
		if p.now().Sub(away) >= grace {
			p.giveUp(err)
		}
		tick.Pause(ctx, p.again)
	}
}

// connectError says that there was no connection at all.
type connectError struct{ err error }

func (e *connectError) Error() string { return e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

// serve connects once and serves until the connection or ctx ends.
func (p *Plugin) serve(ctx context.Context) error {
	conn, err := p.dial(ctx)
	if err != nil {
		return &connectError{fmt.Errorf("connect to NRI: %w", err)}
	}
	defer conn.Close()
	s, err := stub.New(handler{p}, stub.WithPluginName(name), stub.WithPluginIdx(index), stub.WithConnection(conn), stub.WithLogger(logger{p.Log}))
	if err != nil {
		return &connectError{fmt.Errorf("prepare NRI plugin: %w", err)}
	}
	if err := start(ctx, s); err != nil {
		return &connectError{fmt.Errorf("register with NRI at %s: %w", p.Socket, err)}
	}
	p.Log.Info("connected to the runtime's NRI", "addr", p.Socket)
	done := make(chan struct{})
	go func() {
		s.Wait()
		close(done)
	}()
	select {
	case <-done:
		return errors.New("the runtime ended the connection")
	case <-ctx.Done():
		s.Stop()
		<-done
		return ctx.Err()
	}
}

// start registers. The library waits without end for a runtime that takes the registration and then says nothing more; such
// an attempt is given up, and what it holds ends with the connection.
func start(ctx context.Context, s stub.Stub) error {
	ctx, cancel := context.WithTimeout(ctx, stub.DefaultRegistrationTimeout)
	defer cancel()
	started := make(chan error, 1)
	go func() { started <- s.Start(context.WithoutCancel(ctx)) }()
	select {
	case err := <-started:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *Plugin) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", p.Socket)
	if errors.Is(err, fs.ErrNotExist) {
		if rooted, rootErr := d.DialContext(ctx, "unix", hostRoot+p.Socket); rootErr == nil {
			return rooted, nil
		}
	}
	return conn, err
}

// handler is what the runtime calls. No call is ever answered with an error: that would fail the pod.
type handler struct{ plugin *Plugin }

// Synchronize is the first call of a connection and names the pods that run.
func (h handler) Synchronize(_ context.Context, pods []*api.PodSandbox, _ []*api.Container) ([]*api.ContainerUpdate, error) {
	h.plugin.mu.Lock()
	clear(h.plugin.pods)
	h.plugin.mu.Unlock()
	for _, pod := range pods {
		h.plugin.note(pod)
		h.plugin.Lay(pod.GetId())
	}
	h.plugin.settle()
	return nil, nil
}

// RemovePodSandbox is the last call about a pod.
func (h handler) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	h.plugin.mu.Lock()
	defer h.plugin.mu.Unlock()
	delete(h.plugin.pods, pod.GetId())
	return nil
}

// RunPodSandbox comes behind CNI's ADD and before the pod's containers.
func (h handler) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	h.plugin.note(pod)
	h.plugin.Lay(pod.GetId())
	return nil
}

// Lay does what the files of a sandbox's attachments wait for.
func (p *Plugin) Lay(sandboxID string) {
	if podfile.CheckKey(sandboxID, "x") != nil {
		return // no such pod has a file
	}
	files, errs := podfile.Siblings(p.StateDir, sandboxID, "")
	for _, err := range errs {
		p.Log.Warn("pod file unreadable", "container_id", sandboxID, "err", err)
	}
	for _, f := range files {
		if waits(f) {
			p.amend(f, p.lay)
		}
	}
}

func waits(f podfile.File) bool {
	return f.DNS != nil && f.DNS.Overlay != nil && (f.DNS.State == podfile.Waiting || f.DNS.State == podfile.NoLever)
}

// amend changes the settings in a pod's file and says what became of them.
func (p *Plugin) amend(f podfile.File, change func(id string, d *podfile.DNS)) {
	log := p.Log.With("pod", f.PodNamespace+"/"+f.PodName, "container_id", f.ContainerID)
	err := podfile.Amend(p.StateDir, f.ContainerID, f.IfName, func(now *podfile.File) bool {
		if !waits(*now) {
			return false // another agent was faster
		}
		before := now.DNS.State
		change(f.ContainerID, now.DNS)
		if now.DNS.State == before {
			return false
		}
		if now.DNS.State == podfile.Overlaid {
			log.Info("overlay laid", "lever", now.DNS.Lever, "path", now.DNS.Path)
		} else {
			log.Warn("overlay not laid", "state", now.DNS.State, "why", now.DNS.Reason)
		}
		return true
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // gone with its pod
		log.Warn("pod file not amended", "err", err)
	}
}

// lay changes the file. It may be called again after a failure between the file and the note: twice is as once.
func (p *Plugin) lay(id string, d *podfile.DNS) {
	fail := func(err error) {
		d.State, d.Lever, d.Reason = podfile.Failed, podfile.LeverNRI, err.Error()
	}
	file, err := p.find(id)
	if errors.Is(err, fs.ErrNotExist) {
		d.State, d.Reason = podfile.NoLever, fmt.Sprintf("%v: name its place in resolvConf.paths, and mount it into the agent", err)
		return
	}
	if err != nil {
		fail(err)
		return
	}
	own, _ := resolvconf.Parse(file.Text).Settings() // a nameserver line without an address names nobody
	excess := resolvconf.Truncate
	if d.Refuse {
		excess = resolvconf.Refuse
	}
	laid := overlay.Relay(d.Overlay, own, d.Limits, excess)
	if laid.Refused != nil {
		fail(laid.Refused)
		return
	}
	text, err := resolvconf.Parse(file.Text).With(laid.Settings)
	if err == nil {
		err = file.Write(text.Bytes())
	}
	if err != nil {
		fail(err)
		return
	}
	d.State, d.Lever, d.Reason = podfile.Overlaid, podfile.LeverNRI, ""
	d.Settings, d.Notes, d.Path = laid.Settings, laid.Notes, strings.TrimPrefix(file.Path, hostRoot)
}

// find reads the sandbox's file where it is mounted into the agent's container, else where only the host has it.
func (p *Plugin) find(id string) (sandbox.File, error) {
	file, err := sandbox.Find(p.Paths, id)
	if !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	var rooted []string
	for _, path := range p.Paths {
		rooted = append(rooted, hostRoot+path)
	}
	if file, rootedErr := sandbox.Find(rooted, id); rootedErr == nil {
		return file, nil
	}
	return file, err
}

// giveUp notes in the files of pods that wait that nobody will come, until somebody does.
func (p *Plugin) giveUp(why error) {
	files, _ := podfile.List(p.StateDir) // the registry names those that cannot be read
	for _, f := range files {
		if !waits(f) || f.DNS.State == podfile.NoLever {
			continue
		}
		p.amend(f, func(_ string, d *podfile.DNS) {
			d.State, d.Reason = podfile.NoLever, fmt.Sprintf("the runtime makes the pod's resolv.conf after ADD, and the agent is not connected to its NRI (%v)", why)
		})
	}
}

// logger passes the library's words on. Per pod it says what we say better.
type logger struct{ log *slog.Logger }

func (l logger) Debugf(ctx context.Context, format string, args ...any) { l.say(ctx, format, args) }
func (l logger) Infof(ctx context.Context, format string, args ...any)  { l.say(ctx, format, args) }
func (l logger) Warnf(ctx context.Context, format string, args ...any)  { l.say(ctx, format, args) }
func (l logger) Errorf(ctx context.Context, format string, args ...any) { l.say(ctx, format, args) }

func (l logger) say(ctx context.Context, format string, args []any) {
	l.log.Log(ctx, slog.LevelDebug, "nri", "note", fmt.Sprintf(format, args...))
}
