package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
)

// Limits of one run of a program.
const (
	// lockWait is how long, in seconds, iptables-legacy waits for the lock: as long as kube-proxy does.
	lockWait = 5
	// maxRun ends a run that takes longer, for example an iptables-nft that waits for another program's big transaction.
	maxRun = 30 * time.Second
	// lockedExit is the exit code if the lock was not available in time (iptables' RESOURCE_PROBLEM), and for other failures,
	// for example of opening the lock file. All versions since 1.4.20 print lockedText for the first.
	lockedExit = 4
	lockedText = "holding the xtables lock"
)

// Failures that other programs cause and that are no fault of the rules.
var (
	// ErrLocked means that another program kept iptables' lock for longer than lockWait.
	ErrLocked = errors.New("another program holds iptables' lock")
	// ErrSlow means that a program did not end in time.
	ErrSlow = errors.New("did not end in time")
)

// Busy reports whether an error means only that other programs were in the way: the same call may succeed a moment later.
func Busy(err error) bool { return errors.Is(err, ErrLocked) || errors.Is(err, ErrSlow) }

// noLock makes iptables-legacy (1.8.0 and later; earlier ones wait) use a lock that no other program uses. It is for reading:
// the kernel returns a table as of one moment, so a program that holds the real lock cannot hide damage.
const noLock = "XTABLES_LOCKFILE=/dev/null"

// Stats counts the runs of the programs. It is safe for concurrent use; several back ends may share one.
type Stats struct {
	Runs, Failed, Locked atomic.Uint64 // Locked ones are among the failed
	Time                 atomic.Int64  // nanoseconds of all runs together, including waiting for locks
}

// programs finds and runs one variant's programs in one netns.
type programs struct {
	variant Variant
	nsFD    int
	stats   *Stats
	maxRun  time.Duration // the constant, except in tests
	sbin    bool          // search the sbin folders, which a runtime's PATH may lack
}

func familyProgram(is4 bool) string {
	if is4 {
		return "iptables"
	}
	return "ip6tables"
}

// name is the name of a program by its variant.
func (p programs) name(is4 bool) string { return familyProgram(is4) + "-" + p.variant.Suffix() }

// path finds a program: by its variant's name, or as plain iptables if that is of this variant.
func (p programs) path(is4 bool, suffix string) (string, error) {
	own := p.name(is4) + suffix
	if path, err := p.lookPath(own); err == nil {
		return path, nil
	}
	path, err := p.lookPath(familyProgram(is4) + suffix)
	if err != nil {
		return "", fmt.Errorf("%s is not installed on this node: %w", own, exec.ErrNotFound)
	}
	out, err := exec.CommandContext(context.Background(), path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", path, err)
	}
	// Versions from before nf_tables print no variant.
	if is := strings.Contains(string(out), "nf_tables"); is != (p.variant == NFT) {
		return "", fmt.Errorf("%s is not installed on this node: %w", own, exec.ErrNotFound)
	}
	return path, nil
}

func (p programs) lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil || !p.sbin {
		return path, err
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if path := filepath.Join(dir, name); unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", err
}

// missing reports whether the node lacks a family's programs.
func (p programs) missing(is4 bool) bool {
	_, err := p.path(is4, "")
	return errors.Is(err, exec.ErrNotFound)
}

// list makes a program print rules, without taking the lock.
func (p programs) list(is4 bool, args ...string) (string, error) {
	path, err := p.path(is4, "")
	if err != nil {
		return "", err
	}
	return p.run(path, "", noLock, args...)
}

// run runs a program in the netns and returns what it printed. env is a variable in addition to the process's own, or "".
func (p programs) run(path, stdin, env string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), p.maxRun)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, append([]string{"-w", strconv.Itoa(lockWait)}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if env != "" {
		cmd.Env = append(cmd.Environ(), env)
	}
	cmd.WaitDelay = time.Second
	began := time.Now()
	err := hostnet.InNetNS(p.nsFD, cmd.Run)
	p.stats.Runs.Add(1)
	p.stats.Time.Add(int64(time.Since(began)))
	if err == nil {
		return stdout.String(), nil
	}
	p.stats.Failed.Add(1)
	what := filepath.Base(path) + " " + strings.Join(args, " ")
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == lockedExit && strings.Contains(stderr.String(), lockedText):
		p.stats.Locked.Add(1)
		return "", fmt.Errorf("%s: %w for more than %d s (lslocks names it)", what, ErrLocked, lockWait)
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s: %w: not within %v", what, ErrSlow, p.maxRun)
	}
	return "", fmt.Errorf("%s: %w: %s", what, err, reason(stderr.String()))
}

// reason is the essential part of a program's error output.
func reason(stderr string) string {
	var out []string
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		// Leave out remarks on the other variant's tables and hints at the manual.
		if line != "" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "Try ") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "; ")
}

// restore loads rules; its error names the line that was refused.
func (p programs) restore(is4 bool, text string) error {
	if text == "" {
		return nil
	}
	path, err := p.path(is4, "-restore")
	if err != nil {
		return err
	}
	if _, err = p.run(path, text, "", "--noflush"); err == nil {
		return nil
	}
	if _, after, ok := strings.Cut(err.Error(), "line "); ok {
		digits := after[:len(after)-len(strings.TrimLeft(after, "0123456789"))]
		lines := strings.Split(text, "\n")
		if n, atoi := strconv.Atoi(digits); atoi == nil && n >= 1 && n <= len(lines) {
			return fmt.Errorf("%w (%s)", err, lines[n-1])
		}
	}
	return err
}
