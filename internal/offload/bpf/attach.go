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

// Without tcx (before Linux 6.6), the programs are the clsact qdisc's first ingress filter and first egress filter.
const (
	filterName     = "neardns"
	filterPriority = 1
	filterHandle   = 0x6e64
)

// ErrPlace means that another program is first at the link. Only one program can be first, and it may keep the others from seeing
// packets.
var ErrPlace = errors.New("another program has the first place at the link")

// way is a direction of a link, with the program for its packets.
type way struct {
	program string
	suffix  string // of the name of the attachment's pin
	tcx     ebpf.AttachType
	clsact  uint32
}

// ways lists the directions in the order of attaching. The egress program comes first, because the ingress program serves hits only after
// the egress program has seen an answer to a query of the pod.
var ways = [...]way{
	{objectProgNeardnsAnswers, "-answers", ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS},
	{objectProgNeardnsHits, "", ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS},
}

func (l *Level) program(w way) *ebpf.Program {
	if w.program == objectProgNeardnsAnswers {
		return l.objects.NeardnsAnswers
	}
	return l.objects.NeardnsHits
}

// isOwn reports whether a BPF program of this name is neardns's, of any build.
func isOwn(name string) bool {
	return slices.ContainsFunc(ways[:], func(w way) bool { return w.program == name })
}

// Attach attaches the programs to the host's end of a pod's veth, which index names in the calling thread's netns. They run before all tc
// programs that the link already has: through tcx if the kernel has it (Linux 6.6), else as clsact's first filters. Attach does nothing if
// they are attached. The first hit is served once a query of the pod was answered on the normal path. After an error, one of them may be
// attached, and Links lists the link until Detach.
func (l *Level) Attach(index int) error {
	_, there, err := l.link(index)
	if err != nil {
		return err
	}
	if !there {
		if err := l.objects.Links.Put(uint32(index), &objectLink{}); err != nil {
			return fmt.Errorf("count at link %d: %w", index, err)
		}
	}
	err = l.tcx(index)
	if errors.Is(err, ebpf.ErrNotSupported) {
		err = l.clsact(index)
	}
	if err != nil {
		return fmt.Errorf("attach to link %d: %w", index, err)
	}
	return nil
}

// programID returns the kernel's ID of a loaded program.
func programID(p *ebpf.Program) (ebpf.ProgramID, error) {
	info, err := p.Info()
	if err != nil {
		return 0, fmt.Errorf("read the program's number: %w", err)
	}
	id, _ := info.ID() // since Linux 4.13
	return id, nil
}

func linkPath(folder string, index int, w way) string {
	return filepath.Join(folder, linksName, strconv.Itoa(index)+w.suffix)
}

func (l *Level) tcx(index int) error {
	for _, w := range ways {
		if err := l.attachTCX(index, w); err != nil {
			return err
		}
	}
	return nil
}

func (l *Level) attachTCX(index int, w way) error {
	path := linkPath(l.folder, index, w)
	there, err := link.LoadPinnedLink(path, nil)
	switch {
	case err == nil:
		defer there.Close()
		if info, err := there.Info(); err == nil && info.TCX() != nil && int(info.TCX().Ifindex) == index {
			return nil
		}
		// The pinned link's interface is gone, or SweepLinks has detached it.
		if err := os.Remove(path); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	made, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: l.program(w), Attach: w.tcx, Anchor: link.Head()})
	if errors.Is(err, fs.ErrExist) {
		return nil // the program is attached, and another BPF file system was mounted over the one with the pin
	}
	if err != nil {
		return err
	}
	defer made.Close()
	return made.Pin(path) // if it cannot be pinned, Close detaches it
}

func filter(index, fd int, w way) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: w.clsact, Handle: filterHandle, Priority: filterPriority, Protocol: unix.ETH_P_ALL,
		},
		Fd: fd, Name: filterName, DirectAction: true,
	}
}

func clsactQdisc(index int) *netlink.Clsact {
	attrs := netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
	return &netlink.Clsact{QdiscAttrs: attrs}
}

