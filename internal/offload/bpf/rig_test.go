package bpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/offload/entries"
	"github.com/neardns/neardns/pkg/testutil"
)

// Addresses of the tests' packets.
var (
	server4, client4 = netip.MustParseAddr("169.254.20.11"), netip.MustParseAddr("10.244.1.7")
	server6, client6 = netip.MustParseAddr("fd00:90de:d95::b"), netip.MustParseAddr("fd00:244::7")
)

// bpffs mounts a BPF file system for one test.
func bpffs(t testing.TB) string {
	t.Helper()
	testutil.RequireRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal("mount a BPF file system: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error("unmount: ", err)
		}
	})
	return filepath.Join(dir, "neardns")
}

// open opens a level that serves both servers and goes with the test.
func open(t testing.TB, entries int) *Level {
	t.Helper()
	folder := bpffs(t)
	t.Cleanup(func() { testutil.Check(t, Sweep(folder)) })
	l := openIn(t, folder, entries)
	testutil.Must(t, l.Serve([]netip.AddrPort{at53(server4), at53(server6)}))
	return l
}

func openIn(t testing.TB, folder string, entries int) *Level {
	t.Helper()
	l, err := Open(Options{Folder: folder, Entries: entries, Log: slog.New(slog.DiscardHandler)})
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Check(t, l.Close()) })
	return l
}

// trust lets the program answer a link's hits for a day without a sample.
func trust(t testing.TB, l *Level, index int) {
	t.Helper()
	testutil.Must(t, l.objects.Links.Put(uint32(index), &objectLink{Answered: uint64(Now() + 24*time.Hour)}))
}

func at53(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, dnsPort) }

// answerOf makes an entry for a name and type from records in presentation form.
func answerOf(t testing.TB, name string, qtype uint16, change func(*dns.Msg), records ...string) Answer {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, qtype)
	m.Response, m.RecursionAvailable, m.Compress = true, true, true
	for _, r := range records {
		rr, err := dns.NewRR(r)
		testutil.Must(t, err)
		if _, soa := rr.(*dns.SOA); soa {
			m.Ns = append(m.Ns, rr)
		} else {
			m.Answer = append(m.Answer, rr)
		}
	}
	if change != nil {
		change(m)
	}
	return entryOf(t, m)
}

func entryOf(t testing.TB, m *dns.Msg) Answer {
	t.Helper()
	b, err := m.Pack()
	testutil.Must(t, err)
	key := keyOf(t, m.Question[0])
	class := answers.Success
	if len(m.Answer) == 0 {
		class = answers.Denial
	}
	e, err := answers.NewEntry(key, class, b, 30)
	testutil.Must(t, err)
	return Answer{Item: entries.Item{Key: key, Entry: e, Expires: Now() + time.Hour, Until: Now() + time.Hour}, FixedTTL: 30}
}

func keyOf(t testing.TB, q dns.Question) *msg.Key {
	t.Helper()
	question, err := msg.AppendQuestion(nil, q.Name, q.Qtype, q.Qclass)
	testutil.Must(t, err)
	key := new(msg.Key)
	key.Set(question, false, false)
	return key
}

func put(t testing.TB, l *Level, a Answer) {
	t.Helper()
	testutil.Must(t, l.Put(&a))
}

// ask packs a plain query, after change has modified it.
func ask(t testing.TB, name string, qtype uint16, change func(*dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, qtype)
	m.Id = 0xbeef
	if change != nil {
		change(m)
	}
	b, err := m.Pack()
	testutil.Must(t, err)
	return b
}

func withOPT(size uint16) func(*dns.Msg) {
	return func(m *dns.Msg) { m.SetEdns0(size, false) }
}

// Kinds of UDP checksum in a packet.
type checksum int

const (
	partial checksum = iota // as a local sender's, to be made by a link
	full
	none
)

