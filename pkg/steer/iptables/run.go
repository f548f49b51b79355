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
	// lockWait is how many seconds iptables-legacy waits for the xtables lock, the same as for kube-proxy.
	lockWait = 5
	// maxRun is the time after which a program is ended, for example iptables-nft waiting for another program's big
	// transaction.
	maxRun = 30 * time.Second
	// lockedExit is the exit code if another program kept the lock for too long (iptables' RESOURCE_PROBLEM), but also for
	// other failures, for example to open the lock file. In the first case, all versions since 1.4.20 print lockedText.
	lockedExit = 4
	lockedText = "holding the xtables lock"
)

// Errors that other programs cause, and not the rules.
var (
	// ErrLocked means that another program had the xtables lock for longer than lockWait.
	ErrLocked = errors.New("another program holds iptables' lock")
	// ErrSlow means that an iptables program ran for longer than maxRun and was ended.
	ErrSlow = errors.New("did not end in time")
)

// Busy reports whether an error means only that another program was in the way, so that the same call may succeed a moment
// later.
func Busy(err error) bool { return errors.Is(err, ErrLocked) || errors.Is(err, ErrSlow) }

// noLock makes iptables-legacy 1.8.6 and later use a lock file that no other program uses; earlier versions wait for the real
// lock. It is for reading alone: the kernel returns a table as of one moment, so no lock is needed, and a program that keeps
// the real lock cannot hide damage.
const noLock = "XTABLES_LOCKFILE=/dev/null"

// Stats counts the runs of iptables programs. It is safe for concurrent use; several back ends may share one.
type Stats struct {
	Runs, Failed, Locked atomic.Uint64 // Failed includes Locked
	Time                 atomic.Int64  // duration of all runs together in nanoseconds, including waiting for locks
}

// programs finds and runs the programs of one variant of iptables in one netns.
type programs struct {
	variant Variant
	nsFD    int
	stats   *Stats
	maxRun  time.Duration // the constant maxRun, except in tests
	sbin    bool          // also search the sbin folders, because a container runtime's PATH may lack them
}

func familyProgram(is4 bool) string {
	if is4 {
		return "iptables"
	}
	return "ip6tables"
}

// name returns the program's name with the variant in it, for example ip6tables-nft.
func (p programs) name(is4 bool) string { return familyProgram(is4) + "-" + p.variant.Suffix() }

// path returns the path of a program: the one with the variant in its name or, if that is not installed, the plain one, if its
// version is of this variant.
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

// missing reports whether the node has no iptables program of this variant for the IP family.
func (p programs) missing(is4 bool) bool {
	_, err := p.path(is4, "")
	return errors.Is(err, exec.ErrNotFound)
}

// list runs a program that prints rules, and returns what it prints. It does not take the lock (see noLock).
func (p programs) list(is4 bool, args ...string) (string, error) {
	path, err := p.path(is4, "")
	if err != nil {
		return "", err
	}
	return p.run(path, "", noLock, args...)
}

// run runs a program in the netns and returns what it printed. env is an additional environment variable, or "".
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

// reason returns what a program printed to stderr, in one line, without hints.
func reason(stderr string) string {
	var out []string
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		// Leave out remarks about the other variant's tables, and hints at the manual.
		if line != "" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "Try ") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "; ")
}

// restore passes rules to iptables-restore. Its error contains the refused line, if the program names it.
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