func (l *Level) clsact(index int) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.QdiscAdd(clsactQdisc(index)); errors.Is(err, fs.ErrExist) {
		if is, err := hasClsact(h, index); err != nil {
			return err
		} else if !is {
			return fmt.Errorf("%w: an ingress qdisc, so clsact cannot be added: remove it, or use Linux 6.6", ErrPlace)
		}
	} else if err != nil {
		return fmt.Errorf("add clsact: %w", err)
	}
	for _, w := range ways {
		if err := l.attachFilter(h, index, w); err != nil {
			return err
		}
	}
	return nil
}

// hasClsact reports whether a link has the clsact qdisc. With an ingress qdisc, which has the same handle, clsact cannot be added, and
// egress filters would run on ingress.
func hasClsact(h *netlink.Handle, index int) (bool, error) {
	for {
		all, err := h.QdiscList(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}})
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return slices.ContainsFunc(all, func(q netlink.Qdisc) bool { return q.Type() == "clsact" }), err
		}
	}
}

func (l *Level) attachFilter(h *netlink.Handle, index int, w way) error {
	filters, err := filtersOf(h, index, w.clsact)
	if err != nil {
		return err
	}
	id, err := programID(l.program(w))
	if err != nil {
		return err
	}
	for _, f := range filters {
		if f.Attrs().Priority <= filterPriority && !isOwnFilter(f) {
			return fmt.Errorf("%w: a filter of kind %s", ErrPlace, f.Type())
		}
	}
	if slices.ContainsFunc(filters, func(f netlink.Filter) bool {
		return isOwnFilter(f) && f.(*netlink.BpfFilter).Id == int(id) //nolint:forcetypeassert // isOwnFilter has checked it
	}) {
		return nil
	}
	return h.FilterReplace(filter(index, l.program(w).FD(), w))
}

// filtersOf lists a link's ingress or egress filters.
func filtersOf(h *netlink.Handle, index int, parent uint32) ([]netlink.Filter, error) {
	for {
		filters, err := h.FilterList(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}, parent)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return filters, err
		}
	}
}

func isOwnFilter(f netlink.Filter) bool {
	b, ok := f.(*netlink.BpfFilter)
	return ok && b.Handle == filterHandle && b.Priority == filterPriority && b.Name == filterName
}

// Detach undoes Attach, and returns the link's counts as Links does. The link may be gone already, and the program need not be attached.
func (l *Level) Detach(index int) (hits [2]uint64, err error) {
	var own []ebpf.ProgramID
	for _, w := range ways {
		id, err := programID(l.program(w))
		if err != nil {
			return hits, fmt.Errorf("detach from link %d: %w", index, err)
		}
		own = append(own, id)
	}
	// Detach explicitly before removing the pin: without its pin, the kernel detaches the program some time later
	// (bpf_link_put_deferred), but it must answer no query once Detach returns. The pin may also be gone already.
	if err := dropTCX(index, func(p ebpf.ProgramID) bool { return slices.Contains(own, p) }); err != nil {
		return hits, err
	}
	if err := detach(l.folder, index); err != nil {
		return hits, err
	}
	at, there, err := l.link(index)
	if err == nil && there {
		if err = l.objects.Links.Delete(uint32(index)); errors.Is(err, ebpf.ErrKeyNotExist) {
			err = nil
		}
	}
	return [2]uint64{at.Hits, at.Nxdomain}, err
}

func detach(folder string, index int) error {
	pinned := false
	for _, w := range ways {
		err := os.Remove(linkPath(folder, index, w))
		if pinned = pinned || err == nil; err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("detach from link %d: %w", index, err)
		}
	}
	if pinned {
		return nil
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("detach from link %d: %w", index, err)
	}
	defer h.Close()
	return dropFilter(h, index)
}

// dropFilter removes neardns's clsact filters from a link. If there were any and no other filter is left, it removes the clsact qdisc too.
func dropFilter(h *netlink.Handle, index int) (err error) {
	var own, others int
	for _, w := range ways {
		var filters []netlink.Filter
		if filters, err = filtersOf(h, index, w.clsact); err != nil {
			break
		}
		if others += len(filters); slices.ContainsFunc(filters, isOwnFilter) {
			own, others = own+1, others-1
			if err = h.FilterDel(filter(index, -1, w)); err != nil {
				break
			}
		}
	}
	if err == nil && own > 0 && others == 0 {
		var is bool
		if is, err = hasClsact(h, index); is { // otherwise the qdisc is another program's ingress qdisc
			err = h.QdiscDel(clsactQdisc(index))
		}
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
			err = nil
		}
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("detach from link %d: %w", index, err)
	}
	return nil
}

