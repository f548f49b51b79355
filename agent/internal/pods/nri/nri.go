// Package nri makes the agent a plugin of the container runtime's Node Resource Interface (NRI), in order to apply pods' DNS settings
// with runtimes that write a pod's resolv.conf only after ADD (containerd 2). The CNI plugin writes the wanted changes into the pod's
// file, and this package changes resolv.conf.
//
// The runtime calls it between the creation of the pod's sandbox and the start of the first container, so every process of the pod sees the
// change. When the agent connects after an absence, it changes resolv.conf of pods that started meanwhile; most resolver libraries read a
// changed file again.
//
// On failure: the pod still starts. No call from the runtime gets an error or an adjustment as its answer. The pod's file records the
// change, or the reason why there was none. If the runtime offers no NRI, Run tries to connect again every 5 s.
package nri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/sandbox"
	"github.com/neardns/neardns/pkg/tick"
)

const (
	// reconnectDelay is the pause before the next attempt to connect.
	reconnectDelay = 5 * time.Second
	// grace is how long the agent may be disconnected before it records, in the files of pods whose DNS settings wait to be applied, that
	// there is no method to apply them. A runtime or an agent that is just starting needs some time to connect.
	grace = 30 * time.Second
	// hostRoot is where an agent in a container sees the host's files, if it has the permission. The agent uses this path for files that
	// are not mounted into its container.
	hostRoot = "/proc/1/root"
	// index is the plugin's place in the order of NRI plugins. Any value works, because this plugin requests no adjustment.
	index, name = "50", "neardns"
)

// Config configures a Plugin.
type Config struct {
	Log      *slog.Logger
	StateDir string   // state folder, which has the folder of the pod files
	Paths    []string // patterns of the paths where the runtime keeps a sandbox's resolv.conf (sandbox.CheckPattern)
	Socket   string   // path of the runtime's NRI socket
}

// Plugin changes pods' resolv.conf as their pod files demand. All methods are safe for concurrent use.
type Plugin struct {
	Config
	now            func() time.Time
	reconnectDelay time.Duration // see the constant
}

// New makes a Plugin, which connects to the runtime when Run is called.
func New(c Config) *Plugin {
	return &Plugin{Config: c, now: time.Now, reconnectDelay: reconnectDelay}
}

// Run keeps the agent connected to the runtime's NRI until ctx ends.
func (p *Plugin) Run(ctx context.Context) {
	disconnected := p.now() // since when there is no connection
	lastLogged := ""
	for ctx.Err() == nil {
		began := p.now()
		err := p.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		if !errors.As(err, new(*connectError)) {
			disconnected = p.now() // the connection lasted until now
			p.Log.Warn("lost the connection to the runtime's NRI; will retry", "err", err, "lasted", p.now().Sub(began))
		} else if text := err.Error(); text != lastLogged {
			lastLogged = text
			p.Log.Debug("cannot connect to the runtime's NRI; will retry", "err", err) // recordNoNRI logs a warning for each pod that needs NRI
		}
		if p.now().Sub(disconnected) >= grace {
			p.recordNoNRI(err)
		}
		tick.Pause(ctx, p.reconnectDelay)
	}
}

// connectError means that the agent could not connect to the runtime.
type connectError struct{ err error }

