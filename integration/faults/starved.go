package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// busy is how much waiting for a CPU within a second is worth a word: what is queried meanwhile may come too late, and with a little
// more a lease lapses.
const busy = 500 * time.Millisecond

// waited is how long each of a process's threads was ready to run and did not (the second figure of schedstat, see
// Documentation/scheduler/sched-stats.rst), by the threads' files; empty when it is gone or the kernel does not count it.
func waited(pid int) map[string]time.Duration {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	out := map[string]time.Duration{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		var on, off int64
		if err != nil {
			continue // a thread that has ended
		}
		if _, err := fmt.Sscan(string(data), &on, &off); err == nil {
			out[file] = time.Duration(off)
		}
	}
	return out
}

// longest is the most that one thread waited between two looks. One that is new waited since it began.
func longest(from, to map[string]time.Duration) (most time.Duration) {
	for thread, off := range to {
		most = max(most, off-from[thread])
	}
	return most
}

// overflowed is how many datagrams were dropped in a namespace since its begin because the socket's buffer was full: its server
// did not read for so long.
func overflowed(ns *testutil.NetNS) (count int, err error) {
	var data []byte
	ns.Do(func() { data, err = os.ReadFile("/proc/thread-self/net/snmp") })
	if err != nil {
		return 0, fmt.Errorf("read how many datagrams were dropped: %w", err)
	}
	return rcvbufErrors(string(data))
}

// rcvbufErrors reads a figure of the file that has a line of names before each line of figures.
func rcvbufErrors(snmp string) (int, error) {
	var names []string
	for line := range strings.Lines(snmp) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] != "Udp:":
		case names == nil:
			names = words
		default:
			if at := slices.Index(names, "RcvbufErrors"); at >= 0 && at < len(words) {
				return strconv.Atoi(words[at])
			}
		}
	}
	return 0, errors.New("no count of datagrams that found a full buffer")
}
