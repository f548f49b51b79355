package translate

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

var (
	dns4, dns6     = netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")
	other4, other6 = netip.MustParseAddr("10.96.0.99"), netip.MustParseAddr("fd00:96::99")
	endpoint4      = netip.MustParseAddr("10.244.2.2")
	endpoint6      = netip.MustParseAddr("fd00:244:2::2")
)

// host is a netns with a default route in each family, as a node has.
func host(t *testing.T) *testutil.NetNS {
	t.Helper()
	testutil.RequireRoot(t)
	ns, up := testutil.NewNS(t, "translate"), testutil.NewNS(t, "uplink")
	testutil.VethPair(t, ns, "eth0", up, "eth0")
	for _, a := range [][2]string{{"192.0.2.10/24", "192.0.2.1"}, {"2001:db8::10/64", "2001:db8::1"}} {
		gateway := netip.MustParseAddr(a[1])
		ns.AddAddr("eth0", netip.MustParsePrefix(a[0]))
		ns.AddRoute(testutil.DefaultRoute(gateway), gateway, "eth0")
	}
	return ns
}

func (f Finding) String() string { return fmt.Sprintf("%s: %d, %s", f.Address, f.State, f.Why) }

func lookIn(ns *testutil.NetNS, addresses ...netip.Addr) (out []Finding) {
	ns.Do(func() { out = Look(addresses...) })
	return out
}

// want ends the test unless each address was found to be in the state, by words that hold why.
func want(t *testing.T, ns *testutil.NetNS, state State, why string, addresses ...netip.Addr) {
	t.Helper()
	for _, f := range lookIn(ns, addresses...) {
		if f.State != state || !strings.Contains(f.Why, why) {
			t.Errorf("%s; want %d, %q", f, state, why)
		}
	}
}

func service(address, endpoint netip.Addr) []testutil.Service {
	if !endpoint.IsValid() {
		return testutil.DNSService(address)
	}
	return testutil.DNSService(address, endpoint)
}

// kube-proxy is known by its rules, in either mode, also while kube-dns has no endpoint.
func TestKubeProxy(t *testing.T) {
	for mode, words := range map[testutil.ProxyMode]string{testutil.IPTables: "KUBE-SERVICES", testutil.NFTables: "nftables, table kube-proxy"} {
		t.Run(string(mode), func(t *testing.T) {
			ns := host(t)
			want(t, ns, None, "no rules of kube-proxy", dns4, dns6)
			proxy := testutil.InstallProxy(t, ns, mode, slices.Concat(service(dns4, endpoint4), service(dns6, endpoint6))...)
			want(t, ns, Translated, words, dns4, dns6)
			want(t, ns, None, "name other addresses", other4, other6)
			proxy.Set(slices.Concat(service(dns4, netip.Addr{}), service(dns6, netip.Addr{}))...)
			want(t, ns, Translated, map[testutil.ProxyMode]string{testutil.IPTables: "table filter", testutil.NFTables: "kube-proxy"}[mode], dns4, dns6)
		})
	}
}

// A hundred Services more do not hide the one that is looked for, nor stand for it.
func TestAmongManyServices(t *testing.T) {
	for _, mode := range []testutil.ProxyMode{testutil.IPTables, testutil.NFTables} {
		t.Run(string(mode), func(t *testing.T) {
			ns := host(t)
			proxy := testutil.InstallProxy(t, ns, mode, testutil.ManyServices(true, 100)...)
			want(t, ns, None, "name other addresses", netip.MustParseAddr("10.96.255.254"))
			proxy.Add(service(netip.MustParseAddr("10.96.255.254"), endpoint4)...)
			want(t, ns, Translated, "", netip.MustParseAddr("10.96.255.254"))
		})
	}
}

func TestLegacyIptables(t *testing.T) {
	ns := host(t)
	for _, tc := range []struct {
		program, address string
	}{{"iptables-legacy", dns4.String()}, {"ip6tables-legacy", dns6.String()}} {
		run := func(args ...string) { ns.Run(slices.Concat([]string{tc.program, "-w"}, args)...) }
		a := netip.MustParseAddr(tc.address)
		// What NodeLocal DNSCache has names the address and translates nothing.
		run("-t", "raw", "-A", "PREROUTING", "-d", tc.address, "-p", "udp", "--dport", "53", "-j", "NOTRACK")
		run("-t", "nat", "-A", "PREROUTING", "-d", tc.address, "-j", "RETURN")
		run("-t", "nat", "-N", "NEARDNS-POD")
		run("-t", "nat", "-A", "NEARDNS-POD", "-d", tc.address, "-p", "udp", "-j", "REDIRECT")
		want(t, ns, None, "no rules of kube-proxy", a)
		run("-t", "nat", "-N", "KUBE-SERVICES")
		want(t, ns, None, "kube-proxy's rules in iptables-legacy name other addresses", a)
		run("-N", "KUBE-SERVICES")
		run("-A", "KUBE-SERVICES", "-d", tc.address, "-p", "udp", "--dport", "53", "-j", "REJECT")
		want(t, ns, Translated, "iptables-legacy, table filter, chain KUBE-SERVICES", a)
		run("-t", "nat", "-N", "KUBE-SVC-TCOU7JCQXEZGVUNU")
		run("-t", "nat", "-A", "KUBE-SERVICES", "-d", tc.address, "-p", "udp", "--dport", "53", "-j", "KUBE-SVC-TCOU7JCQXEZGVUNU")
		want(t, ns, Translated, "iptables-legacy, table nat, chain KUBE-SERVICES", a)
	}
}

