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

// Error codes of our own, from 100 as the specification has it. README.md explains each.
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

// env is everything ambient.
type env struct {
	stdout, stderr io.Writer
	kernel         kernel
}

func processEnv() env {
	return env{stdout: os.Stdout, stderr: os.Stderr, kernel: realKernel{}}
}

// about is printed when the plugin is run by hand, without a command. A runtime's call is spared it: reading the build
// information takes a tenth of an ADD's CPU time.
func about(command string) string {
	if command != "" {
		return ""
	}
	return "neardns CNI plugin " + version.String() + ": steers pods' DNS to the cache of their own node\n" +
		"To check a conflist: neardns validate FILE"
}

// verb is one call while it runs.
type verb struct {
	env
	name string
	args *skel.CmdArgs
	conf *Conf
	log  *slog.Logger
	pod  podArgs
	// backend is the one that the agent has chosen.
	backend rules.Kind
	stand   nodestate.HostRules // what the host's rules are, as far as anybody has told
	// outcome is what the call's one log line says about it.
	outcome []any
}

func (v *verb) say(attrs ...any) { v.outcome = append(v.outcome, attrs...) }

// run wraps a verb with what all share: parsing, a deadline, the one recover, and the one log line.
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
			err = types.NewError(types.ErrInternal, fmt.Sprintf("%s%s of %s panicked (%v): a bug, please report it with the log", messagePrefix, name, v.subject(), r), "")
		}
		v.done(started, err)
	}()
	for _, note := range conf.Notes {
		v.log.Warn("odd input", "verb", name, "container_id", args.ContainerID, "note", note)
	}
	for _, unknown := range conf.Unknown {
		v.log.Warn("key passed over", "verb", name, "container_id", args.ContainerID, "key", unknown.Error())
	}
	if confErr != nil {
		if name != "del" {
			return v.confFault(confErr)
		}
		v.say("configuration", confErr.Error())
	}
	v.chooseBackend()
	if name == "add" || name == "del" {
		defer v.lock(ctx)()
	}
	return v.explain(f(v, ctx))
}

// lock keeps calls for one container apart. Where it cannot be had the call goes on: before the node's first ADD there is no
// folder, where none can be made nothing is steered, and out of time the call itself will find out.
func (v *verb) lock(ctx context.Context) (unlock func()) {
	unlock, err := podfile.Lock(ctx, v.conf.StateDir, v.args.ContainerID)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.log.Warn("not locked", "verb", v.name, "container_id", v.args.ContainerID, "err", err)
	}
	return unlock
}

// done writes the call's line.
func (v *verb) done(started time.Time, err error) {
	level := slog.LevelInfo
	if v.name == "status" {
		level = slog.LevelDebug // CRI-O asks every few seconds
	}
	attrs := []any{"verb", v.name, "container_id", v.args.ContainerID, "iface", v.args.IfName, "pod", v.pod.String(), "duration", time.Since(started).Round(10 * time.Microsecond)}
	attrs = append(attrs, v.outcome...)
	if err != nil {
		level = slog.LevelError
		attrs = append(attrs, "err", err.Error())
	}
	v.log.Log(context.Background(), level, "done", attrs...)
}

// subject names what the call is about, for error messages: runtimes show the message alone.
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

// netns opens a pod's netns and tells whether it is our own. Rules of the host must never be taken for a pod's: both
// tables have one name.
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

// delAnyway answers a DEL that the CNI library refused before it came to us, or after: whatever was wrong with it, what
// its container had is removed, and the chain goes on.
func delAnyway(ctx context.Context, e env, getenv func(string) string, refused *types.Error) *types.Error {
	args := &skel.CmdArgs{ContainerID: getenv("CNI_CONTAINERID"), Netns: getenv("CNI_NETNS"), IfName: getenv("CNI_IFNAME"), Args: getenv("CNI_ARGS")}
	_, _ = fmt.Fprintf(e.stderr, "neardns: del goes on in spite of: %v\n", refused)
	_ = del(ctx, e, args)
	return nil
}
