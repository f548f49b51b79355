package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// machine is one guest.
type machine struct {
	options   options
	arch      arch
	kernel    kernel
	root      string // the host's folder that is the guest's root
	module    string // the module's folder
	initramfs string
	console   string // file for the output of this guest's kernel
}

// Names of the shared folders and of the port that carries the events.
const (
	rootTag    = "root"
	moduleTag  = "module"
	eventsPort = "neardns.events"
)

// args are qemu's. The guest has no disk and no network: a root folder that it cannot write, a console and a port, which is
// qemu's standard input and output.
func (m machine) args() []string {
	return []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", m.arch.board, "-accel", m.options.accel, "-cpu", m.cpuModel(), "-smp", strconv.Itoa(m.options.cpus), "-m", strconv.Itoa(m.options.memory),
		"-kernel", m.kernel.image(), "-initrd", m.initramfs, "-append", m.commandLine(),
		"-serial", "file:" + m.console,
		"-virtfs", share(m.root, rootTag), "-virtfs", share(m.module, moduleTag),
		"-device", "virtio-serial", "-chardev", "stdio,id=events,signal=off", "-device", "virtserialport,chardev=events,name=" + eventsPort,
		"-device", "virtio-rng-pci",
	}
}

// share mounts a folder in the guest. It may have others mounted in it, whose inode numbers must not be taken for its own.
func share(path, tag string) string {
	return "local,path=" + path + ",mount_tag=" + tag + ",security_model=none,readonly=on,multidevs=remap"
}

// cpuModel is the CPU's.
func (m machine) cpuModel() string {
	switch {
	case m.options.cpu != "":
		return m.options.cpu
	case strings.HasPrefix(m.options.accel, "tcg"):
		return m.arch.cpu
	default:
		return "max"
	}
}

// commandLine is the kernel's. A panic ends the guest at once. Under emulation the kernel's watchdogs take a busy host for a broken one.
func (m machine) commandLine() string {
	return "console=" + m.arch.console + " panic=-1 rdinit=/init quiet loglevel=4 mitigations=off nowatchdog rcupdate.rcu_cpu_stall_suppress=1" + m.arch.clock
}

// run starts the guest, gives it jobs and passes their events on until none is left, and waits for its end.
func (m machine) run(ctx context.Context, share *shares) error {
	cmd := exec.CommandContext(ctx, m.arch.program, m.args()...)
	var errs strings.Builder
	cmd.Stderr = &errs
	cmd.WaitDelay = 5 * time.Second
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	// Open until qemu ends: the end of its input would close the port.
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	defer input.Close()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start qemu: %w", err)
	}
	to := stream{shares: share, reply: input}
	readErr := to.copy(events)
	err = cmd.Wait()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	} else if err != nil {
		err = fmt.Errorf("qemu: %w\n%s", err, errs.String())
	}
	if err == nil && !to.done {
		err = errors.New("the guest ended before its tests did")
	}
	if err != nil {
		abortErr := to.abort(err.Error())
		err = errors.Join(fmt.Errorf("%w\nthe console's end:\n%s", err, consoleEnd(m.console)), abortErr)
	}
	return errors.Join(err, readErr)
}

func consoleEnd(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	const most = 4096
	return string(text[max(0, len(text)-most):])
}
