package cache

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/neardns/neardns/internal/dns/cache/answers"
)

// Defaults and limits. They are CoreDNS's, except for maxHold, and for defaultStaleTTL and defaultRecheck, which RFC 8767 recommends.
const (
	defaultCapacity = 10000
	defaultMaxTTL   = time.Hour
	defaultMinTTL   = 5 * time.Second
	defaultStale    = time.Hour
	defaultStaleTTL = 30
	defaultRecheck  = 30 * time.Second
	maxFailure      = 5 * time.Minute // the maximum of RFC 2308, section 7.1, and RFC 9520, section 3.2
	maxHold         = 5 * time.Minute
)

// policy is the configuration of one cache directive. Arrays are indexed by answers.Class.
type policy struct {
	refresh
	zones    []string
	capacity [2]int
	maxTTL   [2]time.Duration
	minTTL   [2]time.Duration
	except   [2][]string // zones of which nothing is stored
	failTTL  time.Duration
	rotate   bool // change the order of an answer's addresses from reply to reply

	staleFor   time.Duration // how long after its TTL an entry may be served; 0: not at all
	verify     bool
	verifyWait time.Duration // 0: as long as the upstream takes
	staleTTL   uint32
	recheck    time.Duration
	onSilence  bool          // serve stale answers only if the upstream sends no answer
	hold       time.Duration // how long a denial of a name with an entry must last before it is believed

	answersOf string // names the source of the answers in the block's scope; "": the upstreams' addresses do
}

// refresh configures which entries are fetched before they expire, and when.
type refresh struct {
	prefetch   int           // hits that make an entry popular, with at most gap between them; 0: no refresh
	gap        time.Duration // 0 without refresh
	percentage int           // without timed: a hit refreshes the entry if at most this percentage of the TTL is left
	timed      bool          // a timer refreshes the entry shortly before its TTL ends (see ahead)
}

func defaults() policy {
	return policy{
		capacity: [2]int{defaultCapacity, defaultCapacity},
		maxTTL:   [2]time.Duration{defaultMaxTTL, defaultMaxTTL / 2},
		minTTL:   [2]time.Duration{defaultMinTTL, defaultMinTTL},
		failTTL:  defaultMinTTL,
		refresh:  refresh{gap: time.Minute, percentage: 10},
		staleTTL: defaultStaleTTL,
		recheck:  defaultRecheck,
	}
}

// parse reads "cache [TTL] [ZONES...]" and its block: CoreDNS's syntax, with properties that only this plugin has.
func parse(c *caddy.Controller) (policy, error) {
	p := defaults()
	for i := 0; c.Next(); i++ {
		if i > 0 {
			return p, plugin.ErrOnce
		}
		args := c.RemainingArgs()
		if len(args) > 0 {
			if n, err := strconv.Atoi(args[0]); err == nil {
				ttl, err := seconds(c, "TTL", n, 1)
				if err != nil {
					return p, err
				}
				p.maxTTL = [2]time.Duration{ttl, ttl}
				args = args[1:]
			}
		}
		p.zones = plugin.OriginsFromArgsOrServerBlock(args, c.ServerBlockKeys)
		hot := ""
		for c.NextBlock() {
			name := c.Val()
			if name == "prefetch" || name == "refresh" {
				if hot != "" && hot != name {
					return p, c.Errf("%s and %s contradict each other about refreshing popular names: write one of them", hot, name)
				}
				hot = name
			}
			if err := p.property(c, name, c.RemainingArgs()); err != nil {
				return p, err
			}
		}
		if p.onSilence && !p.verify {
			return p, c.Err("stale_on_silence requires serve_stale with verify")
		}
		if p.prefetch == 0 {
			p.gap = 0
		}
	}
	return p, nil
}

func (p *policy) property(c *caddy.Controller, name string, args []string) error {
	switch name {
	case "success":
		return p.class(c, answers.Success, args)
	case "denial":
		return p.class(c, answers.Denial, args)
	case "prefetch":
		return p.readPrefetch(c, args)
	case "refresh":
		p.timed = true
		return p.readHot(c, name, args)
	case "serve_stale":
		return p.readStale(c, args)
	case "servfail":
		return one(c, args, maxFailure, &p.failTTL)
	case "hold_denials":
		return one(c, args, maxHold, &p.hold)
	case "answers_of":
		if len(args) != 1 {
			return c.ArgErr()
		}
		p.answersOf = args[0]
	case "disable":
		return p.disable(c, args)
	case "keepttl", "serve_stale_policy": // CoreDNS's; accepted, because a node that refuses its Corefile has no cache
		clog.NewWithPlugin("cache").Warningf("%s has no effect here: take it out, or write hold_denials against a starting upstream's denials",
			name)
	case "rotate":
		return on(c, args, &p.rotate)
	case "stale_on_silence":
		return on(c, args, &p.onSilence)
	default:
		return c.Errf("unknown property %q", name)
	}
	return nil
}

