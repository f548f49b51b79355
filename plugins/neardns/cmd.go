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

// Error codes of this plugin (code…) start at 100, as the CNI specification requires; README.md explains each of them. Each call has
// verbDeadline, and GC removes temporary files older than sweepOlder.
const (
	codeNetNS     = 100 // CNI_NETNS is no network namespace
	codeNotSteer  = 101 // ADD: the pod cannot be steered, and the configuration has onUnsupported: fail
	codeDrift     = 102 // CHECK: the pod's rules or resolv.conf differ from its state file, or the host has no rules
	codeState     = 103 // CHECK: the pod's state file is unreadable, or is about another network namespace
	codeGC        = 104 // GC: something could not be removed
	verbDeadline  = 5 * time.Second
	sweepOlder    = time.Minute
	ownNamespace  = "/proc/thread-self/ns/net"
	messagePrefix = "neardns: "
)

// env is what the process writes to and the kernel that it works on. Tests replace both.
type env struct {
	stdout, stderr io.Writer
	kernel         kernel
}

func processEnv() env {
	return env{stdout: os.Stdout, stderr: os.Stderr, kernel: realKernel{}}
}

// about returns the text that the plugin prints if a person runs it without CNI_COMMAND. In a runtime's call it is empty,
// because reading the build information takes a tenth of an ADD's CPU time.
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
	// backend is the kind of packet rules (nftables or iptables) that this call uses; see chooseBackend.
	backend  rules.Kind
	recorded nodestate.HostRules // description of the host's rules, as stored in the state folder; zero if none can be read
	outcome  []any               // attributes that done logs
}

func (v *verb) addOutcome(attrs ...any) { v.outcome = append(v.outcome, attrs...) }

// run does what all verbs have in common: it sets a deadline, parses the configuration, calls f, turns a panic into an error,
// and logs the result in one line.
func run(ctx context.Context, e env, name string, args *skel.CmdArgs, f func(*verb, context.Context) error) (err error) {
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, verbDeadline)
	defer cancel()
	v := &verb{env: e, name: name, args: args, pod: parseArgs(args.Args)}
	conf, confErr := parseConf(args.StdinData)
	v.conf, v.log = conf, newLog(conf, e.stderr, name)
	defer func() {
		if r := recover(); r != nil {
			v.log.Error("plugin panicked: please report", "verb", name, "container_id", args.ContainerID, "panic", r, "stack", string(debug.Stack()))
			err = failure(types.ErrInternal, "%s%s of %s panicked (%v): a bug, please report it with the log",
				messagePrefix, name, v.subject(), r)
		}
		v.done(started, err)
	}()
	for _, note := range conf.Notes {
		v.log.Warn("part of the CNI input cannot be read; this call ignores it", "verb", name, "container_id", args.ContainerID, "note", note)
	}
	for _, unknown := range conf.Unknown {
		v.log.Warn("unknown key in the plugin's conflist entry ignored", "verb", name, "container_id", args.ContainerID, "key", unknown.Error())
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

// lock serializes ADD and DEL of one container. If it cannot lock, the call goes on without a lock: before the node's first ADD
// the state folder may not exist, and if ADD cannot create that folder, it steers nothing.
func (v *verb) lock(ctx context.Context) (unlock func()) {
	unlock, err := podfile.Lock(ctx, v.conf.StateDir, v.args.ContainerID)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.log.Warn("cannot lock the container's state; this call has no lock", "verb", v.name, "container_id", v.args.ContainerID, "err", err)
	}
	return unlock
}

// failure returns an error with a CNI error code. Runtimes show its message.
func failure(code uint, format string, args ...any) *types.Error {
	return types.NewError(code, fmt.Sprintf(format, args...), "")
}

// done logs the result of the call.
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
	v.log.Log(context.Background(), level, "CNI call finished", attrs...)
}

// subject names the call's pod, container or network. explain puts it into error messages, because runtimes show only the message.
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

// explain puts v.subject in front of an error's message. It keeps a CNI error code; an error without one gets ErrInternal.
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

// netns opens a pod's netns and reports whether it is the host's. The pod table and the host's table have the same name, so no
// call may take one for the other.
func (v *verb) netns(path string) (ns *os.File, inode uint64, isHost bool, err error) {
	if ns, inode, err = podfile.OpenNetNS(path); err != nil {
		return nil, 0, false, err
	}
	if isHost, err = isHostNS(inode); err != nil {
		ns.Close()
		return nil, 0, false, err
	}
	return ns, inode, isHost, nil
}

// delAnyway runs del after the CNI library (skel) has rejected a DEL, and returns no error, so that the runtime goes on with the
// plugins earlier in the conflist. del then has no configuration: it looks for the pod's state file in the default folder.
func delAnyway(ctx context.Context, e env, getenv func(string) string, refused *types.Error) *types.Error {
	args := &skel.CmdArgs{ContainerID: getenv("CNI_CONTAINERID"), Netns: getenv("CNI_NETNS"),
		IfName: getenv("CNI_IFNAME"), Args: getenv("CNI_ARGS")}
	_, _ = fmt.Fprintf(e.stderr, "neardns: del continues despite: %v\n", refused)
	_ = del(ctx, e, args)
	return nil
}
