package steering

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// pair is a Service's address and the server behind it.
type pair struct{ service, server netip.Addr }

// Members of struct bpf_sock_addr (linux/bpf.h).
const (
	sockAddrIP4  = 4
	sockAddrIP6  = 8
	sockAddrPort = 24
)

// dnsPort53 is the port as it stands there.
var dnsPort53 = int32(binary.NativeEndian.Uint16([]byte{0, 53}))

// translateAtSockets does what a socket-level load balancer does to the sockets of some namespaces: a program that connects or sends to the
// Service's address gets to the server, and is told of the Service's address where it asks whom an answer is from or whom it is connected
// to. It ends with end, or with the test.
func translateAtSockets(t *testing.T, pairs []pair, namespaces ...*testutil.NetNS) (end func()) {
	t.Helper()
	var links []link.Link
	end = func() {
		for _, l := range links {
			_ = l.Close() // of one that is closed it is nothing
		}
		links = nil
	}
	t.Cleanup(end)
	cookies, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 16})
	testutil.Must(t, err)
	t.Cleanup(func() { cookies.Close() })
	for _, ns := range namespaces {
		testutil.Must(t, cookies.Put(cookieOf(t, ns), uint64(1)))
	}
	for _, p := range pairs {
		there, back := addressed(cookies, p.service, p.server), addressed(cookies, p.server, p.service)
		hooks := map[ebpf.AttachType]asm.Instructions{
			ebpf.AttachCGroupInet4Connect: there, ebpf.AttachCGroupUDP4Sendmsg: there, ebpf.AttachCGroupUDP4Recvmsg: back, ebpf.AttachCgroupInet4GetPeername: back,
		}
		if p.service.Is6() {
			hooks = map[ebpf.AttachType]asm.Instructions{
				ebpf.AttachCGroupInet6Connect: there, ebpf.AttachCGroupUDP6Sendmsg: there, ebpf.AttachCGroupUDP6Recvmsg: back, ebpf.AttachCgroupInet6GetPeername: back,
			}
		}
		for at, instructions := range hooks {
			program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.CGroupSockAddr, AttachType: at, License: "GPL", Instructions: instructions})
			if err != nil {
				t.Fatalf("%v: %+v", at, err)
			}
			l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup2(t), Attach: at, Program: program})
			program.Close()
			testutil.Must(t, err)
			links = append(links, l)
		}
	}
	return end
}

// cookieOf is the number that the kernel gives to a network namespace.
func cookieOf(t *testing.T, ns *testutil.NetNS) (cookie uint64) {
	t.Helper()
	const soNetNSCookie = 71 // SO_NETNS_COOKIE, Linux 5.14
	var err error
	ns.Do(func() {
		var fd int
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
			cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, soNetNSCookie)
			err = errors.Join(err, unix.Close(fd))
		}
	})
	if errors.Is(err, unix.ENOPROTOOPT) {
		testutil.Skip(t, "this kernel does not tell namespaces' cookies")
	}
	testutil.Must(t, err)
	return cookie
}

// cgroup2 is the root of cgroup v2.
func cgroup2(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	testutil.Must(t, err)
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); f[2] == "cgroup2" {
			return f[1]
		}
	}
	testutil.Skip(t, "there is no cgroup v2")
	return ""
}

// addressed has sockets of the listed namespaces that name port 53 of one address name another.
func addressed(cookies *ebpf.Map, from, to netip.Addr) asm.Instructions {
	at := int16(sockAddrIP4)
	if from.Is6() {
		at = sockAddrIP6
	}
	out := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.FnGetNetnsCookie.Call(),
		asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
		asm.LoadMapPtr(asm.R1, cookies.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -8),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "allow"),
		asm.LoadMem(asm.R2, asm.R6, sockAddrPort, asm.Word),
		asm.JNE.Imm32(asm.R2, dnsPort53, "allow"),
	}
	for i, w := range words(from) {
		out = append(out, asm.LoadMem(asm.R2, asm.R6, at+int16(4*i), asm.Word), asm.JNE.Imm32(asm.R2, w, "allow"))
	}
	for i, w := range words(to) {
		out = append(out, asm.Mov.Imm32(asm.R2, w), asm.StoreMem(asm.R6, at+int16(4*i), asm.R2, asm.Word))
	}
	return append(out, asm.Mov.Imm(asm.R0, 1).WithSymbol("allow"), asm.Return())
}

