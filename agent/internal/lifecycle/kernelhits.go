package lifecycle

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/agent/internal/pods/podindex"
	"github.com/neardns/neardns/internal/offload"
	"github.com/neardns/neardns/internal/offload/bpf"
	"github.com/neardns/neardns/internal/offload/podlinks"
	"github.com/neardns/neardns/internal/telemetry"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/tick"
)

// Intervals of kernel hits.
const (
	kernelPoll  = time.Second      // between two checks whether the pods or the configuration changed
	kernelFull  = 10 * time.Second // between two checks of all pods' links, even if nothing changed
	kernelAgain = 30 * time.Second // pause after a failure before kernel hits are enabled again
)

// kernelAnswers is the maximum number of entries that the kernel program serves. A node has some hundreds of hot names.
const kernelAnswers = 4096

// kernel enables, checks and disables kernel hits as the configuration wants. One goroutine calls run. Other goroutines may call pause,
// count, status, series and reportBroken at any time. These methods, run and reconcile lock mu; callers of other methods that use the
// fields below mu hold it.
type kernel struct {
	log         *slog.Logger
	folder      string // path in the BPF file system where program and maps are pinned
	offloader   *offload.Offloader
	clients     *podindex.Clients
	registry    *pods.Pods
	conf        func() *config.Node
	served      func() []netip.AddrPort        // the addresses whose queries the kernel program answers
	transparent *transparent                   // set with arrangement: transparent; nil if pods are steered
	bypassed    func() map[netip.Addr]struct{} // source addresses of clients that the switch bypasses

	mu         sync.Mutex // guards the fields below; level is opened and closed under it
	level      *bpf.Level
	keeper     *podlinks.Keeper
	fault      string    // why kernel hits do not work although the configuration enables them
	again      time.Time // after a failure: no new try before this time, unless the configuration changes
	paused     bool      // a handover is under way or done
	seen       kernelInput
	broken     error  // why mirrored queries cannot be read; nil once the level is opened again
	stopMirror func() // stops reading mirrored queries; does nothing if none are read
}

// kernelInput has what the last check of the pods' links was based on. If nothing but the time has changed, no check is made until
// kernelFull has passed.
type kernelInput struct {
	at       time.Time
	pods     []podfile.File
	conf     *config.Node
	bypassed map[netip.Addr]struct{}
	served   []netip.AddrPort
}

// run keeps kernel hits in the configured state until ctx ends. After that, the kernel program stays attached to the pods' links, and
// serves its entries until they expire.
func (k *kernel) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { k.offloader.Run(ctx) })
	for ok := true; ok; ok = tick.Grid(ctx, kernelPoll) {
		k.reconcile()
	}
	wg.Wait()
	k.offloader.Leave()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.level != nil {
		k.stopMirror()
		_ = k.level.Close() // only descriptors are closed; program and maps stay pinned
		k.level = nil
	}
}

// reconcile opens, attaches or closes the BPF program as the configuration wants.
func (k *kernel) reconcile() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.paused {
		return
	}
	conf := k.conf()
	if conf.KernelHits.Mode == config.KernelHitsOff {
		if k.seen.conf == nil || k.seen.conf.KernelHits.Mode != config.KernelHitsOff {
			k.disable()
			k.seen = kernelInput{conf: conf}
		}
		return
	}
	if err := cmp.Or(k.broken, k.offloader.State().Fault); k.level != nil && err != nil {
		k.fail(err)
	}
	if k.level == nil {
		if changed := k.seen.conf != conf; !changed && time.Now().Before(k.again) {
			return
		}
		k.seen = kernelInput{conf: conf}
		err := k.excluded(conf)
		if err == nil {
			err = k.openLevel()
		}
		if err != nil {
			k.fail(err)
			return
		}
	}
	if err := errors.Join(k.level.Beat(), k.attach(conf)); err != nil {
		k.fail(err)
	}
}

