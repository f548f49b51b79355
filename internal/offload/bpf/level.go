// Package bpf answers DNS queries in the kernel: a tc program on the host's side of a pod's veth looks a query up in its maps and sends the
// answer back into the pod, without waking a process. All other packets from the pod pass unchanged.
//
// It is the only package of the agent that uses BPF. Only the agent adds answers to the maps; a pod can neither write nor grow them. The
// program's answer to a query equals the fast path's byte for byte, except for the rotation of addresses. The program stops
// serving an answer at the time that the agent set. The maps and the attached program outlive the process, so the program serves hits until
// the answers expire.
//
// Failure policy: the program passes a packet on unless every bit of it is a query that the maps answer. If the kernel cannot run the
// program, Open returns an error.
package bpf

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/bits"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// ServedMost is the largest number of addresses for Serve. The program's map has room for two more, which Test uses.
const ServedMost = 254

// linksName is the name of the folder with the pins that keep the programs attached, one per network link and direction.
const linksName = "attached"

// Options has a level's folder in the BPF file system and its size.
type Options struct {
	Folder string // in a mounted BPF file system; Open makes the folder
	// Entries is the number of small slots. In a small slot, the name, the records and two bytes for each TTL except the first, each rounded
	// up to 8 bytes, may have up to 192 bytes together, and a little less with rotated addresses (objectSlot.small). There are a quarter as
	// many large slots. A small slot takes 256 bytes of memory, a large one 1.6 KB.
	Entries int
	// Copies makes the level mirror the queries that it has no valid answer to. Copied reads them.
	Copies bool
	Log    *slog.Logger
}

// Level is the kernel's part of a node's cache. Its methods may be called from several goroutines at once. Two processes may open the
// same one: no half-written answer is served, and only answers of the process that last called Open or Invalidate are.
type Level struct {
	folder  string // the folder with the pins of this build
	log     *slog.Logger
	objects objectObjects

	mu      sync.Mutex // guards the fields below, and allows one writer at a time
	control objectControl
	kept    []kept         // by slot number
	byPlace map[uint64]int // slot numbers by place, as objectControl.place returns it
	buckets []objectBucket // a copy of the kernel map of places
	free    [2][]int       // numbers of free slots, small and large
}

// load reads the embedded BPF object and sets the sizes of its maps.
func load(entries int, copies bool) (*ebpf.CollectionSpec, error) {
	spec, err := loadObject()
	if err != nil {
		return nil, err
	}
	spec.Maps[objectMapSmalls].MaxEntries, spec.Maps[objectMapSlots].MaxEntries = uint32(entries), uint32(larges(entries))
	spec.Maps[objectMapHeat].MaxEntries, spec.Maps[objectMapPlaces].MaxEntries = uint32(entries+larges(entries)), uint32(buckets(entries))
	spec.Maps[objectMapCopies].MaxEntries = uint32(os.Getpagesize()) // the smallest size that the kernel accepts
	if copies {
		spec.Maps[objectMapCopies].MaxEntries = copiesBytes
	}
	// Kernels before 5.11 count maps as locked memory. Ignore EPERM: the process's limit may be high enough already.
	if err := rlimit.RemoveMemlock(); err != nil && !errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("raise the limit of locked memory: %w", err)
	}
	return spec, nil
}

// larges returns the number of large slots for a number of small ones.
func larges(entries int) int { return (entries + 3) / 4 }

// buckets is the number of buckets of 8 places for a number of small slots: a power of two, so that a bucket has two to four answers on
// average when all slots are taken. At 2.5 answers on average, one bucket in a thousand would need more than 8 places.
func buckets(entries int) int { return 1 << bits.Len(uint(entries+larges(entries)-1)/4) }

// version returns the name of the pins' folder. It depends on the BPF object and the maps' sizes, so that no other build uses these maps.
func version(o Options) string {
	sum := sha256.Sum256(_ObjectBytes)
	name := hex.EncodeToString(sum[:6]) + "-" + strconv.Itoa(o.Entries)
	if o.Copies {
		name += "-copies"
	}
	return name
}

