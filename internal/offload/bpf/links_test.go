package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestChecksums: if the pod's end of the link makes whole checksums, the answers have right ones too; the pod's kernel verifies them.
func TestChecksums(t *testing.T) {
	l := open(t, 8)
	node := testutil.NewNode(t, testutil.Options{Families: testutil.Dual, Attach: testutil.PTP})
	user(t, node.Host, server4)
	user(t, node.Host, server6)
	pod := node.AddPod("pod")
	pod.NetNS.ComputeChecksums("eth0")
	node.Host.Do(func() { testutil.Must(t, l.Attach(pod.HostLink().Attrs().Index)) })
	trust(t, l, pod.HostLink().Attrs().Index)
	for _, name := range []string{"web.shop.svc.cluster.example.", "we.shop.svc.cluster.example."} { // an even and an odd number of bytes before the answer
		put(t, l, answerOf(t, name, dns.TypeTXT, nil, name+` 30 IN TXT "kernel"`))
		for _, at := range []netip.Addr{server4, server6} {
			for _, option := range []string{"+edns", "+noedns"} {
				if out := dig(t, pod, at, "+short", option, "TXT", name); !strings.Contains(out, "kernel") {
					t.Errorf("%s at %s, %s: %s", name, at, option, out)
				}
			}
		}
	}
	testutil.Equal(t, "passed for their packet", 0, passed(t, l)[Packet])
}

// TestTagged: a frame with a VLAN tag belongs to another network, and goes on. The kernel removes the tag before the program gets the
// frame.
func TestTagged(t *testing.T) {
	l := open(t, 8)
	node := testutil.NewNode(t, testutil.Options{Attach: testutil.PTP})
	pod := node.AddPod("pod")
	index := pod.HostLink().Attrs().Index
	const name = "web.shop.svc.cluster.example."
	put(t, l, answerOf(t, name, dns.TypeTXT, nil, name+` 30 IN TXT "kernel"`))
	node.Host.Do(func() { testutil.Must(t, l.Attach(index)) })
	trust(t, l, index)
	eth0, err := pod.Netlink().LinkByName("eth0")
	testutil.Must(t, err)
	send := func(frame []byte) {
		t.Helper()
		copy(frame, pod.HostLink().Attrs().HardwareAddr)
		copy(frame[6:], eth0.Attrs().HardwareAddr)
		var err error
		pod.Do(func() {
			var fd int
			if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
				return
			}
			defer unix.Close(fd)
			err = unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: eth0.Attrs().Index})
		})
		testutil.Must(t, err)
	}
	frame := packet(false, full, ask(t, name, dns.TypeTXT, nil))
	send(slices.Insert(slices.Clone(frame), 12, 0x81, 0, 0, 5))
	send(frame)
	testutil.Eventually(t, func() error {
		hits, err := l.Links()
		// Both together: sent from two CPUs, the second frame may come first.
		if got := passed(t, l)[Packet]; err == nil && (hits[index][0] != 1 || got != 1) {
			err = fmt.Errorf("%d hits, and %d passed for their packet, want one each", hits[index][0], got)
		}
		return err
	})
}

// TestOthers: other programs at a link are listed by name, for both directions and both ways to attach them.
func TestOthers(t *testing.T) {
	l := open(t, 8)
	node := testutil.NewNode(t, testutil.Options{Attach: testutil.PTP})
	index := node.AddPod("pod").HostLink().Attrs().Index
	node.Host.Do(func() {
		testutil.Must(t, l.Attach(index))
		wantOthers(t, l, index)
		h := node.Host.Netlink()
		if err := h.QdiscAdd(clsactQdisc(index)); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
		out := filter(index, returning(t, "shaper", ebpf.SchedCLS, -1).FD(), ways[0])
		out.Name, out.Priority = "shaper", 2
		testutil.Must(t, h.FilterAdd(out))
		wantOthers(t, l, index, "shaper")
		for _, at := range []struct {
			name string
			way  ebpf.AttachType
		}{{"meter", ebpf.AttachTCXEgress}, {"policy", ebpf.AttachTCXIngress}} {
			made, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: returning(t, at.name, ebpf.SchedCLS, -1), Attach: at.way})
			if errors.Is(err, ebpf.ErrNotSupported) {
				return // clsact is all that this kernel has
			} else if err != nil {
				t.Fatal(err)
			}
			defer made.Close()
		}
		wantOthers(t, l, index, "policy", "meter", "shaper")
	})
}

// returning makes a program that does nothing but return an action.
func returning(t *testing.T, name string, kind ebpf.ProgramType, action int32) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: kind, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, action), asm.Return()}})
	testutil.Must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// TestOtherHooks: an XDP program and nftables' netdev chains at a link are programs of others; those at another link are not.
