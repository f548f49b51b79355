package lifecycle

import (
	"runtime"
	"time"

	"github.com/neardns/neardns/internal/telemetry"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// switchCounters returns a function that reads the packet counters of the host's rules. It opens the back end again each time, because a
// metrics scrape may come while the node's loop uses the agent's own.
func switchCounters(k rules.Kind) func() ([]telemetry.Switch, error) {
	return func() ([]telemetry.Switch, error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		host, err := k.Open(-1)
		if err != nil {
			return nil, err
		}
		defer host.Close() //nolint:errcheck // nothing was written
		return switchOf(host)
	}
}

func switchOf(host rules.Rules) ([]telemetry.Switch, error) {
	counters, err := host.Counters()
	if err != nil {
		return nil, err
	}
	var out []telemetry.Switch
	for _, c := range []struct{ name, way, protocol string }{
		{steer.CounterDeliveredUDP, "delivered", "udp"}, {steer.CounterDeliveredTCP, "delivered", "tcp"},
		{steer.CounterHeardUDP, "heard", "udp"}, {steer.CounterHeardTCP, "heard", "tcp"},
		{steer.CounterFallbackUDP, "fallback", "udp"}, {steer.CounterFallbackTCP, "fallback", "tcp"},
		{steer.CounterHostUDP, "host", "udp"}, {steer.CounterHostTCP, "host", "tcp"},
		{steer.CounterUplink, "uplink", "any"}, {steer.CounterStranger, "stranger", "any"},
		{steer.CounterProbe, "probe", "any"},
	} {
		if v, ok := counters[c.name]; ok {
			out = append(out, telemetry.Switch{Way: c.way, Protocol: c.protocol, Packets: float64(v.Packets)})
		}
	}
	return out, nil
}

// programRuns returns a function that counts the runs of the iptables programs for the metrics, by result.
func programRuns(stats *iptables.Stats) func() telemetry.Programs {
	return func() telemetry.Programs {
		failed, locked := stats.Failed.Load(), stats.Locked.Load()
		return telemetry.Programs{OK: stats.Runs.Load() - failed, Failed: failed - locked, Locked: locked, Time: time.Duration(stats.Time.Load())}
	}
}