// Open loads the maps and programs and pins them, or reuses the pinned ones of the same build and size, and revokes all their answers.
// It attaches nothing. The pins of other builds stay until Retire or Sweep.
func Open(o Options) (*Level, error) {
	if err := mounted(filepath.Dir(o.Folder)); err != nil {
		return nil, err
	}
	l := &Level{folder: filepath.Join(o.Folder, version(o)), log: o.Log, kept: make([]kept, o.Entries+larges(o.Entries)),
		byPlace: map[uint64]int{}, buckets: make([]objectBucket, buckets(o.Entries))}
	there, err := l.pinned()
	if err == nil && !there {
		err = l.pin(o)
	}
	if err == nil {
		err = l.begin()
	}
	if err != nil {
		return nil, errors.Join(err, l.objects.Close())
	}
	l.log.Info("kernel program and maps loaded or reused", "reused_pinned", there, "small_slots", o.Entries)
	return l, nil
}

// mounted returns an error if a folder is not in a BPF file system.
func mounted(folder string) error {
	var s unix.Statfs_t
	if err := unix.Statfs(folder, &s); err != nil {
		return fmt.Errorf("stat %s: %w", folder, err)
	}
	if s.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("%s is no BPF file system: mount one there (mount -t bpf bpf %s)", folder, folder)
	}
	return nil
}

// maps returns pointers to l's fields for the kernel maps, by the names of the maps' pins.
func (l *Level) maps() map[string]**ebpf.Map {
	m := &l.objects.objectMaps
	return map[string]**ebpf.Map{
		objectMapControls: &m.Controls, objectMapCopies: &m.Copies, objectMapCounts: &m.Counts, objectMapHeat: &m.Heat,
		objectMapHeartbeats: &m.Heartbeats, objectMapLinks: &m.Links, objectMapPasses: &m.Passes, objectMapPlaces: &m.Places,
		objectMapScratches: &m.Scratches, objectMapServed: &m.Served, objectMapSlots: &m.Slots, objectMapSmalls: &m.Smalls,
	}
}

// programs returns pointers to l's fields for the programs, by the names of the programs' pins.
func (l *Level) programs() map[string]**ebpf.Program {
	p := &l.objects.objectPrograms
	return map[string]**ebpf.Program{objectProgNeardnsAnswers: &p.NeardnsAnswers, objectProgNeardnsHits: &p.NeardnsHits}
}

// pinned loads the pinned maps and programs. It returns false if any pin is missing: none were made yet, or a process was killed while it
// pinned or removed them.
func (l *Level) pinned() (bool, error) {
	err := takeOver("program", l.folder, l.programs(), ebpf.LoadPinnedProgram)
	if err == nil {
		err = takeOver("map", l.folder, l.maps(), ebpf.LoadPinnedMap)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = l.objects.Close()
		l.objects = objectObjects{}
		return false, err
	}
	return err == nil, err
}

// takeOver loads pinned maps or programs into l's fields for them.
func takeOver[T any](kind, folder string, fields map[string]*T, load func(string, *ebpf.LoadPinOptions) (T, error)) (err error) {
	for name, to := range fields {
		if *to, err = load(filepath.Join(folder, name), nil); err != nil {
			return fmt.Errorf("take over the %s %s: %w", kind, name, err)
		}
	}
	return nil
}

