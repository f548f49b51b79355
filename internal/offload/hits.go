// Package offload is the API of kernel hits: cache hits that the kernel program answers at the links of pods. It opens the program, lets it
// serve entries of the cache, keeps it at the links of the wanted pods, and closes it.
//
// It guarantees that the program is tested before it is attached, and that this agent offloads no entry while kernel hits are off or
// paused. Entries that cannot be revoked expire within entries.MaxTime.
//
// On failure: kernel hits are off until a later retry succeeds. Meanwhile the agent answers the hits, or kube-dns with arrangement:
// transparent.
package offload

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/offload/backends"
	"github.com/neardns/neardns/internal/offload/bpf"
	"github.com/neardns/neardns/internal/offload/entries"
	"github.com/neardns/neardns/internal/offload/mirror"
	"github.com/neardns/neardns/internal/offload/podlinks"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/tick"
)

// Intervals of kernel hits.
const (
	pollEvery  = time.Second      // between two checks whether the pods or the configuration changed
	checkEvery = 10 * time.Second // between two checks of all pods' links, even if nothing changed
	retryAfter = 30 * time.Second // pause after a failure before kernel hits are enabled again
)

// maxEntries is the maximum number of entries that the kernel program serves. A node has some hundreds of hot names.
const maxEntries = 4096

type (
	// Entries are the cache entries that the kernel program serves. Package cache offers them.
	Entries = entries.Offloader
	// Pod is a network interface of a pod for which kernel hits are enabled.
	Pod = podlinks.Pod
	// Refused is a pod whose hits the kernel program should answer, but does not.
	Refused = podlinks.Refused
)

// Options has what Hits need of the agent. The functions may be called at any time.
type Options struct {
	Log    *slog.Logger
	Folder string         // path in the BPF file system where program and maps are pinned
	Store  *answers.Store // the cache
	Mode   func() Mode
	// Excluded returns why this node has no kernel hits although the configuration enables them; nil if it may have them.
	Excluded func() error
	Served   func() []netip.AddrPort // the addresses whose queries the kernel program answers
	// Veth and Answered are Veth and Count of podlinks.Keeper.
	Veth     func(podfile.File) (ifindex int, name string, err error)
	Answered func(f podfile.File, answers, nxdomain uint64)
	// Fetch is the function for mirror.New. It is set only with arrangement: transparent. The kernel program then mirrors queries, answers
	// queries to the backends of Served too, and is attached to links that have other programs.
	Fetch func(message []byte) error
}

// Mode is the part of the configuration in effect that Hits need.
type Mode struct {
	Name     string // the value of kernelHits.mode
	Off      bool
	Optional bool // if kernel hits are impossible, the node is still healthy
	Config   any  // a pointer that identifies the configuration, because after a failure another configuration is tried at once
}

// Hits opens, checks and closes kernel hits as the configuration wants. One goroutine calls Run. Other goroutines may call the other
// exported methods at any time. The exported methods and reconcile lock mu. Callers of other methods that use the fields below mu
// hold it.
type Hits struct {
	Options
	Entries  *Entries
	backends backends.Follower // runs only with Fetch
	mirror   *mirror.Listener  // nil without Fetch

	mu         sync.Mutex // guards the fields below; level is opened and closed under it
	level      *bpf.Level
	keeper     *podlinks.Keeper
	fault      string    // why kernel hits do not work although the configuration enables them
	again      time.Time // after a failure: no new try before this time, unless the configuration changes
	paused     bool      // a handover is under way or done
	seen       input
	stopMirror func() // stops reading mirrored queries; does nothing if none are read

	broken atomic.Pointer[error] // why mirrored queries cannot be read, so that the level is opened again; nil once it is
}

// input has what the last check of the pods' links was based on. If nothing but the time has changed, no check is made until checkEvery
// has passed.
type input struct {
	at     time.Time
	pods   []Pod
	mode   Mode
	served []netip.AddrPort
}

// New prepares kernel hits. It changes nothing in the kernel.
func New(o Options) *Hits {
	h := &Hits{Options: o, Entries: entries.New(o.Store, maxEntries), keeper: &podlinks.Keeper{}, stopMirror: func() {},
		backends: backends.Follower{Log: o.Log, Services: o.Served, Max: bpf.ServedMost}}
	if o.Fetch != nil {
		h.mirror = mirror.New(o.Fetch)
	}
	return h
}

