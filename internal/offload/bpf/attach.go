package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Where the program stands where there is no tcx (before Linux 6.6): first of the clsact qdisc's ingress filters.
const (
	filterName     = "neardns"
	filterPriority = 1
	filterHandle   = 0x6e64
)

// ErrPlace is a link whose first place another program has, so that ours would end its turn or be ended by it.
var ErrPlace = errors.New("another program has the first place at the link")

// Attach lets the program answer what comes from a link: the host's end of a veth whose other end is in another netns. Its index is of the
// calling thread's netns. It goes before all others: by tcx, where the kernel has it, and else as clsact's first filter. A link that
// the program is at already stays as it is.
func (l *Level) Attach(index int) error {
	var none []objectLink
	if _, there, err := l.link(index); err != nil {
		return err
	} else if !there {
		cpus, err := ebpf.PossibleCPU()
		if err != nil {
			return fmt.Errorf("count CPUs: %w", err)
		}
		none = make([]objectLink, cpus)
		if err := l.objects.Links.Put(uint32(index), none); err != nil {
			return fmt.Errorf("count at link %d: %w", index, err)
		}
	}
	err := l.tcx(index)
	if errors.Is(err, ebpf.ErrNotSupported) {
		err = l.clsact(index)
	}
	if err != nil {
		err = fmt.Errorf("attach to link %d: %w", index, err)
		if none != nil {
			err = errors.Join(err, l.objects.Links.Delete(uint32(index)))
		}
	}
	return err
}

// programID is the program's number.
func (l *Level) programID() (ebpf.ProgramID, error) {
	info, err := l.objects.NeardnsHits.Info()
	if err != nil {
		return 0, fmt.Errorf("ask for the program: %w", err)
	}
	id, _ := info.ID() // since Linux 4.13
	return id, nil
}

func (l *Level) linkPath(index int) string {
	return filepath.Join(l.folder, linksName, strconv.Itoa(index))
}

func (l *Level) tcx(index int) error {
	path := l.linkPath(index)
	there, err := link.LoadPinnedLink(path, nil)
	switch {
	case err == nil:
		defer there.Close()
		if info, err := there.Info(); err == nil && info.TCX() != nil && int(info.TCX().Ifindex) == index {
			return nil
		}
		// Of a link that is gone, or that it was taken away from (SweepLinks).
		if err := os.Remove(path); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	made, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: l.objects.NeardnsHits, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
	if errors.Is(err, fs.ErrExist) {
		return nil // it is there, and another BPF file system was mounted over the one with its file
	}
	if err != nil {
		return err
	}
	defer made.Close()
	return made.Pin(path) // where it cannot be pinned, Close detaches it
}

func filter(index, fd int) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: filterHandle, Priority: filterPriority, Protocol: unix.ETH_P_ALL},
		Fd:          fd, Name: filterName, DirectAction: true,
	}
}

func clsactQdisc(index int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
}

func (l *Level) clsact(index int) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.QdiscAdd(clsactQdisc(index)); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("add clsact: %w", err)
	}
	filters, err := filtersOf(h, index, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return err
	}
	id, err := l.programID()
	if err != nil {
		return err
	}
	there := false
	for _, f := range filters {
		switch {
		case f.Attrs().Priority <= filterPriority && !ours(f):
			return fmt.Errorf("%w: a filter of kind %s", ErrPlace, f.Type())
		case ours(f) && f.(*netlink.BpfFilter).Id == int(id): //nolint:forcetypeassert // it is one of ours
			there = true
		}
	}
	if there {
		return nil
	}
	return h.FilterReplace(filter(index, l.objects.NeardnsHits.FD()))
}

// filtersOf lists a link's filters for what comes in or goes out.
func filtersOf(h *netlink.Handle, index int, parent uint32) ([]netlink.Filter, error) {
	for {
		filters, err := h.FilterList(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}, parent)
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			continue
		}
		return filters, err
	}
}

func ours(f netlink.Filter) bool {
	b, ok := f.(*netlink.BpfFilter)
	return ok && b.Handle == filterHandle && b.Priority == filterPriority && b.Name == filterName
}

// Detach ends what Attach did, also for a link that is gone, and returns how many questions were answered at it. A link that the
// program is not at is no error.
func (l *Level) Detach(index int) (hits uint64, err error) {
	id, err := l.programID()
	if err != nil {
		return 0, fmt.Errorf("detach from link %d: %w", index, err)
	}
	// Before its file goes: the kernel takes the program away some time after the last reference to it (bpf_link_put_deferred), and
	// no query may be answered by it once this returns. The file may be gone already, too.
	if err := dropTCX(index, func(p ebpf.ProgramID) bool { return p == id }); err != nil {
		return 0, err
	}
	if err := detach(l.folder, index); err != nil {
		return 0, err
	}
	hits, there, err := l.link(index)
	if err == nil && there {
		if err = l.objects.Links.Delete(uint32(index)); errors.Is(err, ebpf.ErrKeyNotExist) {
			err = nil
		}
	}
	return hits, err
}

func detach(folder string, index int) error {
	switch err := os.Remove(filepath.Join(folder, linksName, strconv.Itoa(index))); {
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("detach from link %d: %w", index, err)
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("detach from link %d: %w", index, err)
	}
	defer h.Close()
	return dropFilter(h, index)
}

