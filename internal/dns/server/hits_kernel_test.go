package server_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mdns "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/offload/bpf"
	"github.com/neardns/neardns/internal/offload/entries"
	"github.com/neardns/neardns/pkg/testutil"
)

// kernelLevel is the kernel's level, which serves the two addresses.
func kernelLevel(t testing.TB, servers ...netip.Addr) *bpf.Level {
	t.Helper()
	testutil.RequireRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal("mount a BPF file system: ", err)
	}
	t.Cleanup(func() { testutil.Check(t, unix.Unmount(dir, 0), "unmount") })
	folder := filepath.Join(dir, "neardns")
	l, err := bpf.Open(bpf.Options{Folder: folder, Entries: 4096, Log: slog.New(slog.DiscardHandler)})
	testutil.Must(t, err)
	t.Cleanup(func() { l.Close(); bpf.Sweep(folder) })
	var serve []netip.AddrPort
	for _, s := range servers {
		serve = append(serve, netip.AddrPortFrom(s, 53))
	}
	testutil.Must(t, l.Serve(serve))
	return l
}

// TestKernelHitsAreTheFastPaths sends each query of the corpus to the kernel program too. Its answer equals the fast path's, except for a
// second of TTL and the order of addresses. It answers all hits whose form it supports.
func TestKernelHitsAreTheFastPaths(t *testing.T) {
	servers := []netip.Addr{netip.MustParseAddr("169.254.20.11"), netip.MustParseAddr("fd00:90de:d95::b")}
	l := kernelLevel(t, servers...)
	const size = 1232 // bufsize
	p := newPair(t, pairCorefile)
	put := map[string]bool{}
	answered, left, asked := 0, 0, 0
	corpus(t, func(what string, m []byte, v variant, _ string) {
		p.slow(m, false) // so that it is kept
		q := fastpath.Query{Wire: m}
		if q.Read(q.Wire) && len(q.OPT.Options) == 0 && q.RD && !q.CD && !q.OPT.DO() && !put[string(q.Question)] {
			put[string(q.Question)] = true
			p.toKernel(t, l, &q, size)
		}
		for _, server := range servers {
			asked++
			before, _ := p.fast(m, false)
			kernel, ok, err := l.Try(server, m)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			fast, is := p.fast(m, false)
			if !ok {
				// The fast path may answer a query that the kernel does not only if the query's form is not for the kernel.
				// One in 65,536 has a checksum of no certain kind (sum and pseudo-header's sum are equal) and goes on: another ID shows it.
				other := bytes.Clone(m)
				other[1] ^= 1
				if _, ok, err = l.Try(server, other); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if !ok && is && q.RD && !q.CD && !q.OPT.DO() && len(fast) <= 1216 && fast[3]&0xf != mdns.RcodeServerFailure && len(q.Question) <= 132 {
					t.Errorf("%s at %s: a hit of the fast path, and none of the kernel\nquestion %x", what, server, m)
				}
				left++
				continue
			}
			answered++
			if !is {
				t.Errorf("%s at %s: a hit of the kernel, and none of the fast path\nquestion %x\nanswer %x", what, server, m, kernel)
				continue
			}
			a, kernelTTL := settled(t, kernel)
			b, fastTTL := settled(t, fast)
			_, beforeTTL := settled(t, before)
			if !bytes.Equal(a, b) {
				t.Errorf("%s at %s: another answer than the fast path's (-fast +kernel)\nquestion %x\n%s", what, server, m, cmp.Diff(b, a))
			}
			for i, ttl := range kernelTTL {
				if i >= len(fastTTL) || ttl < fastTTL[i]-1 || ttl > beforeTTL[i]+1 {
					t.Errorf("%s: TTLs %v, the fast path's %v", what, kernelTTL, fastTTL)
					break
				}
			}
		}
	})
	if answered < 1000 || left < 1000 {
		t.Errorf("of %d questions the kernel answered %d and left %d", asked, answered, left)
	}
}

// toKernel puts the fast path's answer to a query without EDNS over TCP, where any size fits, into the kernel's level.
func (p *pair) toKernel(t testing.TB, l *bpf.Level, q *fastpath.Query, size uint16) {
	t.Helper()
	m := slices.Concat(q.Wire[:12], q.Question)
	m[3] |= 1 << 5 // AD, so that the answer has it if the entry has it
	m[10], m[11] = 0, 0
	fast, ok := p.fast(m, true)
	if !ok {
		return
	}
	_, ttls := settled(t, fast)
	if len(ttls) == 0 {
		return
	}
	ttl := slices.Min(ttls)
	binary.BigEndian.PutUint16(fast, 0)
	e, err := answers.NewEntry(&q.Key, answers.Success, fast, ttl)
	testutil.Must(t, err)
	end := bpf.Now() + time.Duration(ttl)*time.Second
	err = l.Put(&bpf.Answer{Item: entries.Item{Key: &q.Key, Entry: e, Expires: end, Until: end, Rotate: true, Size: size}})
	if err != nil && !errors.Is(err, bpf.ErrUnfit) {
		t.Fatal(err)
	}
}