// Run keeps kernel hits in the configured state until ctx ends. After that, the kernel program stays attached to the pods' links, and
// serves its entries until they expire. pods returns the pods for which kernel hits are enabled.
func (h *Hits) Run(ctx context.Context, pods func() []Pod) {
	var wg sync.WaitGroup
	wg.Go(func() { h.Entries.Run(ctx) })
	if h.mirror != nil {
		defer h.mirror.Wait()
		wg.Go(func() { h.backends.Run(ctx) })
	}
	for ok := true; ok; ok = tick.Grid(ctx, pollEvery) {
		h.reconcile(pods)
	}
	wg.Wait()
	h.Entries.Leave()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.level != nil {
		h.stopMirror()
		_ = h.level.Close() // only descriptors are closed; program and maps stay pinned
		h.level = nil
	}
}

// reconcile opens, attaches or closes the BPF program as the configuration wants.
func (h *Hits) reconcile(pods func() []Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.paused {
		return
	}
	mode := h.Mode()
	if mode.Off {
		if !h.seen.mode.Off {
			h.disable()
			h.seen = input{mode: mode}
		}
		return
	}
	err := h.Entries.State().Fault
	if broken := h.broken.Load(); broken != nil {
		err = *broken
	}
	if h.level != nil && err != nil {
		h.fail(err)
	}
	if h.level == nil {
		if changed := h.seen.mode != mode; !changed && time.Now().Before(h.again) {
			return
		}
		h.seen = input{mode: mode}
		err := h.Excluded()
		if err == nil {
			err = h.open()
		}
		if err != nil {
			h.fail(err)
			return
		}
	}
	if err := errors.Join(h.level.Beat(), h.attach(mode, pods())); err != nil {
		h.fail(err)
	}
}

// open loads the BPF program and its maps, and tests them before the program is attached to a pod's link.
func (h *Hits) open() error {
	level, err := bpf.Open(bpf.Options{Folder: h.Folder, Entries: maxEntries, Copies: h.mirror != nil, Log: h.Log})
	if err != nil {
		return err
	}
	h.level = level
	h.keeper = &podlinks.Keeper{Log: h.Log, Program: level, Veth: h.Veth, Count: h.Answered,
		AllowOthers: h.mirror != nil, Refusals: h.refusals}
	if err := level.Serve(h.served()); err != nil {
		return err
	}
	if err := level.Test(); err != nil {
		return fmt.Errorf("the self-test: %w", err)
	}
	if err := level.Retire(); err != nil { // before entries are offloaded, because this agent cannot revoke other builds' entries
		return fmt.Errorf("remove another build's kernel hits: %w", err)
	}
	if err := h.Entries.Begin(table{level}); err != nil {
		return err
	}
	h.broken.Store(nil)
	if h.mirror != nil {
		h.stopMirror = h.listen(level)
	}
	h.fault = ""
	h.Log.Info("kernel program for hits loaded and tested; it is attached to pods' links next", "mode", h.seen.mode.Name)
	return nil
}

// attach attaches the BPF program to the links of the pods that should have it. It does nothing if its input has not changed, except for
// a full check every checkEvery.
func (h *Hits) attach(mode Mode, pods []Pod) error {
	now := input{at: time.Now(), pods: pods, mode: mode, served: h.served()}
	if !slices.Equal(now.served, h.seen.served) {
		if err := h.level.Serve(now.served); err != nil {
			return err
		}
		h.seen.served = now.served
	}
	deep := now.at.Sub(h.seen.at) >= checkEvery
	if !deep && reflect.DeepEqual(now.pods, h.seen.pods) && now.mode == h.seen.mode {
		return nil
	}
	if err := h.Excluded(); err != nil {
		return err
	}
	h.seen = now
	return h.keeper.Reconcile(now.pods)
}

// served returns the addresses whose queries the kernel program answers. With arrangement: transparent, the backends of Served are among
// them, because a datapath that translates Service addresses at the socket puts a backend's address into the packets.
func (h *Hits) served() []netip.AddrPort {
	known, _ := h.backends.Known()
	return append(h.Served(), known...)
}