func TestOtherHooks(t *testing.T) {
	l := open(t, 8)
	node := testutil.NewNode(t, testutil.Options{Attach: testutil.PTP})
	pod, other := node.AddPod("pod").HostLink(), node.AddPod("other").HostLink()
	p := returning(t, "guard", ebpf.XDP, 2) // XDP_PASS
	rules := "table netdev guard {\n\tchain one {\n\t\ttype filter hook ingress device %q priority 0; policy accept;\n\t}\n" +
		"\tchain two {\n\t\ttype filter hook ingress devices = { %q, lo } priority 0; policy accept;\n\t}\n}\n"
	node.Host.RunInput(fmt.Sprintf(rules, pod.Attrs().Name, pod.Attrs().Name), "nft", "-f", "-")
	node.Host.Do(func() {
		testutil.Must(t, netlink.LinkSetXdpFdWithFlags(pod, p.FD(), unix.XDP_FLAGS_SKB_MODE))
		wantOthers(t, l, pod.Attrs().Index, "nftables netdev guard one", "nftables netdev guard two", "XDP guard")
		wantOthers(t, l, other.Attrs().Index)
	})
}

// TestFilesRemoved: if the level's pins are removed, the kernel detaches the program, and the next Attach fails with the error for which
// the caller opens the level again.
func TestFilesRemoved(t *testing.T) {
	l, node, pod := onePod(t)
	node.Host.Do(func() {
		index := pod.HostLink().Attrs().Index
		testutil.Must(t, l.Attach(index))
		testutil.Must(t, os.RemoveAll(l.folder))
		testutil.Eventually(t, func() error { // the kernel detaches it a moment later
			err := l.Attach(index)
			return testutil.ErrorIf(!errors.Is(err, fs.ErrNotExist), "attach without the level's files: %w", err)
		})
	})
}

// TestMountedOver: another BPF file system is mounted over the one with the pins. The program stays attached, a further Attach does
// nothing, and Detach works.
func TestMountedOver(t *testing.T) {
	l, node, pod := onePod(t)
	index := pod.HostLink().Attrs().Index
	node.Host.Do(func() { testutil.Must(t, l.Attach(index)) })
	trust(t, l, index)
	wantFrom(t, "kernel", pod, server4, "attached")
	over := filepath.Dir(filepath.Dir(l.folder))
	testutil.Must(t, unix.Mount("bpf", over, "bpf", 0, ""))
	t.Cleanup(func() { testutil.Must(t, unix.Unmount(over, 0)) })
	node.Host.Do(func() { testutil.Must(t, l.Attach(index)) })
	wantFrom(t, "kernel", pod, server4, "attached again")
	node.Host.Do(func() {
		if hits, err := l.Detach(index); err != nil || hits != [2]uint64{2} {
			t.Errorf("detached after %d hits: %v", hits, err)
		}
	})
	wantFrom(t, "user", pod, server4, "detached")
}

// TestSweepLinks: the program is detached from all links of this netns, without its pins, and stays attached in another netns.
func TestSweepLinks(t *testing.T) {
	l := open(t, 8)
	node, foreign := testutil.NewNode(t, testutil.Options{Attach: testutil.PTP}), testutil.NewNode(t, testutil.Options{Attach: testutil.PTP, Name: "foreign"})
	attached := func(n *testutil.Node, index int) (there bool) {
		t.Helper()
		n.Host.Do(func() {
			result, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress})
			testutil.Must(t, err)
			there = slices.ContainsFunc(result.Programs, func(p link.AttachedProgram) bool { return programName(p.ID) == objectProgNeardnsHits })
		})
		return there
	}
	var ours []int
	for range 2 {
		ours = append(ours, node.AddPod(fmt.Sprint("pod-", len(ours))).HostLink().Attrs().Index)
	}
	theirs := foreign.AddPod("pod").HostLink().Attrs().Index
	node.Host.Do(func() {
		for _, index := range ours {
			if err := l.tcx(index); errors.Is(err, ebpf.ErrNotSupported) {
				testutil.Skip(t, "this kernel has no tcx")
			} else if err != nil {
				t.Fatal(err)
			}
		}
	})
	var stays link.Link
	foreign.Host.Do(func() {
		var err error
		if stays, err = link.AttachTCX(link.TCXOptions{Interface: theirs, Program: l.objects.NeardnsHits, Attach: ebpf.AttachTCXIngress}); err != nil {
			t.Fatal(err)
		}
	})
	defer stays.Close()
	for range 2 {
		node.Host.Do(func() { testutil.Must(t, SweepLinks()) })
		for _, index := range ours {
			if attached(node, index) {
				t.Errorf("the program is at link %d still", index)
			}
		}
		if !attached(foreign, theirs) {
			t.Error("the program went from another netns's link")
		}
	}
	// After a sweep, the level can be attached again.
	node.Host.Do(func() { testutil.Must(t, l.Attach(ours[0])) })
	if !attached(node, ours[0]) {
		t.Error("it is not attached again")
	}
}