// dropFilter takes the program away from a link where it is a filter of clsact, and clsact where it had no other.
func dropFilter(h *netlink.Handle, index int) error {
	filters, err := filtersOf(h, index, netlink.HANDLE_MIN_INGRESS)
	if errors.Is(err, unix.ENODEV) || err == nil && !slices.ContainsFunc(filters, ours) {
		return nil
	}
	if err == nil {
		err = h.FilterDel(filter(index, -1))
	}
	if err == nil && len(filters) == 1 {
		err = dropQdisc(h, index)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("detach from link %d: %w", index, err)
	}
	return nil
}

// dropQdisc takes away a clsact that has no filter at egress either.
func dropQdisc(h *netlink.Handle, index int) error {
	egress, err := filtersOf(h, index, netlink.HANDLE_MIN_EGRESS)
	if err != nil || len(egress) > 0 {
		return err
	}
	if err := h.QdiscDel(clsactQdisc(index)); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// Attached lists the links that Attach was called for and Detach was not, in order. Some may be gone.
func (l *Level) Attached() ([]int, error) {
	all, err := l.Links()
	if err != nil {
		return nil, err
	}
	out := make([]int, 0, len(all))
	for index := range all {
		out = append(out, index)
	}
	slices.Sort(out)
	return out, nil
}

// Others lists other programs that see what comes from a link or goes to it, by their names: those of each way in their
// order, tcx's first, then nftables' chains and XDP.
func (l *Level) Others(index int) ([]string, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("list filters of link %d: %w", index, err)
	}
	defer h.Close()
	var names []string
	for _, way := range []struct {
		tcx    ebpf.AttachType
		clsact uint32
	}{{ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS}, {ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS}} {
		result, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: way.tcx})
		if err != nil && !errors.Is(err, ebpf.ErrNotSupported) && !errors.Is(err, unix.EINVAL) {
			return nil, fmt.Errorf("list programs of link %d: %w", index, err)
		}
		if err == nil {
			for _, p := range result.Programs {
				if name := programName(p.ID); name != objectProgNeardnsHits {
					names = append(names, name)
				}
			}
		}
		filters, err := filtersOf(h, index, way.clsact)
		if err != nil {
			return nil, fmt.Errorf("list filters of link %d: %w", index, err)
		}
		for _, f := range filters {
			if b, ok := f.(*netlink.BpfFilter); ok && !ours(f) {
				names = append(names, b.Name)
			} else if !ok {
				names = append(names, f.Type())
			}
		}
	}
	hooked, err := hooks(h, index)
	return append(names, hooked...), err
}

// programName is a program's, or its number where that is all that can be known.
func programName(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return fmt.Sprint("program ", id)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil || info.Name == "" {
		return fmt.Sprint("program ", id)
	}
	return info.Name
}

// Retire takes away what other builds left in the level's folder, attached programs included.
func (l *Level) Retire() error {
	return sweep(filepath.Dir(l.folder), filepath.Base(l.folder))
}

// SweepLinks takes the program away from all links of the calling thread's netns, whoever attached it and wherever its files are. It needs no
// BPF file system; from Linux 6.6 on it needs CAP_SYS_ADMIN, and does nothing without.
func SweepLinks() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // a link that is missed is one that just came
		return fmt.Errorf("list links: %w", err)
	}
	var errs []error
	for _, l := range links {
		errs = append(errs, dropFilter(h, l.Attrs().Index),
			dropTCX(l.Attrs().Index, func(id ebpf.ProgramID) bool { return programName(id) == objectProgNeardnsHits }))
	}
	return errors.Join(errs...)
}

// dropTCX takes programs of ours away from a link's tcx.
func dropTCX(index int, ours func(ebpf.ProgramID) bool) error {
	result, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		for _, none := range []error{ebpf.ErrNotSupported, unix.EINVAL, unix.EPERM, unix.ENODEV} {
			if errors.Is(err, none) {
				return nil
			}
		}
		return fmt.Errorf("list programs of link %d: %w", index, err)
	}
	for _, p := range result.Programs {
		id, ok := p.LinkID()
		if !ok || !ours(p.ID) {
			continue
		}
		there, err := link.NewFromID(id)
		if err == nil {
			err = errors.Join(there.Detach(), there.Close())
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("detach from link %d: %w", index, err)
		}
	}
	return nil
}

// Sweep takes away all that any build left in a folder ("": DefaultFolder), attached programs included. A folder that is not there is
// no error.
func Sweep(folder string) error {
	if folder == "" {
		folder = DefaultFolder
	}
	err := sweep(folder, "")
	if err == nil {
		if err = os.Remove(folder); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return err
}

func sweep(folder, but string) error {
	builds, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("sweep %s: %w", folder, err)
	}
	var errs []error
	for _, b := range builds {
		if b.Name() != but {
			errs = append(errs, sweepBuild(filepath.Join(folder, b.Name())))
		}
	}
	return errors.Join(errs...)
}

// sweepBuild takes away one build's program and maps. Its links are read from the map, and where that cannot be, from the files.
func sweepBuild(folder string) error {
	var errs []error
	if m, err := ebpf.LoadPinnedMap(filepath.Join(folder, objectMapLinks), nil); err == nil {
		var index uint32
		var cpus []objectLink
		all := m.Iterate()
		for all.Next(&index, &cpus) {
			errs = append(errs, detach(folder, int(index)))
		}
		errs = append(errs, all.Err(), m.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(folder))...)
}