// packet is an Ethernet frame with a UDP datagram from the client to port 53 of the server of its family.
func packet(v6 bool, sum checksum, payload []byte) []byte {
	eth := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00}
	udp := binary.BigEndian.AppendUint16(nil, 40000)
	udp = binary.BigEndian.AppendUint16(udp, 53)
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(payload)))
	udp = append(append(udp, 0, 0), payload...)
	var ip []byte
	from, to := client4.AsSlice(), server4.AsSlice()
	if v6 {
		eth[12], eth[13] = 0x86, 0xdd
		from, to = client6.AsSlice(), server6.AsSlice()
		ip = append([]byte{0x60, 0, 0, 0, byte(len(udp) >> 8), byte(len(udp)), 17, 64}, from...)
		ip = append(ip, to...)
	} else {
		total := 20 + len(udp)
		ip = append([]byte{0x45, 0, byte(total >> 8), byte(total), 0x12, 0x34, 0x40, 0, 64, 17, 0, 0}, from...)
		ip = append(ip, to...)
		binary.BigEndian.PutUint16(ip[10:], ^fold(ip))
	}
	pseudo := pseudoOf(from, to, len(udp))
	switch sum {
	case partial:
		binary.BigEndian.PutUint16(udp[6:], fold(pseudo))
	case full:
		c := ^fold(append(pseudo, udp...))
		if c == 0 {
			c = 0xffff
		}
		binary.BigEndian.PutUint16(udp[6:], c)
	}
	return bytes.Join([][]byte{eth, ip, udp}, nil)
}

func pseudoOf(from, to []byte, size int) []byte {
	return append(bytes.Join([][]byte{from, to}, nil), 0, 17, byte(size>>8), byte(size))
}

