// Package edgeconfig reads an EdgeConfig, the configuration file of an edge: the zones that it serves, and how.
//
// It guarantees that the configuration is complete and all values are in range. Otherwise it returns an error. If the file is one YAML
// document, the error lists all faults, each with its file, line and field.
package edgeconfig

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/neardns/neardns/fleet/edge/geo"
	"github.com/neardns/neardns/internal/configfile"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/strict"
)

// The values that apiVersion and kind must have.
const (
	APIVersion = "neardns.io/v1alpha1"
	Kind       = "EdgeConfig"
)

// Config is an EdgeConfig.
type Config struct {
	Addresses []netip.Addr // listen.dns
	Port      uint16       // listen.port
	Listen    Listen       // metrics and health
	Zones     []Zone
	Geo       Geo
	Rate      Rate
	Roots     string // healthChecks.caFile: CAs that may sign the certificates of health checks' targets; "": the system's
	StateDir  string // folder of the zones' copies
	Limits    Limits
	Level     slog.Level // log.level
	JSON      bool       // log.format is json
}

// Listen has the addresses of the HTTP endpoints; an endpoint with the zero value is off.
type Listen struct{ Metrics, Health netip.AddrPort }

// Env is the part of the process's environment that Load uses.
type Env struct {
	LookupEnv func(string) (string, bool)
	ReadFile  func(path string) ([]byte, error)
}

// Limits are the limits of an edge.
type Limits struct {
	TCPConnections int // maximum number at a time
	Records        int // maximum number in a zone
}

// Zone is one zone that is served.
type Zone struct {
	Name    string             // lower case, without the final dot
	Primary nameserver.Address // the server from which the zone is transferred, and which may send NOTIFY
	// folder of the TSIG key, with the files name, secret and algorithm (if that is missing: hmac-sha256); "": no key
	Key     string
	Targets []netip.Prefix // networks to which health checks may connect
	Notify  []netip.Addr   // addresses that may send NOTIFY, in addition to the primary's
}

// Geo configures how clients are located.
type Geo struct {
	Region    geo.Place // the place of clients whose address neither Ranges nor Database has: usually the edge's own
	Ranges    []Range
	Database  string         // path of a MaxMind DB; "": none
	Resolvers []netip.Prefix // senders whose EDNS client subnet is used
}

// Range is the place of a network.
type Range struct {
	Network netip.Prefix
	Codes   geo.Place
}

// Rate limits the answers over UDP to each client network.
type Rate struct {
	Answers int            // per second and network; 0: no limit
	Slip    int            // of the answers above the limit, one in Slip is sent, truncated; 0: none
	Exempt  []netip.Prefix // networks without a limit
}

// Default returns the values of fields that a file does not set.
func Default() Config {
	at := func(port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	}
	return Config{Port: 53, Listen: Listen{Metrics: at(9273), Health: at(9274)}, Rate: Rate{Answers: 200, Slip: 2},
		StateDir: "/var/lib/neardns-edge", Limits: Limits{TCPConnections: 1024, Records: 100_000}}
}

