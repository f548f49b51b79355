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
	kernel    kernel
	initramfs string
	console   string // file for what this guest's kernel says
}

// tag names of the shared folder and of the port that carries the events.
const (
	rootTag    = "root"
	eventsPort = "neardns.events"
)

// args are qemu's. The guest has no disk and no network: a root folder that it cannot write, a console and a port, which is
// qemu's standard input and output.
func (m machine) args() []string {
	return []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35", "-accel", m.options.accel, "-cpu", m.options.cpuModel(), "-smp", strconv.Itoa(m.options.cpus), "-m", strconv.Itoa(m.options.memory),
		"-kernel", m.kernel.image(), "-initrd", m.initramfs, "-append", m.commandLine(),
		"-serial", "file:" + m.console,
		// The root folder may have others mounted in it, whose inode numbers must not be taken for its own.
		"-virtfs", "local,path=/,mount_tag=" + rootTag + ",security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-serial", "-chardev", "stdio,id=events,signal=off", "-device", "virtserialport,chardev=events,name=" + eventsPort,
		"-device", "virtio-rng-pci",
	}
}

// cpuModel is the CPU's. An emulated one is plain: with all that qemu 7.2 can emulate (`max`, which has five levels of page tables), Linux
// 6.12 once ended by a double fault whose frame no CPU would push, and nothing here needs more than this one has.
func (o options) cpuModel() string {
	switch {
	case o.cpu != "":
		return o.cpu
	case strings.HasPrefix(o.accel, "tcg"):
		return "Westmere"
	default:
		return "max"
	}
}

// commandLine is the kernel's. A panic ends the guest at once. The clock is one of a known frequency: that of the CPU's counter is
// measured at boot, and where a busy host disturbs that, the guest's time runs many times too fast. Under emulation the kernel's
// watchdogs take a busy host for a broken one.
func (m machine) commandLine() string {
	return "console=ttyS0 panic=-1 rdinit=/init quiet loglevel=4 mitigations=off tsc=nowatchdog clocksource=hpet nowatchdog rcupdate.rcu_cpu_stall_suppress=1"
}

// run starts the guest, gives it jobs and passes their events on until none is left, and waits for its end.
func (m machine) run(ctx context.Context, share *shares) error {
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", m.args()...)
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
