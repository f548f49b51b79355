package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/version"
)

// Our own error codes start at 100, as the CNI specification requires. README.md explains each.
const (
	codeNetNS     = 100 // CNI_NETNS is no network namespace
	codeNotSteer  = 101 // the pod cannot be steered, and onUnsupported is fail
	codeDrift     = 102 // CHECK: the pod table is not what it should be
	codeState     = 103 // CHECK: the pod file cannot be used
	codeGC        = 104 // GC: something could not be removed
	verbDeadline  = 5 * time.Second
	sweepOlder    = time.Minute
	ownNamespace  = "/proc/thread-self/ns/net"
	messagePrefix = "neardns: "
)

// env is the process's environment: its output and the kernel.
type env struct {
	stdout, stderr io.Writer
	kernel         kernel
}

func processEnv() env {
	return env{stdout: os.Stdout, stderr: os.Stderr, kernel: realKernel{}}
}

// about returns the text for a person who runs the plugin without a command. A runtime's call does not get it, because reading the build
// information takes a tenth of an ADD's CPU time.
func about(command string) string {
	if command != "" {
		return ""
	}
	return "neardns CNI plugin " + version.String() + ": steers pods' DNS to the cache of their own node\n" +
		"To check a conflist: neardns validate FILE"
}

// verb is one CNI call (ADD, DEL, CHECK, GC or STATUS) while it runs.
type verb struct {
	env
	name string
	args *skel.CmdArgs
	conf *Conf
	log  *slog.Logger
	pod  podArgs
	// backend is the one that the agent chose.
	backend rules.Kind
	stand   nodestate.HostRules // the host's rules as recorded on the node
	outcome []any               // attributes of the call's one log line
}

func (v *verb) addOutcome(attrs ...any) { v.outcome = append(v.outcome, attrs...) }

// run calls a verb with what all verbs share: parsing, a deadline, one recover, and one log line.
func run(ctx context.Context, e env, name string, args *skel.CmdArgs, f func(*verb, context.Context) error) (err error) {
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, verbDeadline)
	defer cancel()
	v := &verb{env: e, name: name, args: args, pod: parseArgs(args.Args)}
	conf, confErr := parseConf(args.StdinData)
	v.conf, v.log = conf, newLog(conf, e.stderr, name)
	defer func() {
		if r := recover(); r != nil {
			v.log.Error("panic", "verb", name, "container_id", args.ContainerID, "panic", r, "stack", string(debug.Stack()))
			err = failure(types.ErrInternal, "%s%s of %s panicked (%v): a bug, please report it with the log",
				messagePrefix, name, v.subject(), r)
		}
		v.done(started, err)
	}()
	for _, note := range conf.Notes {
		v.log.Warn("part of the CNI input cannot be read; ignored", "verb", name, "container_id", args.ContainerID, "note", note)
	}
	for _, unknown := range conf.Unknown {
		v.log.Warn("unknown key ignored", "verb", name, "container_id", args.ContainerID, "key", unknown.Error())
	}
	if confErr != nil {
		if name != "del" {
			return v.confFault(confErr)
		}
		v.addOutcome("configuration", confErr.Error())
	}
	v.chooseBackend()
	if name == "add" || name == "del" {
		defer v.lock(ctx)()
	}
	return v.explain(f(v, ctx))
}

// lock serialises the calls for one container. If the lock fails, the call goes on: before the node's first ADD there is no folder, if
// none can be made nothing is steered, and if time is up the call itself notices.
func (v *verb) lock(ctx context.Context) (unlock func()) {
	unlock, err := podfile.Lock(ctx, v.conf.StateDir, v.args.ContainerID)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.log.Warn("not locked", "verb", v.name, "container_id", v.args.ContainerID, "err", err)
	}
	return unlock
}

// failure is the error that the runtime shows.
func failure(code uint, format string, args ...any) *types.Error {
	return types.NewError(code, fmt.Sprintf(format, args...), "")
}

// done writes the call's log line.
func (v *verb) done(started time.Time, err error) {
	level := slog.LevelInfo
	if v.name == "status" {
		level = slog.LevelDebug // CRI-O calls STATUS every few seconds
	}
	attrs := []any{"verb", v.name, "container_id", v.args.ContainerID, "iface", v.args.IfName, "pod", v.pod.String(),
		"duration", time.Since(started).Round(10 * time.Microsecond)}
	attrs = append(attrs, v.outcome...)
	if err != nil {
		level = slog.LevelError
		attrs = append(attrs, "err", err.Error())
	}
	v.log.Log(context.Background(), level, "done", attrs...)
}

// subject names the call's pod, container or network for error messages, because runtimes show only the message.
func (v *verb) subject() string {
	if name := v.pod.String(); name != "" {
		return "pod " + name
	}
	if v.args.ContainerID != "" {
		return "container " + v.args.ContainerID
	}
	return "network " + v.conf.Name
}

func (v *verb) confFault(err error) error {
	var ce *confError
	if !errors.As(err, &ce) {
		return err
	}
	return types.NewError(ce.Code, messagePrefix+"configuration of network "+v.conf.Name+": "+ce.Error(), "")
}

// explain puts the subject in front of an error's message and keeps its code.
func (v *verb) explain(err error) error {
	var te *types.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &te):
		return types.NewError(te.Code, messagePrefix+v.subject()+": "+te.Msg, te.Details)
	}
	return types.NewError(types.ErrInternal, messagePrefix+v.subject()+": "+err.Error(), "")
}

// netns opens a pod's netns and reports whether it is the host's. The host's rules must never be mistaken for a pod's: both tables have
// the same name.
func (v *verb) netns(path string) (ns *os.File, inode uint64, isHost bool, err error) {
	if ns, inode, err = podfile.OpenNetNS(path); err != nil {
		return nil, 0, false, err
	}
	own, ownInode, err := podfile.OpenNetNS(ownNamespace)
	if err != nil {
		ns.Close()
		return nil, 0, false, err
	}
	own.Close()
	return ns, inode, inode == ownInode, nil
}

// delAnyway handles a DEL that the CNI library rejected before or after our code: it removes what the container had, and the chain goes
// on.
func delAnyway(ctx context.Context, e env, getenv func(string) string, refused *types.Error) *types.Error {
	args := &skel.CmdArgs{ContainerID: getenv("CNI_CONTAINERID"), Netns: getenv("CNI_NETNS"),
		IfName: getenv("CNI_IFNAME"), Args: getenv("CNI_ARGS")}
	_, _ = fmt.Fprintf(e.stderr, "neardns: del continues despite: %v\n", refused)
	_ = del(ctx, e, args)
	return nil
}