// pin loads maps and program from the object and pins them in the folder.
func (l *Level) pin(o Options) error {
	spec, err := load(o.Entries, o.Copies)
	if err != nil {
		return err
	}
	if err := spec.LoadAndAssign(&l.objects, nil); errors.Is(err, unix.EPERM) {
		return fmt.Errorf("load the program: %w: it takes CAP_BPF and CAP_PERFMON, "+
			"and before Linux 5.11 CAP_SYS_RESOURCE or 8 MiB of locked memory", err)
	} else if err != nil {
		return fmt.Errorf("load the program: %w", err)
	}
	var secret [16]byte
	_, _ = rand.Read(secret[:]) // never fails
	c := objectControl{
		Generation: 1, Seed: binary.LittleEndian.Uint64(secret[:]), Multiplier: binary.LittleEndian.Uint64(secret[8:]) | 1,
		Small: uint32(o.Entries), Mask: uint32(buckets(o.Entries) - 1),
	}
	if o.Copies {
		c.Copies = 1
	}
	if err := l.objects.Controls.Put(uint32(0), &c); err != nil {
		return fmt.Errorf("write the control: %w", err)
	}
	if err := os.RemoveAll(l.folder); err != nil { // a process that was killed while it pinned or removed may have left some pins
		return fmt.Errorf("clean %s: %w", l.folder, err)
	}
	if err := os.MkdirAll(filepath.Join(l.folder, linksName), 0o700); err != nil {
		return fmt.Errorf("make %s: %w", l.folder, err)
	}
	for name, m := range l.maps() {
		if err := (*m).Pin(filepath.Join(l.folder, name)); err != nil {
			return fmt.Errorf("pin the map %s: %w", name, err)
		}
	}
	for name, p := range l.programs() {
		if err := (*p).Pin(filepath.Join(l.folder, name)); err != nil {
			return fmt.Errorf("pin the program %s: %w", name, err)
		}
	}
	return nil
}

// begin revokes what another process left in the maps. Its places may stay: they lead to slots of an old generation, and setPlace writes a
// bucket as a whole.
func (l *Level) begin() error {
	if err := l.Invalidate(); err != nil {
		return err
	}
	for at := range l.kept {
		l.release(at)
	}
	return l.Hits(func(string, uint64) {}) // the slots' counters have the hits of earlier answers; do not report those
}

// Beat writes a heartbeat, which shows the kernel program that the agent runs; call it each second. A pod whose sampled queries get no
// answer loses its hits 8 s after the last answer while the heartbeat is fresh, and otherwise 30 s after it.
func (l *Level) Beat() error {
	if err := l.objects.Heartbeats.Put(uint32(0), uint64(Now())); err != nil {
		return fmt.Errorf("write the heartbeat: %w", err)
	}
	return nil
}

// Close closes the descriptors of maps and program. The attached program keeps running.
func (l *Level) Close() error { return l.objects.Close() }

// Serve sets the addresses to which the program answers queries. Queries to any other address are no longer answered.
func (l *Level) Serve(addresses []netip.AddrPort) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var gone []netip.AddrPort
	var key objectServedAddress
	var group uint32
	all := l.objects.Served.Iterate()
	for all.Next(&key, &group) {
		if !slices.Contains(addresses, key.addrPort()) {
			gone = append(gone, key.addrPort())
		}
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("read served addresses: %w", err)
	}
	for _, a := range gone {
		if err := l.unserve(a); err != nil {
			return err
		}
	}
	for _, a := range addresses {
		if err := l.serve(a); err != nil {
			return err
		}
	}
	return nil
}

func (l *Level) serve(a netip.AddrPort) error {
	if err := l.objects.Served.Put(servedAt(a), uint32(oneGroup)); err != nil {
		return fmt.Errorf("serve %s: %w", a, err)
	}
	return nil
}

func (l *Level) unserve(a netip.AddrPort) error {
	if err := l.objects.Served.Delete(servedAt(a)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("stop to serve %s: %w", a, err)
	}
	return nil
}

// servedAt returns an address as the kernel map of served addresses has it. The program is compiled for little-endian machines.
func servedAt(a netip.AddrPort) *objectServedAddress {
	return &objectServedAddress{Bytes: a.Addr().As16(), Port: bits.ReverseBytes16(a.Port())}
}

func (k *objectServedAddress) addrPort() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(k.Bytes).Unmap(), bits.ReverseBytes16(k.Port))
}
