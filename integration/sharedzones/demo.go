package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// demo shows one zone and two clusters, step by step: join, clash, Gateways, leave. Each thing shown is also checked.
func (o options) demo(ctx context.Context, out, stderr io.Writer) error {
	kind := zoneserver.Knot
	if o.server != "" {
		kind = zoneserver.Kind(o.server)
	}
	return testutil.Program(ctx, stderr, func(t testutil.TB) {
		s := newStand(t, kind, o.binary, []string{"dublin00", "oregon00"}, "app", "shop", "api")
		d := demonstration{s, out}
		d.show()
	})
}

// demonstration prints to a person at a terminal.
type demonstration struct {
	*stand
	out io.Writer
}

func (d demonstration) say(format string, args ...any) { fmt.Fprintf(d.out, "\n"+format+"\n", args...) }

func (d demonstration) show() {
	d.say("A real %s has the empty zone %s, with a key for each of two clusters. No cluster knows of the other, and there is no hub.",
		d.server.Kind(), d.server.Zone())
	dublin, oregon := d.cluster("dublin00", clusterOptions{Poll: "500ms"}), d.cluster("oregon00", clusterOptions{Poll: "500ms"})

	d.say("Both start at the same moment, and publish app.%s with an address that they share:", d.server.Zone())
	shared := netip.MustParseAddr("192.0.2.100")
	dublin.write(record{Label: "app", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), shared}})
	oregon.write(record{Label: "app", Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.1"), shared}})
	dublin.start()
	oregon.start()
	d.whole(dublin, oregon)
	d.look(dublin, "get")

	d.say("Both change their address at the same moment. Nothing is lost:")
	before := [2]int{dublin.relay.counted().Updates, oregon.relay.counted().Updates}
	dublin.write(record{Label: "app", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2"), shared}})
	oregon.write(record{Label: "app", Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.2"), shared}})
	dublin.read()
	oregon.read()
	d.whole(dublin, oregon)
	d.look(dublin, "get")
	fmt.Fprintf(d.out, "messages: dublin00 %d, oregon00 %d\n", dublin.relay.counted().Updates-before[0], oregon.relay.counted().Updates-before[1])

	d.say("Now oregon00 wants another strategy for the host, which cannot be. It leaves, writes nothing more, and says why:")
	oregon.publish()
	d.whole(dublin)
	oregon.publish(record{Label: "app", Balanced: true, Weight: 1, Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.2")}})
	testutil.Eventually(d.t, func() error {
		if st := oregon.status.of(d.host("app")); st.Conflict != "ConflictingStrategyDiscovered" {
			return fmt.Errorf("oregon00 says %+v", st)
		}
		return nil
	})
	st := oregon.status.of(d.host("app"))
	fmt.Fprintf(d.out, "oregon00: %s: %s\n", st.Conflict, st.Message)
	d.whole(dublin)

	d.say("As soon as dublin00 leaves, oregon00 goes on by itself. The shared address went with the last that had it:")
	dublin.publish()
	d.whole(dublin, oregon)
	d.look(oregon, "get")

	d.gateways(dublin, oregon)

	d.say("oregon00 dies, and nobody is left. An operator looks whose records there are, and removes them:")
	oregon.process.Kill()
	dublin.options.Key = d.server.Operator()
	dublin.write()
	d.look(dublin, "owners")
	d.look(dublin, "remove", "--watch=2s", "--yes", "oregon00")
	d.whole(dublin)
	d.say("The zone is as empty as it was.")
}

// gateways has both clusters publish the hosts of a Gateway's listeners by one DNSPolicy, instead of by hand.
func (d demonstration) gateways(dublin, oregon *cluster) {
	d.say("No person writes hosts any more. Each cluster has a Gateway, and both apply the same DNSPolicy:")
	address := func(text string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(text)} }
	dublin.gateway, oregon.gateway = true, true
	dublin.publish(record{Label: "shop", Addresses: address("192.0.2.1")}, record{Label: "api", Addresses: address("192.0.2.1")})
	oregon.publish(record{Label: "shop", Addresses: address("198.51.100.1")}, record{Label: "api", Addresses: address("198.51.100.1")})
	fmt.Fprintf(d.out, "%s---\n%s", policy, dublin.gatewayText())
	d.whole(dublin, oregon)
	d.look(dublin, "get")

	d.say("dublin00's Gateway loses the listener of api, and oregon00's gets another address. The zone follows:")
	dublin.publish(record{Label: "shop", Addresses: address("192.0.2.1")})
	oregon.publish(record{Label: "shop", Addresses: address("198.51.100.7")}, record{Label: "api", Addresses: address("198.51.100.7")})
	d.whole(dublin, oregon)
	d.look(dublin, "get")
	d.say("Here the Gateways are files. `make demo-placement RUN=TestPoliciesBIND` has them on two API servers.")
	dublin.gateway, oregon.gateway = false, false
	dublin.publish()
	oregon.publish(record{Label: "app", Balanced: true, Weight: 1, Addresses: address("198.51.100.2")})
	d.whole(dublin, oregon)
}

// whole waits until the zone has what these clusters say, and ends the demonstration where it does not.
func (d demonstration) whole(clusters ...*cluster) {
	d.t.Helper()
	if _, lost, left := d.zoneIs(patience, clusters...); len(lost)+len(left) > 0 {
		d.t.Fatalf("the zone is not as it should be: lost %v, left over %v", lost, left)
	}
}

// look runs a command of `neardns-controller zones` and shows what it prints.
func (d demonstration) look(c *cluster, command string, args ...string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	line := append([]string{"zones", command, "--file", c.file}, args...)
	fmt.Fprintf(d.out, "$ neardns-controller %s\n", strings.ReplaceAll(strings.Join(line, " "), c.file, c.id+".yaml"))
	printed, err := exec.CommandContext(ctx, d.binary, line...).CombinedOutput()
	if err != nil {
		d.t.Fatalf("%s: %v\n%s", command, err, printed)
	}
	fmt.Fprint(d.out, string(printed))
}