// excluded returns the reason why kernelHits.mode: auto does not enable kernel hits on this node. It returns nil if that mode does enable
// them, and in any other mode.
func (k *kernel) excluded(conf *config.Node) error {
	if !automatic(conf) {
		return nil
	}
	if why := autoExcludes(conf, readNodeSigns("/proc")); why != "" {
		return errors.New(why)
	}
	return nil
}

// automatic reports whether kernelHits.mode is auto. Kernel hits are then optional: if they are impossible, the node is still healthy.
func automatic(conf *config.Node) bool { return conf.KernelHits.Mode == config.KernelHitsAuto }

// openLevel loads the BPF program and its maps, and tests them before the program is attached to a pod's link.
func (k *kernel) openLevel() error {
	level, err := bpf.Open(bpf.Options{Folder: k.folder, Entries: kernelAnswers, Copies: k.transparent != nil, Log: k.log})
	if err != nil {
		return err
	}
	k.level = level
	k.keeper = &podlinks.Keeper{Log: k.log, Program: level, Veth: k.registry.Veth, Count: k.clients.AnsweredInKernel,
		AllowOthers: k.transparent != nil, Refusals: k.refusals}
	if err := level.Serve(k.served()); err != nil {
		return err
	}
	if err := level.Test(); err != nil {
		return fmt.Errorf("the self-test: %w", err)
	}
	if err := level.Retire(); err != nil { // before entries are offloaded, because this agent cannot revoke other builds' entries
		return fmt.Errorf("remove another build's kernel hits: %w", err)
	}
	if err := k.offloader.Begin(kernelTable{level}); err != nil {
		return err
	}
	if k.transparent != nil {
		k.stopMirror = k.transparent.listen(level)
	}
	k.fault, k.broken = "", nil
	k.log.Info("kernel program for hits loaded and tested; it is attached to pods' links next", "mode", k.conf().KernelHits.Mode)
	return nil
}

// attach attaches the BPF program to the links of the pods that should have it. It does nothing if its input has not changed, except for
// a full check every kernelFull.
func (k *kernel) attach(conf *config.Node) error {
	now := kernelInput{at: time.Now(), pods: k.registry.List(), conf: conf, bypassed: k.bypassed(), served: k.served()}
	if !slices.Equal(now.served, k.seen.served) {
		if err := k.level.Serve(now.served); err != nil {
			return err
		}
		k.seen.served = now.served
	}
	deep := now.at.Sub(k.seen.at) >= kernelFull
	if !deep && reflect.DeepEqual(now.pods, k.seen.pods) && now.conf == k.seen.conf && reflect.DeepEqual(now.bypassed, k.seen.bypassed) {
		return nil
	}
	if err := k.excluded(conf); err != nil {
		return err
	}
	k.seen = now
	return k.keeper.Reconcile(podsInKernel(now))
}