func (e *connectError) Error() string { return e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

// serve connects once, and handles the runtime's calls until the connection or ctx ends. It always returns an error.
func (p *Plugin) serve(ctx context.Context) error {
	conn, err := p.dial(ctx)
	if err != nil {
		return &connectError{fmt.Errorf("connect to NRI: %w", err)}
	}
	defer conn.Close()
	s, err := stub.New(handler{p}, stub.WithPluginName(name), stub.WithPluginIdx(index), stub.WithConnection(conn),
		stub.WithLogger(logger{p.Log}))
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

// start registers the plugin, with a timeout: the library would wait forever for a runtime that accepts the registration and then sends
// nothing. The library's goroutine ends when the caller closes the connection.
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

// handler has the methods that the runtime calls. None returns an error, because an error would make the pod fail.
type handler struct{ plugin *Plugin }

// Synchronize is called after each connection, with the list of the running pods.
func (h handler) Synchronize(_ context.Context, pods []*api.PodSandbox, _ []*api.Container) ([]*api.ContainerUpdate, error) {
	for _, pod := range pods {
		h.plugin.ApplyDNS(pod.GetId())
	}
	return nil, nil
}

// RunPodSandbox is called after CNI's ADD and before the pod's containers start.
func (h handler) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	h.plugin.ApplyDNS(pod.GetId())
	return nil
}

// ApplyDNS applies the DNS settings that wait in a sandbox's pod files to its resolv.conf.
func (p *Plugin) ApplyDNS(sandboxID string) {
	if podfile.CheckKey(sandboxID, "x") != nil {
		return // no pod file can have such an ID
	}
	files, errs := podfile.Siblings(p.StateDir, sandboxID, "")
	for _, err := range errs {
		p.Log.Warn("cannot read a state file of the pod; DNS settings in it are not applied", "container_id", sandboxID, "err", err)
	}
	for _, f := range files {
		if isWaiting(f) {
			p.amendDNS(f, p.applyOverlay)
		}
	}
}

// isWaiting reports whether a pod's DNS settings have not been applied yet and still may be.
func isWaiting(f podfile.File) bool {
	return f.DNS != nil && f.DNS.Overlay != nil && (f.DNS.State == podfile.Waiting || f.DNS.State == podfile.NoMethod)
}

// amendDNS changes the DNS part of a pod's file by calling change, and logs the result. It does nothing if the settings have been applied
// meanwhile.
func (p *Plugin) amendDNS(f podfile.File, change func(id string, d *podfile.DNS)) {
	log := p.Log.With("pod", f.PodNamespace+"/"+f.PodName, "container_id", f.ContainerID)
	err := podfile.Amend(p.StateDir, f.ContainerID, f.IfName, func(now *podfile.File) bool {
		if !isWaiting(*now) {
			return false // another agent has applied them meanwhile
		}
		before := now.DNS.State
		change(f.ContainerID, now.DNS)
		if now.DNS.State == before {
			return false
		}
		if now.DNS.State == podfile.Overlaid {
			log.Info("pod's DNS settings applied to its resolv.conf", "method", now.DNS.Method, "path", now.DNS.Path)
		} else {
			log.Warn("pod's DNS settings not applied", "state", now.DNS.State, "reason", now.DNS.Reason)
		}
		return true
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // if the file does not exist, the pod is gone
		log.Warn("cannot record in the pod's state file whether its DNS settings were applied", "err", err)
	}
}

// applyOverlay applies d's DNS settings to the resolv.conf of the sandbox id, and records the result in d. It is idempotent, because the
// agent may be killed after it changed resolv.conf and before it wrote the pod's file.
func (p *Plugin) applyOverlay(id string, d *podfile.DNS) {
	fail := func(err error) {
		d.State, d.Method, d.Reason = podfile.Failed, podfile.MethodNRI, err.Error()
	}
	file, err := p.find(id)
	if errors.Is(err, fs.ErrNotExist) {
		d.State, d.Reason = podfile.NoMethod, fmt.Sprintf("%v: add its path to resolvConf.paths, and mount it into the agent", err)
		return
	}
	if err != nil {
		fail(err)
		return
	}
	own, _ := resolvconf.Parse(file.Text).Settings() // a nameserver line without an address is ignored
	applied, err := d.Overlay.Apply(own)
	if err != nil {
		fail(err)
		return
	}
	text, err := resolvconf.Parse(file.Text).With(applied.Settings)
	if err == nil {
		err = file.Write(text.Bytes())
	}
	if err != nil {
		fail(err)
		return
	}
	d.State, d.Method, d.Reason = podfile.Overlaid, podfile.MethodNRI, ""
	d.Settings, d.Notes, d.Path = applied.Settings, applied.Notes, strings.TrimPrefix(file.Path, hostRoot)
}

// find reads the sandbox's resolv.conf at the path where it is mounted into the agent's container, or else below the host's root.
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

// recordNoNRI records, in the files of pods whose DNS settings wait to be applied, that the agent is not connected to NRI. After a later
// connection, the agent still applies them.
func (p *Plugin) recordNoNRI(why error) {
	files, _ := podfile.List(p.StateDir) // package pods reports unreadable files
	for _, f := range files {
		if !isWaiting(f) || f.DNS.State == podfile.NoMethod {
			continue
		}
		p.amendDNS(f, func(_ string, d *podfile.DNS) {
			d.State = podfile.NoMethod
			d.Reason = fmt.Sprintf("the runtime makes the pod's resolv.conf after ADD, and the agent is not connected to its NRI (%v)", why)
		})
	}
}

// logger logs all messages of the NRI library at debug level, because the plugin's own messages about each pod are clearer.
type logger struct{ log *slog.Logger }

func (l logger) Debugf(ctx context.Context, format string, args ...any) { l.debug(ctx, format, args) }
func (l logger) Infof(ctx context.Context, format string, args ...any)  { l.debug(ctx, format, args) }
func (l logger) Warnf(ctx context.Context, format string, args ...any)  { l.debug(ctx, format, args) }
func (l logger) Errorf(ctx context.Context, format string, args ...any) { l.debug(ctx, format, args) }

func (l logger) debug(ctx context.Context, format string, args []any) {
	l.log.Log(ctx, slog.LevelDebug, "message from the NRI library", "text", fmt.Sprintf(format, args...))
}
