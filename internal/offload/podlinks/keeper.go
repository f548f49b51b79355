// Package podlinks keeps the kernel program, which answers hits, at the links of the pods that are to have it, and counts its answers
// there.
//
// It decides at which links the program is, and records why it is not at others. The program is never at the link of a pod that is not to
// have it, and no answer is counted twice.
//
// On failure: a pod whose link cannot have the program is listed with the reason, and the agent answers it as if there were no program.
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

// Program is the kernel program, at links that their indexes name.
type Program interface {
	// Attach does nothing if the program is there already. If it fails, the program is not there unless it was before. After an error that is
	// fs.ErrNotExist the program as a whole has to be made again: the files that keep it at links are gone.
	Attach(ifindex int) error
	// Detach returns how many queries were answered at a link, which may be gone, since the program was attached there.
	Detach(ifindex int) (answers uint64, err error)
	// Links returns how many queries were answered so far at each link that the program is at, or was when the link went, whichever agent
	// attached it.
	Links() (map[int]uint64, error)
	// Unanswered reports whether it answers nothing at a link because the pod's own queries are not seen to be answered.
	Unanswered(ifindex int) (bool, error)
	// Others names other programs that see what comes from a link or goes to it.
	Others(ifindex int) ([]string, error)
}

// Pod is an attachment that the program is wanted for.
type Pod struct {
	File podfile.File
	Why  string // the reason if it cannot have it; "": it can
}

// Refused is a pod whose hits are not answered in the kernel although that is wanted.
type Refused struct {
	Pod string `json:"pod"`
	Why string `json:"why"`
}

// Keeper keeps the program at links. Its methods may be called at the same time.
type Keeper struct {
	Log     *slog.Logger
	Program Program
	// AllowOthers attaches the program next to other programs at a link, which see all but its hits.
	AllowOthers bool
	// Veth finds the link of a pod.
	Veth func(podfile.File) (ifindex int, name string, err error)
	// Count adds answers that the kernel program gave at a pod's link.
	Count func(f podfile.File, answers uint64)
	// Refusals returns the level at which refused pods are logged.
	Refusals func() slog.Level

	mu       sync.Mutex           // guards the fields below, and the program
	at       map[int]podfile.File // whose link each is, of those that the program is at; nil before the first look
	counted  map[int]uint64       // answers that were counted
	podLinks map[key]podLink
	refused  []Refused
	answered int // links that the program is at whose pods' own queries are answered, as of the last look
}

// key is an attachment.
type key struct {
	containerID, ifName string
	inode               uint64 // of its netns
}

func keyOf(f podfile.File) key { return key{f.ContainerID, f.IfName, f.NetNSInode} }

// podLink is the link of an attachment. A veth keeps its index, and a pod has one veth for life; if it has another one, attaching to the
// old one fails and the link is looked for again.
type podLink struct {
	ifindex int
	name    string
}

// whyUnanswered is the reason of a pod whose own queries are not seen to be answered.
const whyUnanswered = "its queries are not seen to be answered: a network policy or firewall drops them, " +
	"or the answers do not pass the host's end of its link"

// Reconcile attaches the program where it is wanted, detaches it elsewhere, and counts. It goes on after an error with one link; the
// errors that it returns are of the program as a whole.
func (k *Keeper) Reconcile(pods []Pod) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	there, err := k.Program.Links()
	if err != nil {
		return fmt.Errorf("list where the program is: %w", err)
	}
	first := k.at == nil
	if first { // an earlier agent has counted these answers
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
		// Another program may have detached it although Links still lists it: an agent that failed to open the level, or a cleaner of links.
		if err := k.Program.Attach(i); err != nil {
			refused = append(refused, Refused{name(f), err.Error()})
			delete(k.podLinks, keyOf(f))
			if errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
			if was {
				errs = append(errs, k.detach(i))
			}
			continue
		}
		if !was || first {
			k.Log.Info("kernel program attached to a pod's link; it answers the pod's hits", "pod", name(f), "ifindex", i)
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
		k.Log.Info("kernel program detached from a pod's link; the agent answers the pod's hits", "pod", name(f), "ifindex", i)
	}
	delete(k.counted, i)
	delete(k.at, i)
	return nil
}

// wanted returns the links that the program should be attached to, and the pods that it refuses, with the reason.
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

// checkOthers fails if other programs handle packets from or to a link: they would see neither the hits nor the answers, whatever they are
// for.
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

// count counts the answers since the last time. mu is held.
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

// add counts the answers at a link, of which there have been n in all. mu is held.
func (k *Keeper) add(i int, f podfile.File, n uint64) {
	if more := n - min(n, k.counted[i]); more > 0 {
		k.Count(f, more)
		k.counted[i] = n
	}
}

// CountNow counts the answers since the last time, before the counts are read.
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
			k.Log.Log(context.Background(), k.Refusals(), "kernel program cannot answer a pod's hits; the agent does", "pod", r.Pod, "reason", r.Why)
		}
	}
	k.refused = refused
}

// State is where the program is.
type State struct {
	Pods    int // whose hits it answers
	Refused []Refused
}

// State returns it, as of the last look.
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