// refusals returns the log level for reasons why hits are not served in the kernel: Info if kernel hits are optional, else Warn.
func (k *kernel) refusals() slog.Level {
	if automatic(k.conf()) {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// podsInKernel lists the pods for which kernel hits are enabled. Why is set for a pod that cannot have them.
func podsInKernel(l kernelInput) []podlinks.Pod {
	var out []podlinks.Pod
	for _, f := range l.pods {
		want, why := podindex.InKernel(f, l.conf)
		if !want {
			continue
		}
		for _, a := range f.Addresses {
			if _, ok := l.bypassed[a]; ok && why == "" {
				why = "it is bypassed, kube-dns answers it: a network policy or firewall drops its queries to the agent"
			}
		}
		out = append(out, podlinks.Pod{File: f, Why: why})
	}
	return out
}

// bypassedSources returns the source addresses of clients that the switch bypasses.
func bypassedSources(e node.Evidence) map[netip.Addr]struct{} {
	out := map[netip.Addr]struct{}{}
	if e == nil {
		return out // this back end records no evidence, so it bypasses no single client
	}
	for _, b := range e.Bypassed() {
		out[b.Source] = struct{}{}
	}
	return out
}

// disable closes the BPF program if it is open, and tries once to remove the pinned programs and maps, which a program that could not be
// loaded, or an earlier agent, may have left, too.
func (k *kernel) disable() {
	k.fault = ""
	if k.level != nil {
		k.closeLevel()
		k.log.Info("kernel hits disabled by the configuration")
	}
	if err := removeKernelHits(k.folder); err != nil {
		k.log.Warn("cannot remove all kernel programs of neardns; run `neardns-agent cleanup` on the host when the agent has ended", "err", err)
	}
}

// removeKernelHits removes pinned programs and maps from a folder of the BPF file system, and detaches the programs from links of this
// netns. If the folder is missing, it removes nothing there: in a container /sys is read-only, where removing even a missing file is an
// error.
func removeKernelHits(folder string) error {
	if _, err := os.Lstat(folder); !errors.Is(err, fs.ErrNotExist) {
		if err := bpf.Sweep(folder); err != nil {
			return err
		}
	}
	return bpf.SweepLinks()
}

// fail disables kernel hits until a later retry, and logs err, but not again if the retry fails in the same way. Meanwhile the agent
// answers the hits, or kube-dns with arrangement: transparent.
func (k *kernel) fail(err error) {
	opened := k.level != nil
	k.closeLevel()
	if text := err.Error(); text != k.fault {
		k.log.Log(context.Background(), k.refusals(), "kernel hits are off until a retry succeeds", "err", err)
		k.fault = text
		if !opened { // detach a program of an earlier agent, which would answer by that agent's configuration
			if err := bpf.SweepLinks(); err != nil {
				k.log.Warn("an earlier agent's kernel program may still answer some pods; cannot detach it", "err", err)
			}
		}
	}
	k.again = time.Now()
	if !opened || !errors.Is(err, fs.ErrNotExist) { // if another program removed the pins, an early retry makes them again
		k.again = k.again.Add(kernelAgain)
	}
}

// closeLevel revokes all offloaded entries and detaches the program from the pods' links.
func (k *kernel) closeLevel() {
	if k.level == nil {
		return
	}
	if err := k.offloader.End(); err != nil {
		k.log.Warn("some kernel entries not revoked; the kernel answers from them until they expire", "within", offload.MaxTime, "err", err)
	}
	k.stopMirror()
	if err := k.keeper.Reconcile(nil); err != nil {
		k.log.Warn("cannot detach the kernel program from some pods; without entries it lets all queries pass", "err", err)
	}
	_ = k.level.Close() // only descriptors are closed; bpf.Sweep removes the pins
	k.level, k.keeper = nil, nil
}

// reportBroken records that mirrored queries cannot be read any more. run then closes the kernel program, and later opens it again.
func (k *kernel) reportBroken(err error) {
	go func() { // in a goroutine, because the goroutine that holds mu may be waiting for the caller to end
		k.mu.Lock()
		defer k.mu.Unlock()
		k.broken = err
	}()
}

// pause revokes all entries at the beginning of a handover, because the successor, which may have another configuration, serves at the same
// time. resume, called if the handover fails, lets this agent offload again. After a handover, the successor uses the pinned maps.
func (k *kernel) pause() (resume func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.paused = true
	if k.level != nil {
		if err := k.offloader.End(); err != nil {
			k.log.Warn("some kernel entries not revoked; the kernel answers from them until they expire", "within", offload.MaxTime, "err", err)
		}
	}
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.paused = false
		if k.level != nil {
			if err := k.offloader.Begin(kernelTable{k.level}); err != nil {
				k.fail(err)
			}
		}
	}
}

// count adds the kernel program's new hits to the clients' counts. Call it before reading the clients' counts.
func (k *kernel) count() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keeper != nil && !k.paused {
		if err := k.keeper.CountNow(); err != nil {
			k.log.Debug("cannot read the kernel's hit counts of pods; the shown counts are older", "err", err)
		}
	}
}

