package bpf

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// loopback is the link that a frame of a test run comes from (net/bpf/test_run.c).
const loopback = 1

// openCopying opens a level that mirrors the queries of the loopback link.
func openCopying(t testing.TB) *Level {
	t.Helper()
	l, err := Open(Options{Folder: bpffs(t), Entries: 16, Copies: true, Log: slog.New(slog.DiscardHandler)})
	testutil.Must(t, err)
	t.Cleanup(func() { l.Close() })
	testutil.Must(t, l.Serve([]netip.AddrPort{at53(server4), at53(server6)}))
	note(t, l, loopback)
	return l
}

// note adds a link to the map of links, without hits.
func note(t testing.TB, l *Level, ifindex uint32) {
	t.Helper()
	testutil.Must(t, l.objects.Links.Put(ifindex, &objectLink{}))
}

// marks numbers the queries that end what a test reads.
var marks atomic.Int64

// runMark has the program mirror a query of its own and returns it. The link's window begins again, so that its limit does not matter.
func runMark(t testing.TB, l *Level) []byte {
	t.Helper()
	mark := ask(t, fmt.Sprintf("end-%d.example.", marks.Add(1)), dns.TypeA, nil)
	note(t, l, loopback)
	run(t, l, packet(false, full, mark), nil)
	return mark
}

// copies reads the mirrored queries of a level, up to one that the test sends as the end.
func copies(t testing.TB, l *Level) []string {
	t.Helper()
	mark := runMark(t, l)
	ctx, cancel := context.WithCancel(testutil.Context(t))
	defer cancel()
	var out []string
	ended := false
	err := l.Copied(ctx, func(ifindex int, message []byte) {
		testutil.Equal(t, "link", loopback, ifindex)
		if bytes.Equal(message, mark) {
			ended = true
			cancel()
			return
		}
		out = append(out, string(message))
	})
	if err != nil || !ended {
		t.Fatalf("ended %t: %v", ended, err)
	}
	return out
}

// TestCopies: a query without a usable answer is mirrored as it came, over both families, and its packet goes on unchanged. A query that is
// answered, is not plain, or goes to another address is not mirrored.
func TestCopies(t *testing.T) {
	l := openCopying(t)
	hit, old := answerOf(t, "hit.example.", dns.TypeA, nil, "hit.example. 30 IN A 192.0.2.1"), answerOf(t, "old.example.", dns.TypeA, nil, "old.example. 30 IN A 192.0.2.1")
	old.Until = Now()
	put(t, l, hit)
	put(t, l, old)
	var want []string
	for _, v6 := range []bool{false, true} {
		for i, question := range [][]byte{
			ask(t, "Unknown.example.", dns.TypeAAAA, nil), ask(t, "old.example.", dns.TypeA, withOPT(1232)),
			ask(t, "a-name-of-some-length-that-is-searched.in-a-namespace-of-some-length.svc.cluster.local.eu-west-1.compute.internal.", dns.TypeA, withOPT(4096)),
		} {
			wantPassed(t, l, packet(v6, checksum(i%2), question), nil)
			want = append(want, string(question))
		}
		wantAnswered(t, l, packet(v6, full, ask(t, "hit.example.", dns.TypeA, nil)), hit)
		wantPassed(t, l, packet(v6, full, ask(t, "unknown.example.", dns.TypeA, func(m *dns.Msg) { m.CheckingDisabled = true })), nil)
		wantPassed(t, l, packet(v6, full, ask(t, "unknown.example.", dns.TypeA, func(m *dns.Msg) { m.RecursionDesired = false })), nil)
		other := packet(v6, none, ask(t, "unknown.example.", dns.TypeA, nil))
		other[map[bool]int{false: 14 + 19, true: 14 + 39}[v6]]++ // of the address
		wantPassed(t, l, other, nil)
		port := packet(v6, none, ask(t, "unknown.example.", dns.TypeA, nil))
		port[map[bool]int{false: 14 + 20, true: 14 + 40}[v6]+3]++
		wantPassed(t, l, port, nil)
	}
	testutil.Equal(t, "copied", want, copies(t, l))
}

