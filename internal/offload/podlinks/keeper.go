// Package podlinks attaches the kernel program to the links of the pods whose hits it should answer, detaches it from all others, and
// counts its answers.
//
// It guarantees that after a Reconcile without error the program is at no other pod's link, and that no answer is counted twice.
//
// On failure: a pod whose link cannot have the program is listed with the reason, and its queries are answered as without kernel hits.
package podlinks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/neardns/neardns/pkg/podfile"
)

// Program attaches the kernel program to links, which are named by their interface indexes.
type Program interface {
	// Attach does nothing if the program is attached already. If it fails, the program may be attached in only one direction of the link,
	// until Detach. fs.ErrNotExist means that the program's pins in the BPF file system are gone, so that the program must be loaded again.
	Attach(ifindex int) error
	// Detach returns how many queries the program answered at the link since it was attached, and how many of them with NXDOMAIN. The
	// link may be gone.
	Detach(ifindex int) (answers [2]uint64, err error)
	// Links returns the same, by ifindex, of each link to which this agent or an earlier one has attached the program. Links from which it
	// was detached are left out. A link may be gone.
	Links() (map[int][2]uint64, error)
	// Unanswered reports whether the program serves no hits at a link because the pod's sample queries get no answer.
	Unanswered(ifindex int) (bool, error)
	// Others names other programs that handle packets of a link.
	Others(ifindex int) ([]string, error)
}

// Pod is a network interface of a pod whose hits the program should answer.
type Pod struct {
	File podfile.File
	Why  string // why the program may not be attached for this pod; "": it may
}

// Refused is a pod whose hits the kernel program should answer, but does not.
type Refused struct {
	Pod string `json:"pod"`
	Why string `json:"why"`
}

// Keeper keeps the program at links. Its methods may be called at the same time.
type Keeper struct {
	Log     *slog.Logger
	Program Program
	// AllowOthers permits attaching to a link that has other programs. They then do not see the hits.
	AllowOthers bool
	// Veth finds the host's end of a pod's veth.
	Veth func(podfile.File) (ifindex int, name string, err error)
	// Count gets the number of new answers that the kernel program gave at a pod's link, and how many of them are NXDOMAIN.
	Count func(f podfile.File, answers, nxdomain uint64)
	// Refusals returns the log level for new refusals.
	Refusals func() slog.Level

	mu       sync.Mutex           // guards the fields below, and the program
	at       map[int]podfile.File // the pod at each link with the program; nil before the first Reconcile
	counted  map[int][2]uint64    // answers since the program was attached that this agent or an earlier one has counted, by ifindex
	podLinks map[key]podLink      // links that Veth found, of the pods of the last Reconcile
	refused  []Refused            // as of the last Reconcile
	answered int                  // number of links where the program serves hits, as of the last Reconcile
}

// key identifies a pod's network interface.
type key struct {
	containerID, ifName string
	inode               uint64 // of the pod's netns
}

func keyOf(f podfile.File) key { return key{f.ContainerID, f.IfName, f.NetNSInode} }

// podLink is the host's end of a pod's veth. The Keeper remembers it, because a veth keeps its index. If the pod gets another veth,
// attaching to the old one fails, and the next Reconcile calls Veth for the pod again.
type podLink struct {
	ifindex int
	name    string
}

// whyUnanswered is the reason for a pod whose sample queries get no answer.
const whyUnanswered = "its queries are not seen to be answered: a network policy or firewall drops them, " +
	"or the answers do not pass the host's end of its link"

// Reconcile attaches the program to the links of pods, detaches it from all others, and counts its answers. If the program cannot be
// attached to a link, Reconcile records a refusal; it returns all other errors, and fs.ErrNotExist of Attach.
func (k *Keeper) Reconcile(pods []Pod) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	there, err := k.Program.Links()
	if err != nil {
		return fmt.Errorf("list where the program is: %w", err)
	}
	first := k.at == nil
	if first { // count only answers from now on: an earlier agent has counted those before
		k.at, k.counted, k.podLinks = map[int]podfile.File{}, there, map[key]podLink{}
	}
	wanted, refused := k.wanted(pods)
	k.answered = 0
	var errs []error
	for i := range there {
		if _, ok := wanted[i]; !ok {
			errs = append(errs, k.detach(i))
		}
	}
	for _, i := range slices.Sorted(maps.Keys(wanted)) {
		f := wanted[i]
		_, was := there[i]
		// Attach even if Links lists the link: another process may have detached the program since.
		if err := k.Program.Attach(i); err != nil {
			refused = append(refused, Refused{name(f), err.Error()})
			delete(k.podLinks, keyOf(f))
			if errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
			errs = append(errs, k.detach(i))
			continue
		}
		if !was || first {
			k.Log.Info("kernel program is on a pod's link; it answers hits while samples are answered", "pod", name(f), "ifindex", i)
		}
		k.at[i] = f
		if unanswered, err := k.Program.Unanswered(i); err != nil {
			errs = append(errs, err)
		} else if unanswered {
			refused = append(refused, Refused{name(f), whyUnanswered})
		} else {
			k.answered++
		}
	}
	k.logRefused(refused)
	return errors.Join(append(errs, k.count())...)
}