// Who else translates is found by what its rules do, whatever they are called.
func TestOtherRules(t *testing.T) {
	for rules, state := range map[string]State{
		`table ip own { chain pre { type nat hook prerouting priority -100; ip daddr 10.96.0.10 udp dport 53 dnat to 10.244.2.2; }; }`:                                     Translated,
		`table inet own { chain pre { type nat hook prerouting priority -100; ip daddr 10.96.0.10 jump to; }; chain to { dnat ip to 10.244.2.2; }; }`:                      Translated,
		`table ip own { chain pre { type nat hook prerouting priority -100; dnat to ip daddr map { 10.96.0.10 : 10.244.2.2 }; }; }`:                                        Translated,
		`table ip own { chain pre { type nat hook prerouting priority -100; ip daddr . udp dport vmap { 10.96.0.10 . 53 : goto to }; }; chain to { dnat to 10.0.0.1; }; }`: Translated,
		`table ip own { chain pre { type nat hook prerouting priority -100; ip daddr 10.96.0.99 dnat to 10.244.2.2; }; }`:                                                  None,
		`table ip own { chain pre { type nat hook prerouting priority -100; ip daddr 10.96.0.10 accept; }; }`:                                                              None,
		`table ip own { chain pre { type filter hook prerouting priority -300; ip daddr 10.96.0.10 udp dport 53 notrack; }; }`:                                             None,
		`table ip own { chain out { type nat hook output priority -100; ip daddr 10.96.0.10 dnat to 10.244.2.2; }; }`:                                                      None,
		`table ip nat { chain NEARDNS-POD { ip daddr 10.96.0.10 dnat to 169.254.20.11; }; chain pre { type nat hook prerouting priority -100; }; }`:                        None,
		`table inet neardns { chain pre { type nat hook prerouting priority -100; ip daddr 10.96.0.10 dnat ip to 10.244.2.2; }; }`:                                         None,
	} {
		ns := host(t)
		if strings.Contains(rules, "chain to {") { // it must be there before it is named
			parts := strings.SplitN(rules, "chain pre", 2)
			pre, to, _ := strings.Cut(parts[1], "chain to")
			rules = parts[0] + "chain to" + strings.TrimSuffix(to, " }") + " chain pre" + pre + "}"
		}
		ns.RunInput(rules+"\n", "nft", "-f", "-")
		if got := lookIn(ns, dns4)[0]; got.State != state {
			t.Errorf("%s\n%s; want %d", rules, got, state)
		}
	}
}

// Where a packet is led on purpose, or passes a program as it leaves, nobody can tell from here.
func TestRoutes(t *testing.T) {
	t.Run("no route at all", func(t *testing.T) {
		testutil.RequireRoot(t)
		want(t, testutil.NewNS(t, "translate"), None, "no rules of kube-proxy", dns4, dns6)
	})
	t.Run("an address of the host", func(t *testing.T) {
		ns := host(t)
		ns.AddAddr("lo", testutil.Host(dns4))
		want(t, ns, Unknown, "it is an address of this host", dns4)
		want(t, ns, None, "", dns6)
	})
	t.Run("a route of its own", func(t *testing.T) {
		ns := host(t)
		ns.Bridge("antrea-gw0")
		ns.AddRoute(netip.MustParsePrefix("10.96.0.0/12"), netip.Addr{}, "antrea-gw0")
		want(t, ns, Unknown, "route of its own (10.96.0.0/12, by antrea-gw0)", dns4)
		testutil.InstallProxy(t, ns, testutil.NFTables, service(dns4, endpoint4)...)
		want(t, ns, Translated, "kube-proxy", dns4)
	})
	t.Run("Cilium", func(t *testing.T) {
		ns := host(t)
		ns.Bridge("cilium_host")
		want(t, ns, None, "Cilium is on this node", dns4, dns6)
	})
	for name, attach := range map[string]func(*testing.T, netlink.Link, int){"clsact": attachClsact, "tcx": attachTCX} {
		t.Run(name, func(t *testing.T) {
			ns := host(t)
			ns.Do(func() {
				link, err := netlink.LinkByName("eth0")
				if err != nil {
					t.Fatal(err)
				}
				program := loadProgram(t)
				defer unix.Close(program)
				attach(t, link, program)
			})
			want(t, ns, Unknown, "programs at the egress of eth0", dns4, dns6)
		})
	}
}

