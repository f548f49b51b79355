package steer_test

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/neardns/neardns/pkg/steer"
)

var compareAddr = cmpopts.EquateComparable(netip.Addr{})

var addr = netip.MustParseAddr

// The addresses that the tests of this package use.
var (
	redirect4  = steer.Redirect{ClusterDNS: addr("10.96.0.10"), Steering: addr("169.254.20.11")}
	redirect4b = steer.Redirect{ClusterDNS: addr("10.96.0.11"), Steering: addr("169.254.20.12")}
	redirect6  = steer.Redirect{ClusterDNS: addr("fd00:10:96::a"), Steering: addr("fd00:90de:d95::b")}
	local4     = steer.Local{Address: addr("169.254.20.10"), ClusterDNS: redirect4.ClusterDNS}
	local6     = steer.Local{Address: addr("fd00:90de:d95::a"), ClusterDNS: redirect6.ClusterDNS}
)

func redirect(clusterDNS, steering string) steer.Redirect {
	var r steer.Redirect
	if clusterDNS != "" {
		r.ClusterDNS = addr(clusterDNS)
	}
	if steering != "" {
		r.Steering = addr(steering)
	}
	return r
}

func TestComplete(t *testing.T) {
	zoned := redirect("fe80::1%eth0", "")
	for _, c := range []struct {
		name string
		in   []steer.Redirect
		want []steer.Redirect
		err  string
	}{
		{name: "nothing"},
		{name: "one", in: []steer.Redirect{redirect("10.96.0.10", "")}, want: []steer.Redirect{redirect4}},
		{name: "one of IPv6", in: []steer.Redirect{redirect("fd00:10:96::a", "")}, want: []steer.Redirect{redirect6}},
		{name: "by position in the family",
			in: []steer.Redirect{redirect("10.96.0.10", ""), redirect("fd00:10:96::a", ""), redirect("10.96.0.11", ""), redirect("fd00:10:96::b", "")},
			want: []steer.Redirect{redirect("10.96.0.10", "169.254.20.11"), redirect("fd00:10:96::a", "fd00:90de:d95::b"),
				redirect("10.96.0.11", "169.254.20.12"), redirect("fd00:10:96::b", "fd00:90de:d95::c")}},
		{name: "a named one takes its position too",
			in:   []steer.Redirect{redirect("10.96.0.10", "10.1.1.1"), redirect("10.96.0.11", "")},
			want: []steer.Redirect{redirect("10.96.0.10", "10.1.1.1"), redirect("10.96.0.11", "169.254.20.12")}},
		{name: "link-local IPv4 is what the defaults are", in: []steer.Redirect{redirect("169.254.1.1", "169.254.1.2")},
			want: []steer.Redirect{redirect("169.254.1.1", "169.254.1.2")}},

		{name: "missing", in: []steer.Redirect{{}}, err: "redirects[0].clusterDNS: missing or not an IP address"},
		{name: "mapped", in: []steer.Redirect{redirect("::ffff:10.96.0.10", "")},
			err: "redirects[0].clusterDNS: ::ffff:10.96.0.10: write a plain IPv4 or IPv6 address, without mapping or zone"},
		{name: "zone", in: []steer.Redirect{zoned},
			err: "redirects[0].clusterDNS: fe80::1%eth0: write a plain IPv4 or IPv6 address, without mapping or zone"},
		{name: "unspecified", in: []steer.Redirect{redirect("0.0.0.0", "")}, err: "redirects[0].clusterDNS: 0.0.0.0 is not a unicast address that pods can reach"},
		{name: "unspecified IPv6", in: []steer.Redirect{redirect("::", "")}, err: "redirects[0].clusterDNS: :: is not a unicast address that pods can reach"},
		{name: "loopback", in: []steer.Redirect{redirect("127.0.0.53", "")}, err: "redirects[0].clusterDNS: 127.0.0.53 is not a unicast address that pods can reach"},
		{name: "multicast", in: []steer.Redirect{redirect("ff02::1", "")}, err: "redirects[0].clusterDNS: ff02::1 is not a unicast address that pods can reach"},
		{name: "broadcast", in: []steer.Redirect{redirect("255.255.255.255", "")},
			err: "redirects[0].clusterDNS: 255.255.255.255 is not a unicast address that pods can reach"},
		{name: "IPv6 link-local", in: []steer.Redirect{redirect("fe80::1", "")},
			err: "redirects[0].clusterDNS: fe80::1 is IPv6 link-local, which is not routed from a pod: use a unique local address (fd00::/8)"},
		{name: "steering loopback", in: []steer.Redirect{redirect("10.96.0.10", "127.0.0.1")},
			err: "redirects[0].steering: 127.0.0.1 is not a unicast address that pods can reach"},
		{name: "families", in: []steer.Redirect{redirect("10.96.0.10", "fd00::1")},
			err: "redirects[0]: steering address fd00::1 and cluster DNS address 10.96.0.10 are of different families"},
		{name: "cluster DNS address twice", in: []steer.Redirect{redirect("10.96.0.10", ""), redirect("10.96.0.10", "")},
			err: "redirects[1].clusterDNS: 10.96.0.10 is already redirects[0].clusterDNS: each address may be used once"},
		{name: "steering address twice", in: []steer.Redirect{redirect("10.96.0.10", "169.254.20.12"), redirect("10.96.0.11", "")},
			err: "redirects[1].steering: 169.254.20.12 is already redirects[0].steering: each address may be used once"},
		{name: "steered to itself", in: []steer.Redirect{redirect("10.96.0.10", "10.96.0.10")},
			err: "redirects[0].steering: 10.96.0.10 is already redirects[0].clusterDNS: each address may be used once"},
		{name: "the prober's", in: []steer.Redirect{redirect("10.96.0.10", "169.254.20.250")},
			err: "redirects[0].steering: 169.254.20.250 is the prober's own address: choose another"},
		{name: "the prober's as cluster DNS", in: []steer.Redirect{redirect("169.254.20.251", "")},
			err: "redirects[0].clusterDNS: 169.254.20.251 is the prober's own address: choose another"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := append([]steer.Redirect(nil), c.in...)
			got, err := steer.Complete(c.in)
			checkError(t, err, c.err)
			if diff := cmp.Diff(c.want, got, compareAddr, cmpopts.EquateEmpty()); err == nil && diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(before, c.in, compareAddr); diff != "" {
				t.Errorf("the argument was changed: %s", diff)
			}
			if err != nil {
				return
			}
			if again, err := steer.Complete(got); err != nil || cmp.Diff(got, again, compareAddr, cmpopts.EquateEmpty()) != "" {
				t.Errorf("a complete list is not left as it is: %v, %v", again, err)
			}
		})
	}
}

