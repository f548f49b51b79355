package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// cniCall runs a CNI plugin as a runtime does: a process in the host's netns, the configuration on its standard input.
type cniCall struct {
	bin, id, netns string
	host           *testutil.NetNS
	conf           map[string]any
}

func (c cniCall) run(verb string) error {
	s, err := newSubject(c.host, c.conf, c.bin)
	if err != nil {
		return err
	}
	defer s.close()
	s.env = append(s.env, "CNI_COMMAND="+verb, "CNI_CONTAINERID="+c.id, "CNI_NETNS="+c.netns, "CNI_IFNAME=eth0", "CNI_PATH="+filepath.Dir(c.bin))
	c.host.Do(func() { _, _, err = s.run() })
	return err
}

// subject is one process that is measured again and again.
type subject struct {
	args  []string
	env   []string
	stdin *os.File
	host  *testutil.NetNS
	// before puts things as they are at a first call; nil for nothing. It is not measured.
	before func() error
}

func newSubject(host *testutil.NetNS, stdin any, args ...string) (*subject, error) {
	data, err := json.Marshal(stdin)
	if err != nil {
		return nil, err
	}
	// A file, not a pipe: a program that starts the process need not feed it.
	f, err := os.CreateTemp("", "neardns-bench-")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(f.Name())
	if _, err = f.Write(data); err != nil {
		return nil, err
	}
	return &subject{args: args, env: []string{"PATH=" + os.Getenv("PATH")}, stdin: f, host: host}, nil
}

func (s *subject) close() { _ = s.stdin.Close() }

// run starts the process in the netns of the calling thread and waits for its end. It returns how long that took, and how
// long the process and its children ran on a CPU.
func (s *subject) run() (wall, cpu time.Duration, err error) {
	if _, err := s.stdin.Seek(0, 0); err != nil {
		return 0, 0, err
	}
	if s.before != nil {
		if err := s.before(); err != nil {
			return 0, 0, err
		}
	}
	output, err := os.CreateTemp("", "neardns-bench-")
	if err != nil {
		return 0, 0, err
	}
	defer output.Close()
	_ = os.Remove(output.Name())
	cmd := exec.CommandContext(context.Background(), s.args[0], s.args[1:]...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = s.env, s.stdin, output, output
	begun := time.Now()
	err = cmd.Run()
	wall = time.Since(begun)
	if err != nil {
		text := make([]byte, 4096)
		n, _ := output.ReadAt(text, 0)
		return 0, 0, fmt.Errorf("%s %s: %w\n%s", filepath.Base(s.args[0]), strings.Join(s.args[1:], " "), err, text[:n])
	}
	return wall, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}