// Others lists the names of other programs that handle packets of a link: tcx programs and tc filters in the order in which they run,
// then nftables chains and XDP.
func (l *Level) Others(index int) ([]string, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("list filters of link %d: %w", index, err)
	}
	defer h.Close()
	var names []string
	for _, way := range slices.Backward(ways[:]) {
		result, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: way.tcx})
		if err != nil && !errors.Is(err, ebpf.ErrNotSupported) && !errors.Is(err, unix.EINVAL) {
			return nil, fmt.Errorf("list programs of link %d: %w", index, err)
		}
		if err == nil {
			for _, p := range result.Programs {
				if name := programName(p.ID); !isOwn(name) {
					names = append(names, name)
				}
			}
		}
		filters, err := filtersOf(h, index, way.clsact)
		if err != nil {
			return nil, fmt.Errorf("list filters of link %d: %w", index, err)
		}
		for _, f := range filters {
			if b, ok := f.(*netlink.BpfFilter); ok && !isOwnFilter(f) {
				names = append(names, b.Name)
			} else if !ok {
				names = append(names, f.Type())
			}
		}
	}
	hooked, err := hooks(h, index)
	return append(names, hooked...), err
}

// programName is a program's name, or its number if the name cannot be read.
func programName(id ebpf.ProgramID) string {
	if p, err := ebpf.NewProgramFromID(id); err == nil {
		defer p.Close()
		if info, err := p.Info(); err == nil && info.Name != "" {
			return info.Name
		}
	}
	return fmt.Sprint("program ", id)
}

// Retire removes the pinned maps of other builds of neardns, and detaches their programs.
func (l *Level) Retire() error {
	return sweep(filepath.Dir(l.folder), filepath.Base(l.folder))
}

// SweepLinks detaches neardns's programs of any build from all links of the calling thread's netns, wherever they are pinned. It works
// without a BPF file system. On Linux 6.6 and later it needs CAP_SYS_ADMIN for tcx programs, and skips them without it.
func SweepLinks() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // an interrupted list may lack links; sweep the others
		return fmt.Errorf("list links: %w", err)
	}
	var errs []error
	for _, l := range links {
		errs = append(errs, dropFilter(h, l.Attrs().Index),
			dropTCX(l.Attrs().Index, func(id ebpf.ProgramID) bool { return isOwn(programName(id)) }))
	}
	return errors.Join(errs...)
}

// dropTCX detaches those of a link's tcx programs for which own returns true.
func dropTCX(index int, own func(ebpf.ProgramID) bool) error {
	for _, w := range ways {
		result, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: w.tcx})
		for _, none := range []error{ebpf.ErrNotSupported, unix.EINVAL, unix.EPERM, unix.ENODEV} {
			if errors.Is(err, none) {
				return nil
			}
		}
		if err != nil {
			return fmt.Errorf("list programs of link %d: %w", index, err)
		}
		for _, p := range result.Programs {
			id, ok := p.LinkID()
			if !ok || !own(p.ID) {
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
	}
	return nil
}

// Sweep detaches the programs and removes the pins of all versions of neardns in folder. A missing folder is no error.
func Sweep(folder string) error {
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

// sweepBuild removes one build's programs and maps. It detaches from the links that the build's map of links lists; if that map cannot be
// read, removing the pins detaches only tcx programs.
func sweepBuild(folder string) error {
	var errs []error
	if m, err := ebpf.LoadPinnedMap(filepath.Join(folder, objectMapLinks), nil); err == nil {
		var before any // read only the keys: the values of another build may have another form
		var index uint32
		for err = m.NextKey(before, &index); err == nil; err = m.NextKey(before, &index) {
			errs, before = append(errs, detach(folder, int(index))), index
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			err = nil
		}
		errs = append(errs, err, m.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(folder))...)
}