// status returns the state of kernel hits for `neardns-agent status`; nil if kernelHits.mode is off.
func (k *kernel) status() *node.KernelHits {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conf().KernelHits.Mode == config.KernelHitsOff {
		return nil
	}
	s := &node.KernelHits{Auto: automatic(k.conf()), Fault: k.fault, Lent: k.offloader.State().Items}
	if k.keeper != nil {
		at := k.keeper.State()
		s.Pods, s.Refused = at.Pods, at.Refused
	}
	for _, h := range k.hits() {
		s.Answers += h.Hits
	}
	if k.transparent != nil {
		s.Served = k.seen.served
		c := k.transparent.mirror.Counts()
		s.Fetched, s.Dropped = c.Fetched, c.Dropped
	}
	return s
}

// series returns the counts for the metrics. The hits are counted in pinned maps, which survive a restart of the agent. ok is false if
// kernelHits.mode is off.
func (k *kernel) series() (_ telemetry.KernelHits, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conf().KernelHits.Mode == config.KernelHitsOff {
		return telemetry.KernelHits{}, false
	}
	out := telemetry.KernelHits{OK: k.level != nil, Auto: automatic(k.conf()), Entries: k.offloader.State().Items, Series: k.hits()}
	if k.keeper != nil {
		at := k.keeper.State()
		out.Pods, out.Refused = at.Pods, len(at.Refused)
	}
	if k.transparent != nil {
		c := k.transparent.mirror.Counts()
		out.Copies = map[string]uint64{"first": c.First, "fetched": c.Fetched, "pending": c.Pending, "dropped": c.Dropped}
		if k.level != nil {
			if limited, full, err := k.level.Uncopied(); err != nil {
				k.log.Debug("cannot read how many queries the kernel program did not mirror", "err", err)
			} else {
				out.Copies["limited"], out.Copies["full"] = limited, full
			}
		}
	}
	return out, true
}

// hits returns the number of kernel hits for each record type and response code; nil if they cannot be read. The caller holds mu.
func (k *kernel) hits() []telemetry.KernelSeries {
	if k.level == nil {
		return nil
	}
	counts, err := k.level.Counts()
	if err != nil {
		k.log.Debug("cannot read the kernel program's hit counters; metrics and status lack them", "err", err)
		return nil
	}
	var out []telemetry.KernelSeries
	for i, s := range series() {
		s.Hits = counts[i]
		out = append(out, s)
	}
	return out
}

// kernelTable implements offload.Kernel with the BPF maps.
type kernelTable struct{ *bpf.Level }

// Now implements offload.Kernel.
func (kernelTable) Now() time.Duration { return bpf.Now() }

// Put implements offload.Kernel.
func (b kernelTable) Put(l offload.Item) error {
	return b.Level.Put(&bpf.Answer{Item: l, Series: seriesOf(l)})
}

// series lists the combinations of record type and response code for which the BPF program counts hits, in the order of its indexes.
func series() []telemetry.KernelSeries {
	var out []telemetry.KernelSeries
	for _, rcode := range []string{"NOERROR", "NXDOMAIN"} {
		for _, kind := range []string{"A", "AAAA", "other"} { // the same names as in CoreDNS's metrics
			out = append(out, telemetry.KernelSeries{Type: kind, Rcode: rcode})
		}
	}
	return out
}

// seriesOf returns the index in series() at which hits of an offloaded entry are counted.
func seriesOf(l offload.Item) uint16 {
	kind, rcode := "other", "NOERROR"
	b := l.Key.Bytes()
	switch binary.BigEndian.Uint16(b[len(b)-5:]) { // the record type is followed by the class and one byte of flags
	case 1: // RFC 1035, section 3.2.2
		kind = "A"
	case 28: // RFC 3596, section 2.1
		kind = "AAAA"
	}
	if l.Entry.Rcode() != 0 {
		rcode = "NXDOMAIN"
	}
	return uint16(slices.Index(series(), telemetry.KernelSeries{Type: kind, Rcode: rcode})) //nolint:gosec // it is one of six
}