// fold is the sum of RFC 1071 over whole words and perhaps a last byte.
func fold(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		w := uint32(b[i]) << 8
		if i+1 < len(b) {
			w |= uint32(b[i+1])
		}
		sum += w
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// Actions of the program (linux/pkt_cls.h).
const (
	unspec = 0xffffffff
	shot   = 2
)

// skb is the part of struct __sk_buff that the kernel lets a test set (net/bpf/test_run.c).
type skb struct {
	Len, PktType, Mark, QueueMapping, Protocol, VlanPresent, VlanTCI, VlanProto uint32
	Priority, IngressIfindex, Ifindex, TcIndex                                  uint32
	CB                                                                          [5]uint32
	Hash, TcClassid, Data, DataEnd, NapiID, Family                              uint32
	RemoteIP4, LocalIP4                                                         uint32
	RemoteIP6, LocalIP6                                                         [4]uint32
	RemotePort, LocalPort, DataMeta                                             uint32
	FlowKeys                                                                    uint64
	Tstamp                                                                      uint64
	WireLen, GSOSegs                                                            uint32
	Sk                                                                          uint64
	GSOSize, TstampType                                                         uint32
	Hwtstamp                                                                    uint64
}

// run runs the program on a frame.
func run(t testing.TB, l *Level, frame []byte, ctx *skb) (action uint32, out []byte) {
	t.Helper()
	o := ebpf.RunOptions{Data: frame, DataOut: make([]byte, 4096)}
	if ctx != nil {
		o.Context = ctx
	}
	action, err := l.objects.NeardnsHits.Run(&o)
	testutil.Must(t, err)
	return action, o.DataOut
}

// runFrame is run for frames that the kernel may not take.
func runFrame(l *Level, frame []byte) (action uint32, out []byte, err error) {
	o := ebpf.RunOptions{Data: frame, DataOut: make([]byte, 4096)}
	action, err = l.objects.NeardnsHits.Run(&o)
	return action, o.DataOut, err
}

// wantPassed fails unless a frame goes on as it came.
func wantPassed(t testing.TB, l *Level, frame []byte, ctx *skb) {
	t.Helper()
	action, out := run(t, l, frame, ctx)
	if action != unspec {
		t.Errorf("action %d, not %d", int32(action), -1)
	}
	if !bytes.Equal(out, frame) {
		t.Errorf("the packet was changed\nfrom %x\n  to %x", frame, out)
	}
}

// wantAnswered fails unless a frame is answered as the fast path would, whose answer it returns.
func wantAnswered(t testing.TB, l *Level, frame []byte, a Answer) []byte {
	t.Helper()
	action, out := run(t, l, frame, nil)
	if action != redirect {
		t.Fatalf("action %d, not %d", int32(action), redirect)
	}
	got, err := replyOf(frame, out)
	testutil.Must(t, err)
	question := frame[len(frame)-len(payloadOf(frame)):]
	if want := replyWanted(question, a); !bytes.Equal(got, want) {
		t.Fatalf("answer\n%x\nwant\n%x", got, want)
	}
	return got
}

// payloadOf is a frame's DNS message.
func payloadOf(frame []byte) []byte {
	if frame[12] == 0x86 {
		return frame[14+40+8:]
	}
	return frame[14+20+8:]
}

// replyWanted is what the fast path answers: answers.Entry.AppendReply, followed by the OPT that package cache adds.
func replyWanted(question []byte, a Answer) []byte {
	opt := question[11] == 1
	q := question[12:]
	if opt {
		q = q[:len(q)-11]
	}
	r := answers.Reply{ID: binary.BigEndian.Uint16(question), Question: q, RD: true, AD: question[3]&0x20 != 0, TTL: a.FixedTTL}
	b := a.Entry.AppendReply(nil, &r)
	if opt {
		o := question[len(question)-11:]
		size := binary.BigEndian.Uint16(o[3:])
		if a.Size > 0 {
			size = min(size, a.Size)
		}
		b = append(b, 0, 0, 41, byte(size>>8), byte(size), 0, 0, o[7], 0, 0, 0)
		binary.BigEndian.PutUint16(b[10:], binary.BigEndian.Uint16(b[10:])+1)
	}
	return b
}

// replyOf takes apart the packet that was made of a frame and returns its DNS message. All around the message must be right.
func replyOf(frame, out []byte) ([]byte, error) {
	v6 := frame[12] == 0x86
	const ip = 14
	udp, at, long := ip+20, ip+12, 4 // where the UDP header and the addresses are, and the length of an address
	if v6 {
		udp, at, long = ip+40, ip+8, 16
	}
	if len(out) < udp+8+12 {
		return nil, fmt.Errorf("%d bytes", len(out))
	}
	if !bytes.Equal(out[:6], frame[6:12]) || !bytes.Equal(out[6:12], frame[:6]) || !bytes.Equal(out[12:14], frame[12:14]) {
		return nil, fmt.Errorf("ethernet header %x", out[:14])
	}
	size := len(out) - udp
	want := slices.Concat(frame[ip:at], frame[at+long:at+2*long], frame[at:at+long])
	if v6 {
		binary.BigEndian.PutUint16(want[4:], uint16(size))
	} else {
		binary.BigEndian.PutUint16(want[2:], uint16(size+20))
		copy(want[10:], out[ip+10:ip+12])
		if fold(frame[ip:udp]) == 0xffff && fold(out[ip:udp]) != 0xffff {
			return nil, fmt.Errorf("IPv4 checksum of %x", out[ip:udp])
		}
	}
	if !bytes.Equal(out[ip:udp], want) {
		return nil, fmt.Errorf("IP header %x, not %x", out[ip:udp], want)
	}
	if !bytes.Equal(out[udp:udp+2], frame[udp+2:udp+4]) || !bytes.Equal(out[udp+2:udp+4], frame[udp:udp+2]) || int(binary.BigEndian.Uint16(out[udp+4:])) != size {
		return nil, fmt.Errorf("UDP header %x", out[udp:udp+8])
	}
	was, is := binary.BigEndian.Uint16(frame[udp+6:]), binary.BigEndian.Uint16(out[udp+6:])
	pseudo := pseudoOf(out[at:at+long], out[at+long:at+2*long], size)
	oldPseudo := pseudoOf(frame[at:at+long], frame[at+long:at+2*long], len(frame)-udp)
	switch {
	case was == 0 && is != 0:
		return nil, fmt.Errorf("checksum %x where there was none", is)
	case was != 0 && was == fold(oldPseudo) && is != fold(pseudo):
		return nil, fmt.Errorf("partial checksum %x, not %x", is, fold(pseudo))
	case was != 0 && was != fold(oldPseudo) && (is == 0 || fold(append(pseudo, out[udp:]...)) != 0xffff):
		return nil, fmt.Errorf("checksum %x is wrong", is)
	}
	return out[udp+8:], nil
}