func TestLocals(t *testing.T) {
	both := []steer.Redirect{redirect4, redirect4b, redirect6}
	for _, c := range []struct {
		name      string
		addresses []string
		redirects []steer.Redirect
		want      []steer.Local
		err       string
	}{
		{name: "nothing", redirects: both},
		{name: "the first of the family", addresses: []string{"169.254.20.10", "fd00:90de:d95::a"}, redirects: both, want: []steer.Local{local4, local6}},
		{name: "two of one family", addresses: []string{"169.254.20.10", "169.254.20.9"}, redirects: both,
			want: []steer.Local{local4, {Address: addr("169.254.20.9"), ClusterDNS: redirect4.ClusterDNS}}},
		{name: "no redirect", addresses: []string{"fd00:90de:d95::a"}, redirects: []steer.Redirect{redirect4},
			err: "localAddresses[0]: no redirect of fd00:90de:d95::a's family, so fd00:90de:d95::a would have no fallback: add a cluster DNS address of that family or take it out"},
		{name: "a steering address", addresses: []string{"169.254.20.12"}, redirects: both,
			err: "localAddresses[0]: 169.254.20.12 is already used by redirect 10.96.0.11=169.254.20.12"},
		{name: "a cluster DNS address", addresses: []string{"169.254.20.10", "10.96.0.10"}, redirects: both,
			err: "localAddresses[1]: 10.96.0.10 is already used by redirect 10.96.0.10=169.254.20.11"},
		{name: "twice", addresses: []string{"169.254.20.10", "169.254.20.10"}, redirects: both, err: "localAddresses[1]: 169.254.20.10 is listed twice"},
		{name: "loopback", addresses: []string{"127.0.0.1"}, redirects: both, err: "localAddresses[0]: 127.0.0.1 is not a unicast address that pods can reach"},
		{name: "the prober's", addresses: []string{"169.254.20.250"}, redirects: both,
			err: "localAddresses[0]: 169.254.20.250 is the prober's own address: choose another"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var in []netip.Addr
			for _, a := range c.addresses {
				in = append(in, addr(a))
			}
			got, err := steer.Locals(in, c.redirects)
			checkError(t, err, c.err)
			if diff := cmp.Diff(c.want, got, compareAddr); err == nil && diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	if _, err := steer.Locals([]netip.Addr{{}}, both); err == nil || err.Error() != "localAddresses[0]: missing or not an IP address" {
		t.Errorf("missing address: %v", err)
	}
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	got := ""
	if err != nil {
		got = err.Error()
	}
	if got != want {
		t.Errorf("error %q, want %q", got, want)
	}
}

func TestRedirectText(t *testing.T) {
	if got := redirect4.String(); got != "10.96.0.10=169.254.20.11" {
		t.Error(got)
	}
	data, err := json.Marshal([]steer.Redirect{redirect4, redirect("10.96.0.11", "")})
	if want := `[{"clusterDNS":"10.96.0.10","steering":"169.254.20.11"},{"clusterDNS":"10.96.0.11"}]`; err != nil || string(data) != want {
		t.Errorf("%s, %v; want %s", data, err, want)
	}
	if !redirect4.Is4() || redirect6.Is4() {
		t.Error("Is4 tells families wrongly")
	}
	for p, want := range map[steer.Protocol]string{steer.UDP: "udp", steer.TCP: "tcp", 132: "protocol 132"} {
		if p.String() != want {
			t.Errorf("%s, want %s", p, want)
		}
	}
	err = &steer.DriftError{Items: []string{"a is missing", "b is not ours"}}
	if err.Error() != "rules differ: a is missing; b is not ours" {
		t.Error(err)
	}
}