// refusals returns the log level for reasons why hits are not served in the kernel: Info if kernel hits are optional, else Warn.
func (h *Hits) refusals() slog.Level {
	if h.seen.mode.Optional {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// disable closes the BPF program if it is open, and tries once to remove the pinned programs and maps, which a program that could not be
// loaded, or an earlier agent, may have left, too.
func (h *Hits) disable() {
	h.fault = ""
	if h.level != nil {
		h.close()
		h.Log.Info("kernel hits disabled by the configuration")
	}
	if err := Sweep(h.Folder); err != nil {
		h.Log.Warn("cannot remove all kernel programs of neardns; run `neardns-agent cleanup` on the host when the agent has ended", "err", err)
	}
}

// Sweep removes pinned programs and maps from a folder of the BPF file system, and detaches the programs from links of this netns. If the
// folder is missing, it removes nothing there: in a container /sys is read-only, where removing even a missing file is an error.
func Sweep(folder string) error {
	if _, err := os.Lstat(folder); !errors.Is(err, fs.ErrNotExist) {
		if err := bpf.Sweep(folder); err != nil {
			return err
		}
	}
	return bpf.SweepLinks()
}

// fail disables kernel hits until a later retry, and logs err, but not again if the retry fails in the same way. Meanwhile the agent
// answers the hits, or kube-dns with arrangement: transparent.
func (h *Hits) fail(err error) {
	opened := h.level != nil
	h.close()
	if text := err.Error(); text != h.fault {
		h.Log.Log(context.Background(), h.refusals(), "kernel hits are off until a retry succeeds", "err", err)
		h.fault = text
		if !opened { // detach a program of an earlier agent, which would answer by that agent's configuration
			if err := bpf.SweepLinks(); err != nil {
				h.Log.Warn("an earlier agent's kernel program may still answer some pods; cannot detach it", "err", err)
			}
		}
	}
	h.again = time.Now()
	if !opened || !errors.Is(err, fs.ErrNotExist) { // if another program removed the pins, an early retry makes them again
		h.again = h.again.Add(retryAfter)
	}
}

// close revokes all offloaded entries and detaches the program from the pods' links.
func (h *Hits) close() {
	if h.level == nil {
		return
	}
	h.revoke()
	h.stopMirror()
	if err := h.keeper.Reconcile(nil); err != nil {
		h.Log.Warn("cannot detach the kernel program from some pods; without entries it lets all queries pass", "err", err)
	}
	_ = h.level.Close() // only descriptors are closed; Sweep removes the pins
	h.level, h.keeper = nil, &podlinks.Keeper{}
}

// revoke revokes all offloaded entries.
func (h *Hits) revoke() {
	if err := h.Entries.End(); err != nil {
		h.Log.Warn("some kernel entries not revoked; the kernel answers from them until they expire", "within", entries.MaxTime, "err", err)
	}
}

// listen starts to read mirrored queries from the kernel program, until the returned function is called.
func (h *Hits) listen(level *bpf.Level) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		err := level.Copied(ctx, func(ifindex int, message []byte) { h.mirror.Hear(ifindex, message, time.Now()) })
		if err != nil {
			h.broken.Store(&err) // without mu: the goroutine that holds it may be waiting for this one to end
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}

// Pause revokes all entries at the beginning of a handover, because the successor, which may have another configuration, serves at the same
// time. resume, called if the handover fails, lets this agent offload again. After a handover, the successor uses the pinned maps.
func (h *Hits) Pause() (resume func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.paused = true
	if h.level != nil {
		h.revoke()
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.paused = false
		if h.level != nil {
			if err := h.Entries.Begin(table{h.level}); err != nil {
				h.fail(err)
			}
		}
	}
}

// table implements entries.Kernel with the BPF maps.
type table struct{ *bpf.Level }

// Now implements entries.Kernel.
func (table) Now() time.Duration { return bpf.Now() }

// Put implements entries.Kernel.
func (t table) Put(l entries.Item) error {
	return t.Level.Put(&bpf.Answer{Item: l, Series: seriesOf(l)})
}