// detach detaches the program from a link, and counts its last answers there. mu is held.
func (k *Keeper) detach(i int) error {
	answers, err := k.Program.Detach(i)
	if err != nil {
		return fmt.Errorf("detach from link %d: %w", i, err)
	}
	if f, ok := k.at[i]; ok {
		k.add(i, f, answers)
		k.Log.Info("kernel program detached from a pod's link; it answers none of the pod's hits", "pod", name(f), "ifindex", i)
	}
	delete(k.counted, i)
	delete(k.at, i)
	return nil
}

// wanted returns the pods whose links should have the program, by the link's ifindex, and the refused pods. mu is held.
func (k *Keeper) wanted(pods []Pod) (map[int]podfile.File, []Refused) {
	out, found := map[int]podfile.File{}, map[key]podLink{}
	var refused []Refused
	for _, p := range pods {
		why := p.Why
		if why == "" {
			id := keyOf(p.File)
			at, ok := k.podLinks[id]
			var err error
			if !ok {
				at.ifindex, at.name, err = k.Veth(p.File)
			}
			if err == nil && !k.AllowOthers {
				err = k.checkOthers(at)
			}
			if err == nil {
				found[id], out[at.ifindex] = at, p.File
				continue
			}
			why = err.Error()
		}
		refused = append(refused, Refused{name(p.File), why})
	}
	k.podLinks = found
	return out, refused
}

// checkOthers returns an error if programs other than neardns's handle packets of the link: they would see neither the queries of hits nor
// the answers to them.
func (k *Keeper) checkOthers(at podLink) error {
	others, err := k.Program.Others(at.ifindex)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		return fmt.Errorf("%s has programs of others, which would not see its hits: %s", at.name, strings.Join(others, ", "))
	}
	return nil
}

// count passes each link's answers since the previous count to Count. mu is held.
func (k *Keeper) count() error {
	answered, err := k.Program.Links()
	if err != nil {
		return fmt.Errorf("read the kernel's answers: %w", err)
	}
	for i, f := range k.at {
		k.add(i, f, answered[i])
	}
	return nil
}

// add passes a link's answers that are not yet counted to Count. n is the total since the program was attached. mu is held.
func (k *Keeper) add(i int, f podfile.File, n [2]uint64) {
	was := k.counted[i]
	if more := n[0] - min(n[0], was[0]); more > 0 {
		k.Count(f, more, n[1]-min(n[1], was[1]))
		k.counted[i] = n
	}
}

// CountNow counts the answers since the previous count, so that the counts are current when they are read.
func (k *Keeper) CountNow() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.at == nil {
		return nil
	}
	return k.count()
}

// logRefused logs refusals that are new. mu is held.
func (k *Keeper) logRefused(refused []Refused) {
	slices.SortFunc(refused, func(a, b Refused) int { return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Why, b.Why)) })
	for _, r := range refused {
		if !slices.Contains(k.refused, r) {
			k.Log.Log(context.Background(), k.Refusals(), "kernel program answers none of a pod's hits", "pod", r.Pod, "reason", r.Why)
		}
	}
	k.refused = refused
}

// State has the number of pods whose hits the program serves, and the refused pods.
type State struct {
	Pods    int // pods whose hits the program serves
	Refused []Refused
}

// State returns the state as of the last Reconcile.
func (k *Keeper) State() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return State{Pods: k.answered, Refused: slices.Clone(k.refused)}
}

func name(f podfile.File) string {
	if f.PodName == "" {
		return f.ContainerID
	}
	return f.PodNamespace + "/" + f.PodName
}