// Restart returns the names of those fields in which e and other differ and which take effect only when the edge starts.
func (e *Config) Restart(other *Config) (fields []string) {
	for _, f := range []struct {
		name string
		same bool
	}{
		{"listen.dns", slices.Equal(e.Addresses, other.Addresses)},
		{"listen.port", e.Port == other.Port},
		{"listen.metrics", e.Listen.Metrics == other.Listen.Metrics},
		{"listen.health", e.Listen.Health == other.Listen.Health},
		{"limits", e.Limits == other.Limits},
		{"stateDir", e.StateDir == other.StateDir},
		{"log.format", e.JSON == other.JSON},
	} {
		if !f.same {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// Same reports whether z and other have the same name, primary, key folder and targets.
func (z *Zone) Same(other *Zone) bool {
	return z.Name == other.Name && z.Primary == other.Primary && z.Key == other.Key && slices.Equal(z.Targets, other.Targets)
}

// Load reads an EdgeConfig. If the file is one YAML document, an error lists all faults in it, each with its file, line and field.
func Load(path string, env Env) (*Config, error) {
	data, err := env.ReadFile(path)
	if err != nil {
		return nil, configfile.Unreadable(err)
	}
	body, err := configfile.Parse(path, data)
	if err != nil {
		return nil, err
	}
	e := Default()
	r := &reader{}
	if env.LookupEnv != nil {
		r.Expand = func(_ strict.Value, text string) (string, error) { return configfile.Expand(text, env.LookupEnv) }
	}
	if body.Kind == "" {
		const message = "the file is empty: start it with apiVersion: " + APIVersion + " and kind: " + Kind
		return nil, &strict.Fault{Place: strict.Place{File: path}, Message: message}
	}
	r.edge(body, &e)
	if err := r.Err(0); err != nil {
		return nil, strict.Sorted(err)
	}
	return &e, nil
}

// reader reads the mappings of an EdgeConfig.
type reader struct{ strict.Reader }

// keys reads a mapping by calling, for each key in it, that key's function. An unknown key and a missing required key are faults.
func (r *reader) keys(v strict.Value, read map[string]func(strict.Value), required ...string) {
	members, seen := r.Members(v), map[string]bool{}
	if v.Kind != strict.Object {
		return
	}
	for _, m := range members {
		f := read[m.Key]
		seen[m.Key] = true
		switch {
		case f == nil:
			r.Unknown(m, slices.Sorted(maps.Keys(read))...)
		case m.Value.IsNull():
			r.Fault(m.Value, "has no value: give it one or take the key out")
		default:
			f(m.Value)
		}
	}
	for _, key := range required {
		if !seen[key] {
			r.Add(&strict.Fault{Place: v.Place, Field: strict.Join(v.Field, key), Message: "missing: add it"})
		}
	}
}

func (r *reader) edge(v strict.Value, e *Config) {
	r.keys(v, map[string]func(strict.Value){
		"apiVersion": r.fixed(APIVersion),
		"kind":       r.fixed(Kind),
		"listen": func(v strict.Value) {
			r.keys(v, map[string]func(strict.Value){
				"dns":     func(v strict.Value) { e.Addresses = r.addresses(v) },
				"port":    func(v strict.Value) { e.Port = uint16(r.number(v, 1, 1<<16-1)) },
				"metrics": func(v strict.Value) { one(r, v, &e.Listen.Metrics, configfile.ParseListen) },
				"health":  func(v strict.Value) { one(r, v, &e.Listen.Health, configfile.ParseListen) },
			}, "dns")
		},
		"zones": func(v strict.Value) { e.Zones = r.zones(v) },
		"geo": func(v strict.Value) {
			r.keys(v, map[string]func(strict.Value){
				"region":    func(v strict.Value) { e.Geo.Region = many(r, v, geo.ParseCode) },
				"ranges":    func(v strict.Value) { e.Geo.Ranges = r.ranges(v) },
				"database":  func(v strict.Value) { one(r, v, &e.Geo.Database, configfile.ParsePath) },
				"resolvers": func(v strict.Value) { e.Geo.Resolvers = many(r, v, parseNetwork) },
			})
		},
		"rate": func(v strict.Value) {
			r.keys(v, map[string]func(strict.Value){
				"answers": func(v strict.Value) { e.Rate.Answers = r.number(v, 0, 1_000_000) },
				"slip":    func(v strict.Value) { e.Rate.Slip = r.number(v, 0, 100) },
				"exempt":  func(v strict.Value) { e.Rate.Exempt = many(r, v, parseNetwork) },
			})
		},
		"healthChecks": func(v strict.Value) {
			r.keys(v, map[string]func(strict.Value){"caFile": func(v strict.Value) { one(r, v, &e.Roots, configfile.ParsePath) }})
		},
		"limits": func(v strict.Value) {
			r.keys(v, map[string]func(strict.Value){
				"tcpConnections": func(v strict.Value) { e.Limits.TCPConnections = r.number(v, 1, 100_000) },
				"records":        func(v strict.Value) { e.Limits.Records = r.number(v, 1, 100_000_000) },
			})
		},
		"stateDir": func(v strict.Value) { one(r, v, &e.StateDir, configfile.ParsePath) },
		"log": func(v strict.Value) {
			r.keys(v, map[string]func(strict.Value){
				"level": func(v strict.Value) {
					level := ""
					one(r, v, &level, configfile.OneOf("debug", "info", "warn", "error"))
					_ = e.Level.UnmarshalText([]byte(level)) // an invalid level was reported already and has no effect
				},
				"format": func(v strict.Value) {
					format := ""
					one(r, v, &format, configfile.OneOf("text", "json"))
					e.JSON = format == "json"
				},
			})
		},
	}, "apiVersion", "kind", "listen", "zones")
}

func (r *reader) zones(v strict.Value) (out []Zone) {
	items := r.Items(v)
	if v.Kind == strict.List && len(items) == 0 {
		r.Fault(v, "names no zone: name at least one")
	}
	for _, item := range items {
		var z Zone
		r.keys(item, map[string]func(strict.Value){
			"name": func(v strict.Value) {
				one(r, v, &z.Name, configfile.ParseDomain)
				if slices.ContainsFunc(out, func(o Zone) bool { return o.Name == z.Name && z.Name != "" }) {
					r.Fault(v, "%s appears twice: write it once", z.Name)
				}
			},
			"primary": func(v strict.Value) { one(r, v, &z.Primary, configfile.ParseServer) },
			"key":     func(v strict.Value) { one(r, v, &z.Key, configfile.ParsePath) },
			"targets": func(v strict.Value) { z.Targets = many(r, v, parseNetwork) },
			"notify":  func(v strict.Value) { z.Notify = many(r, v, configfile.ParseAddr) },
		}, "name", "primary")
		out = append(out, z)
	}
	return out
}

func (r *reader) ranges(v strict.Value) (out []Range) {
	for _, item := range r.Items(v) {
		var e Range
		r.keys(item, map[string]func(strict.Value){
			"network": func(v strict.Value) {
				one(r, v, &e.Network, parseNetwork)
				if slices.ContainsFunc(out, func(o Range) bool { return o.Network == e.Network && e.Network.IsValid() }) {
					r.Fault(v, "%s appears twice: write it once", e.Network)
				}
			},
			"codes": func(v strict.Value) { e.Codes = many(r, v, geo.ParseCode) },
		}, "network", "codes")
		out = append(out, e)
	}
	return out
}

// addresses reads a list of addresses. An item may have several addresses with commas between them, as Kubernetes writes status.podIPs.
func (r *reader) addresses(v strict.Value) (out []netip.Addr) {
	items := r.Items(v)
	if v.Kind == strict.List && len(items) == 0 {
		r.Fault(v, "names no address: name at least one")
	}
	for _, item := range items {
		text, ok := r.Text(item)
		if !ok {
			continue
		}
		for part := range strings.SplitSeq(text, ",") {
			a, err := configfile.ParseAddr(strings.TrimSpace(part))
			switch {
			case err != nil:
				r.Fault(item, "%v", err)
			case a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast():
				r.Fault(item, "%s: name one unicast address, without zone or IPv4 mapping", a)
			case slices.Contains(out, a):
				r.Fault(item, "%s appears twice: write it once", a)
			default:
				out = append(out, a)
			}
		}
	}
	return out
}

func (r *reader) fixed(want string) func(strict.Value) {
	return func(v strict.Value) {
		if s, ok := r.Text(v); ok && s != want {
			r.Fault(v, "is %q: write %s, the only one that is known here", s, want)
		}
	}
}

func (r *reader) number(v strict.Value, least, most int) int {
	n, err := strconv.Atoi(v.Text)
	switch {
	case v.Kind != strict.Number || err != nil && !errors.Is(err, strconv.ErrRange):
		r.Mismatch(v, "a whole number, without quotes")
	case err != nil || n < least || n > most:
		r.Fault(v, "%s is not within %d and %d", v.Text, least, most)
	default:
		return n
	}
	return least
}

// one parses a string value into *to. An error of parse is a fault.
func one[T any](r *reader, v strict.Value, to *T, parse func(string) (T, error)) {
	if s, ok := r.Text(v); ok {
		out, err := parse(s)
		if err != nil {
			r.Fault(v, "%v", err)
			return
		}
		*to = out
	}
}

// many parses a list of strings, and returns the valid ones. An error of parse is a fault.
func many[T any](r *reader, v strict.Value, parse func(string) (T, error)) (out []T) {
	for _, item := range r.Items(v) {
		if s, ok := r.Text(item); ok {
			if t, err := parse(s); err != nil {
				r.Fault(item, "%v", err)
			} else {
				out = append(out, t)
			}
		}
	}
	return out
}

// parseNetwork parses a network in CIDR notation; a plain address stands for the network that has only this address.
func parseNetwork(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" && !a.Is4In6() {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return p, fmt.Errorf("%q is not a network: write one such as 10.1.0.0/16 or fd00:1::/32", s)
	}
	if p != p.Masked() {
		return p, fmt.Errorf("%s has bits set beyond the prefix length: write %s", p, p.Masked())
	}
	return p, nil
}
