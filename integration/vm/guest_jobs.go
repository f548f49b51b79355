package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// runGuest runs the tests and sends their events.
func runGuest(_ []string) int {
	if err := runJobs(); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		return 1
	}
	return 0
}

func runJobs() (err error) {
	var c guestConfig
	if err := json.NewDecoder(os.Stdin).Decode(&c); err != nil {
		return err
	}
	host, err := openPort()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	if err := exec.Command("ip", "link", "set", "lo", "up").Run(); err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	for _, module := range nodeModules() {
		// One that is missing is missed by the test that needs it.
		if out, err := exec.Command("modprobe", module).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "guest: load %s: %v: %s\n", module, err, out)
		}
	}
	answers := bufio.NewReader(host)
	for {
		j, err := askJob(host, answers)
		if err != nil {
			return err
		}
		if j == nil {
			_, err = fmt.Fprintf(host, "{\"Action\":%q}\n", endOfTests)
			return err
		}
		if err := runJob(c, *j, host); err != nil {
			return err
		}
	}
}

// askJob requests the next job from the host; nil reports that there is none.
func askJob(host io.Writer, answers *bufio.Reader) (*job, error) {
	if _, err := fmt.Fprintf(host, "{\"Action\":%q}\n", nextJob); err != nil {
		return nil, fmt.Errorf("ask for a job: %w", err)
	}
	var line []byte
	for deadline := time.Now().Add(10 * time.Second); ; {
		part, err := answers.ReadBytes('\n')
		line = append(line, part...)
		if err == nil {
			break
		}
		// The port is at its end, too, while the driver has not heard that the host holds it open.
		if !errors.Is(err, io.EOF) || time.Now().After(deadline) {
			return nil, fmt.Errorf("hear of a job: %w", err)
		}
		unix.Nanosleep(&unix.Timespec{Nsec: int64(10 * time.Millisecond)}, nil) //nolint:errcheck // a short wait is as good
	}
	var j *job
	if err := json.Unmarshal(line, &j); err != nil {
		return nil, fmt.Errorf("read a job: %w", err)
	}
	return j, nil
}

// nodeModules are those that a node has before the first pod is made: by itself, by kube-proxy, by its firewall. All else
// comes when it is requested. An ADD has five seconds, which the loading of these would take under emulation.
func nodeModules() []string {
	return []string{
		"br_netfilter", "veth", "dummy", "ip_vs", "ip_vs_rr", "nf_conntrack_netlink", "nf_tables", "nft_compat", "nft_ct", "nft_socket", "nft_fib_inet", "nft_masq",
		"nft_nat", "nft_chain_nat", "nft_numgen", "iptable_filter", "iptable_nat", "iptable_raw", "iptable_mangle", "ip6table_filter", "ip6table_nat",
		"ip6table_raw", "ip6table_mangle", "xt_recent", "xt_socket", "xt_connmark", "ipt_rpfilter", "ip6t_rpfilter",
		"xt_CT", "xt_set", "xt_comment", "xt_addrtype", "xt_statistic",
	}
}

// runJob runs a package's tests. Failed tests are no error: their events tell.
func runJob(c guestConfig, j job, events io.Writer) error {
	args := []string{"-t", "-p", module + "/" + j.Package, filepath.Join(c.Tests, j.binary()),
		"-test.v=test2json", "-test.timeout=" + c.Timeout, "-test.count=1", "-test.parallel=1", "-test.run=" + j.Run}
	cmd := exec.Command(filepath.Join(c.Programs, "test2json"), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Join(c.Root, j.Package), events, os.Stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = nil
	}
	return err
}

// openPort finds the port that carries jobs and events; there is no udev that would name its file.
func openPort() (*os.File, error) {
	const sys = "/sys/class/virtio-ports"
	deadline := time.Now().Add(10 * time.Second)
	for {
		ports, err := os.ReadDir(sys)
		if err != nil {
			return nil, err
		}
		for _, p := range ports {
			name, err := os.ReadFile(filepath.Join(sys, p.Name(), "name"))
			if err == nil && strings.TrimSpace(string(name)) == eventsPort {
				return os.OpenFile(filepath.Join("/dev", p.Name()), os.O_RDWR, 0)
			}
		}
		// The driver gets the name from qemu after it was loaded.
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("no port %s in %s", eventsPort, sys)
		}
		unix.Nanosleep(&unix.Timespec{Nsec: int64(10 * time.Millisecond)}, nil) //nolint:errcheck // a short wait is as good
	}
}