// words are an address as it stands in memory.
func words(a netip.Addr) (out []int32) {
	b := a.AsSlice()
	for i := 0; i < len(b); i += 4 {
		out = append(out, int32(binary.NativeEndian.Uint32(b[i:])))
	}
	return out
}

// translateAtLink does what a datapath does to the packets of a pod's link: those for the Service's address go to the server, and the
// server's answers come from the Service's address. It comes after the program that is at the link first.
func translateAtLink(t *testing.T, host *testutil.NetNS, name string, pairs []pair) {
	t.Helper()
	for _, p := range pairs {
		for at, instructions := range map[ebpf.AttachType]asm.Instructions{
			ebpf.AttachTCXIngress: rewritten(false, p.service, p.server), ebpf.AttachTCXEgress: rewritten(true, p.server, p.service),
		} {
			attachTCX(t, host, name, link.TCXOptions{Attach: at, Anchor: link.Tail()}, instructions)
		}
	}
}

// rewritten changes one address of packets over UDP and TCP, of their destination or source.
func rewritten(source bool, from, to netip.Addr) asm.Instructions {
	const ethernet, udpCheck, tcpCheck = 14, 6, 16
	// Where address, protocol and the upper header stand (RFC 791, section 3.1; RFC 8200, section 3).
	address, protocol, upper, ethertype := int32(ethernet+16), int32(ethernet+9), int32(ethernet+20), []byte{0x08, 0x00}
	if from.Is6() {
		address, protocol, upper, ethertype = ethernet+24, ethernet+6, ethernet+40, []byte{0x86, 0xdd}
	}
	if source {
		address -= int32(len(from.AsSlice()))
	}
	const pseudo, mangled0 = 1 << 4, 1 << 5 // BPF_F_PSEUDO_HDR, BPF_F_MARK_MANGLED_0
	load := func(at, stack, size int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, at), asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, stack), asm.Mov.Imm(asm.R4, size),
			asm.FnSkbLoadBytes.Call(), asm.JNE.Imm(asm.R0, 0, "next"),
		}
	}
	out := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, 16, asm.Word), // struct __sk_buff, protocol
		asm.JNE.Imm(asm.R2, int32(binary.NativeEndian.Uint16(ethertype)), "next"),
	}
	size := int32(len(from.AsSlice()))
	out = append(out, load(address, -16, size)...)
	for i, w := range words(from) {
		out = append(out, asm.LoadMem(asm.R2, asm.RFP, int16(-16+4*i), asm.Word), asm.JNE.Imm32(asm.R2, w, "next"))
	}
	out = append(out, load(protocol, -24, 1)...)
	out = append(out,
		asm.LoadMem(asm.R2, asm.RFP, -24, asm.Byte),
		asm.Mov.Imm(asm.R7, upper+udpCheck), asm.Mov.Imm(asm.R8, mangled0),
		asm.JEq.Imm(asm.R2, unix.IPPROTO_UDP, "check"),
		asm.Mov.Imm(asm.R7, upper+tcpCheck), asm.Mov.Imm(asm.R8, 0),
		asm.JNE.Imm(asm.R2, unix.IPPROTO_TCP, "next"),
	)
	for i := range words(from) {
		w, v := words(from)[i], words(to)[i]
		first := asm.Mov.Reg(asm.R1, asm.R6)
		if i == 0 {
			first = first.WithSymbol("check")
		}
		out = append(out, first, asm.Mov.Reg(asm.R2, asm.R7), asm.Mov.Imm32(asm.R3, w), asm.Mov.Imm32(asm.R4, v), asm.Mov.Reg(asm.R5, asm.R8),
			asm.Or.Imm(asm.R5, pseudo|4), asm.FnL4CsumReplace.Call())
		if from.Is4() {
			out = append(out, asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, ethernet+10), asm.Mov.Imm32(asm.R3, w), asm.Mov.Imm32(asm.R4, v),
				asm.Mov.Imm(asm.R5, 4), asm.FnL3CsumReplace.Call())
		}
		out = append(out, asm.Mov.Imm32(asm.R2, v), asm.StoreMem(asm.RFP, int16(-16+4*i), asm.R2, asm.Word))
	}
	return append(out,
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, address), asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -16), asm.Mov.Imm(asm.R4, size),
		asm.Mov.Imm(asm.R5, 0), asm.FnSkbStoreBytes.Call(),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("next"), asm.Return())
}