// class reads CAPACITY [TTL] [MINTTL], the arguments of success and denial. Like CoreDNS it ignores further arguments.
func (p *policy) class(c *caddy.Controller, class answers.Class, args []string) error {
	if len(args) == 0 {
		return c.ArgErr()
	}
	numbers := make([]int, min(len(args), 3))
	for i := range numbers {
		n, err := strconv.Atoi(args[i])
		if err != nil {
			return c.Errf("%q is not a number", args[i])
		}
		numbers[i] = n
	}
	// CoreDNS's minimum, with which each of its 256 shards has room for four entries.
	p.capacity[class] = max(numbers[0], 1024)
	var err error
	if len(numbers) > 1 {
		if p.maxTTL[class], err = seconds(c, "TTL", numbers[1], 1); err != nil {
			return err
		}
	}
	if len(numbers) > 2 {
		p.minTTL[class], err = seconds(c, "MINTTL", numbers[2], 0)
	}
	return err
}

// readPrefetch reads AMOUNT [DURATION [PERCENTAGE%]].
func (p *policy) readPrefetch(c *caddy.Controller, args []string) error {
	if err := p.readHot(c, "prefetch", args[:min(len(args), 2)]); err != nil {
		return err
	}
	if len(args) > 3 {
		return c.ArgErr()
	}
	if len(args) > 2 {
		number, isPercentage := strings.CutSuffix(args[2], "%")
		n, err := strconv.Atoi(number)
		if err != nil || !isPercentage || n < 1 || n > 90 {
			return c.Errf("prefetch %q: write a percentage from 1%% to 90%%", args[2])
		}
		p.percentage = n
	}
	return nil
}

// readHot reads AMOUNT [DURATION], the first arguments of prefetch and refresh.
func (p *policy) readHot(c *caddy.Controller, name string, args []string) error {
	if len(args) == 0 || len(args) > 2 {
		return c.ArgErr()
	}
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 0 {
		return c.Errf("%s %q: write a number of hits, 0 for never", name, args[0])
	}
	p.prefetch = n
	if len(args) > 1 {
		if p.gap, err = time.ParseDuration(args[1]); err != nil {
			return c.Errf("%s: %v", name, err)
		}
	}
	return nil
}

// readStale reads the arguments of serve_stale: [DURATION] [immediate [RESPONSE_TTL [RECHECK]] | verify [TIMEOUT [RESPONSE_TTL
// [RECHECK]]]].
func (p *policy) readStale(c *caddy.Controller, args []string) error {
	p.staleFor, p.verify, p.verifyWait, p.staleTTL, p.recheck = defaultStale, false, 0, defaultStaleTTL, defaultRecheck
	fail := func(what string, err error) error { return c.Errf("serve_stale: %s: %v", what, err) }
	if len(args) > 0 {
		d, err := duration(args[0], time.Duration(1<<63-1))
		if err != nil {
			return fail("how long", err)
		}
		p.staleFor, args = d, args[1:]
	}
	if len(args) > 0 {
		switch strings.ToLower(args[0]) {
		case "immediate":
		case "verify":
			p.verify = true
		default:
			return c.Errf("serve_stale: mode %q: write immediate or verify", args[0])
		}
		args = args[1:]
	}
	if p.verify && len(args) > 0 {
		d, err := duration(args[0], time.Duration(1<<63-1))
		if err != nil {
			return fail("timeout", err)
		}
		p.verifyWait, args = d, args[1:]
	}
	if len(args) > 0 {
		d, err := duration(args[0], 1<<31*time.Second-1)
		if err == nil && d%time.Second != 0 {
			err = errors.New("write whole seconds")
		}
		if err != nil {
			return fail("response TTL", err)
		}
		p.staleTTL, args = uint32(d/time.Second), args[1:]
	}
	if len(args) > 0 {
		d, err := duration(args[0], 5*time.Minute) // CoreDNS's maximum
		if err != nil {
			return fail("failure recheck", err)
		}
		p.recheck, args = d, args[1:]
	}
	if len(args) > 0 {
		return c.ArgErr()
	}
	return nil
}

// disable reads success|denial [ZONES...].
func (p *policy) disable(c *caddy.Controller, args []string) error {
	if len(args) == 0 {
		return c.ArgErr()
	}
	class := answers.Success
	switch args[0] {
	case "success":
	case "denial":
		class = answers.Denial
	default:
		return c.Errf("disable %q: write success or denial", args[0])
	}
	p.except[class] = nil
	for _, z := range args[1:] {
		n := plugin.Name(z).Normalize()
		if n == "" {
			return c.Errf("disable: %q is not a zone", z)
		}
		p.except[class] = append(p.except[class], n)
	}
	if len(args) == 1 {
		p.except[class] = []string{"."}
	}
	return nil
}

// on reads a property without arguments.
func on(c *caddy.Controller, args []string, to *bool) error {
	if len(args) != 0 {
		return c.ArgErr()
	}
	*to = true
	return nil
}

// one reads a single duration.
func one(c *caddy.Controller, args []string, limit time.Duration, to *time.Duration) error {
	if len(args) != 1 {
		return c.ArgErr()
	}
	d, err := duration(args[0], limit)
	if err != nil {
		return c.Err(err.Error())
	}
	*to = d
	return nil
}

func duration(s string, limit time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, err
	case d < 0:
		return 0, fmt.Errorf("%s is negative", s)
	case d > limit:
		return 0, fmt.Errorf("%s is more than %s", s, limit)
	}
	return d, nil
}

func seconds(c *caddy.Controller, what string, n, minimum int) (time.Duration, error) {
	if n < minimum || n > 1<<31-1 {
		return 0, c.Errf("%s of %d s: write %d to 2147483647", what, n, minimum)
	}
	return time.Duration(n) * time.Second, nil
}