// loadProgram loads the least program for tc: r0 = TC_ACT_UNSPEC; exit.
func loadProgram(t *testing.T) int {
	t.Helper()
	const progLoad, schedCls = 5, 3
	instructions := [16]byte{0xb7, 4: 0xff, 5: 0xff, 6: 0xff, 7: 0xff, 8: 0x95}
	license := []byte("GPL\x00")
	attr := struct {
		kind, count           uint32
		instructions, license unsafe.Pointer
		_                     [96]byte
	}{kind: schedCls, count: 2, instructions: unsafe.Pointer(&instructions), license: unsafe.Pointer(&license[0])}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, progLoad, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		t.Fatalf("load a program: %v", errno)
	}
	return int(fd)
}

func attachClsact(t *testing.T, link netlink.Link, program int) {
	t.Helper()
	at := link.Attrs().Index
	clsact := &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{LinkIndex: at, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := netlink.QdiscAdd(clsact); err != nil {
		t.Fatal(err)
	}
	filter := &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: at, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Protocol: unix.ETH_P_ALL}, Fd: program, Name: "try", DirectAction: true}
	if err := netlink.FilterAdd(filter); err != nil {
		t.Fatal(err)
	}
}

func attachTCX(t *testing.T, link netlink.Link, program int) {
	t.Helper()
	const progAttach, tcxEgress = 8, 47
	attr := struct{ ifindex, fd, kind, flags, a, b, c, d uint32 }{ifindex: uint32(link.Attrs().Index), fd: uint32(program), kind: tcxEgress}
	if _, _, errno := unix.Syscall(unix.SYS_BPF, progAttach, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr)); errno != 0 {
		t.Fatalf("attach at tcx: %v", errno)
	}
}

// Without CAP_NET_ADMIN nothing is known, and that is what is said.
func TestWithoutCapability(t *testing.T) {
	ns := host(t)
	testutil.InstallProxy(t, ns, testutil.NFTables, service(dns4, endpoint4)...)
	ns.Do(func() {
		// The thread's capabilities only; it ends with its goroutine's lock.
		runtime.LockOSThread()
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var had, none [2]unix.CapUserData
		if err := unix.Capget(&head, &had[0]); err != nil {
			t.Fatal(err)
		}
		none = had
		none[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		if err := unix.Capset(&head, &none[0]); err != nil {
			t.Fatal(err)
		}
		got := Look(dns4)[0]
		if err := unix.Capset(&head, &had[0]); err != nil {
			t.Fatal(err)
		}
		if got.State != Unknown || !strings.Contains(got.Why, "nftables cannot be looked at") {
			t.Errorf("%s", got)
		}
	})
}

// The kernels at hand have no IPVS, so its table is read from a file in the form that net/netfilter/ipvs/ip_vs_ctl.c prints.
func TestVirtualServers(t *testing.T) {
	text, err := os.ReadFile("testdata/ip_vs")
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.AddrPort{
		netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), 443), netip.AddrPortFrom(dns4, 53), netip.AddrPortFrom(dns4, 9153),
		netip.AddrPortFrom(dns6, 53), netip.AddrPortFrom(dns4, 53), netip.AddrPortFrom(dns6, 53),
	}
	if d := cmp.Diff(want, virtualServers(string(text)), cmpopts.EquateComparable(netip.AddrPort{})); d != "" {
		t.Errorf("virtual servers (-want +got):\n%s", d)
	}
	for _, tc := range []struct {
		table string
		a     netip.Addr
		want  place
	}{
		{string(text), dns4, place{by: "IPVS"}},
		{string(text), dns6, place{by: "IPVS"}},
		{string(text), netip.MustParseAddr("10.96.0.1"), place{near: "IPVS has no virtual server for it"}}, // another port
		{string(text), other6, place{near: "IPVS has no virtual server for it"}},
		{strings.Join(strings.SplitAfter(string(text), "\n")[:3], ""), dns4, place{}}, // loaded, and not in use
		{"", dns4, place{}},
	} {
		if got := ipvs(tc.table, tc.a); got != tc.want {
			t.Errorf("%s in IPVS: %+v, want %+v", tc.a, got, tc.want)
		}
	}
}

func FuzzVirtualServers(f *testing.F) {
	f.Add("TCP  0A60000A:0035 rr\n")
	f.Add("UDP  [fd00:0096:0000:0000:0000:0000:0000:000a]:0035 rr\n")
	f.Add("TCP  0A60000A0035\nUDP\nTCP :0035\nTCP [:0035")
	f.Fuzz(func(t *testing.T, text string) {
		for _, s := range virtualServers(text) {
			if !s.IsValid() {
				t.Errorf("an invalid address out of %q", text)
			}
		}
	})
}

// Whatever a kernel sends is read to its end and no further.
func FuzzReadRule(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{8, 0, 1, 0, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, expressions []byte) {
		if r := readRule(expressions, dns4); r.names && !strings.Contains(string(expressions), string(dns4.AsSlice())) {
			t.Error("names an address that is not there")
		}
	})
}