// TestUncopied: each query without a usable answer is either mirrored or counted as not mirrored, both if the link has reached its limit
// and if no program reads the ring.
func TestUncopied(t *testing.T) {
	l := openCopying(t)
	oneCPU(t)
	asked := 0
	frame := packet(false, none, ask(t, "unknown.example.", dns.TypeA, nil))
	run := func(n int) {
		_, err := l.objects.NeardnsHits.Run(&ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)), Repeat: uint32(n)})
		testutil.Must(t, err)
		asked += n
	}
	const least = 10 // of 100 queries at one moment, and of more than fit into the ring
	testutil.Eventually(t, func() error {
		run(100)
		limited, full, err := l.Uncopied()
		return testutil.ErrorIf(err != nil || limited < least || full > 0, "%d over the link's limit, %d with a full buffer (%w)", limited, full, err)
	})
	testutil.Eventually(t, func() error {
		for range 100 {
			note(t, l, loopback) // starts the link's next window
			run(16)
		}
		_, full, err := l.Uncopied()
		return testutil.ErrorIf(err != nil || full < least, "%d found the buffer full (%w)", full, err)
	})
	limited, full, err := l.Uncopied()
	testutil.Must(t, err)
	heard, want := 0, asked-int(limited+full)
	var mark []byte
	ctx, cancel := context.WithCancel(testutil.Context(t))
	defer cancel()
	if err := l.Copied(ctx, func(_ int, message []byte) {
		if mark != nil && bytes.Equal(message, mark) {
			cancel()
		} else if heard++; heard == want {
			mark = runMark(t, l) // behind those that are too many
			asked++
		}
	}); err != nil {
		t.Fatal(err)
	}
	if heard != want || mark == nil {
		t.Errorf("of %d questions %d were copied, %d over the bound, %d found the buffer full", asked, heard, limited, full)
	}
	for reason, n := range passed(t, l) {
		if reason == Unknown && n != uint64(asked) || reason != Unknown && n != 0 {
			t.Errorf("%d passed as %s", n, reason)
		}
	}
}

// oneCPU makes the test run on one CPU, because some of the program's maps have values for each CPU.
func oneCPU(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	var before, one unix.CPUSet
	testutil.Must(t, unix.SchedGetaffinity(0, &before))
	for cpu := 0; one.Count() == 0; cpu++ {
		if before.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	testutil.Must(t, unix.SchedSetaffinity(0, &one))
	t.Cleanup(func() { testutil.Must(t, unix.SchedSetaffinity(0, &before)) })
}

// TestNoCopies: without Options.Copies, or for a link that is not in the map of links, no query is mirrored.
func TestNoCopies(t *testing.T) {
	l := open(t, 4)
	note(t, l, loopback)
	wantPassed(t, l, packet(false, full, ask(t, "unknown.example.", dns.TypeA, nil)), nil)
	m := openCopying(t)
	testutil.Must(t, m.objects.Links.Delete(uint32(loopback)))
	wantPassed(t, m, packet(false, full, ask(t, "unknown.example.", dns.TypeA, nil)), nil)
	testutil.Equal(t, "copied", nil, copies(t, m))
	r, err := ringbuf.NewReader(l.objects.Copies)
	testutil.Must(t, err)
	defer r.Close()
	if n := r.AvailableBytes(); n > 0 {
		t.Errorf("copied: %d bytes", n)
	}
}

// TestCopiedOf: an invalid record is skipped.
func TestCopiedOf(t *testing.T) {
	whole := make([]byte, 168)
	whole[0], whole[4], whole[12] = 7, 3, 9
	if i, m, ok := copiedOf(whole); i != 7 || !bytes.Equal(m, []byte{9, 0, 0}) || !ok {
		t.Error(i, m, ok)
	}
	whole[4] = 157
	for _, b := range [][]byte{nil, whole[:167], whole} {
		if _, _, ok := copiedOf(b); ok {
			t.Errorf("%x", b)
		}
	}
}
