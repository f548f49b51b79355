// Package podlinks keeps the kernel's program that answers hits at the links of the pods that are to have it, and counts what it answers
// there.
//
// It owns at which links the program is, and why it is not at others. It must never leave the program at the link of a pod that is not to
// have it, nor count an answer twice.
//
// Failure policy: a pod whose link the program cannot be at is told of, with the reason, and asks the agent as if there were no program.
package podlinks

import (
	"cmp"
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

// Program is the kernel's, at links that are told by their indexes.
type Program interface {
	// Attach does nothing where the program is. Where it fails, the program is not there unless it was before. After an error that
	// is fs.ErrNotExist the program as a whole has to be made again: the files that keep it at links are gone.
	Attach(ifindex int) error
	// Detach returns how many questions were answered at a link, which may be gone, since the program came there.
	Detach(ifindex int) (answers uint64, err error)
	// Links tells of each link that the program is at, or was when it went, how many questions were answered there so far, whoever
	// attached it.
	Links() (map[int]uint64, error)
	// Others names other programs that see what comes from a link or goes to it.
	Others(ifindex int) ([]string, error)
}

// Pod is an attachment that the program is wanted for.
type Pod struct {
	File podfile.File
	Why  string // why it cannot have it; "": it can
}

// Refused is a pod that is not to be answered in the kernel although that is wanted.
type Refused struct {
	Pod string `json:"pod"`
	Why string `json:"why"`
}

// Keeper keeps the program at links. Its methods may be called at the same time.
type Keeper struct {
	Log     *slog.Logger
	Program Program
	// Beside lets the program stand before others at a link, who see all but its hits.
	Beside bool
	// Veth finds the link of one.
	Veth func(podfile.File) (ifindex int, name string, err error)
	// Answered is told of answers that the kernel gave at a pod's link.
	Answered func(f podfile.File, answers uint64)
	// Heard tells how many of a pod's questions the agent itself answered so far.
	Heard func(podfile.File) uint64
	// Suspect is told of a pod that has answers of the kernel, and whose other questions may be lost.
	Suspect func(podfile.File)

	mu      sync.Mutex           // guards the fields below, and the program
	at      map[int]podfile.File // whose link each is, of those that the program is at; nil before the first look
	told    map[int]uint64       // answers that were counted
	since   map[int]uint64       // of them, since the last look
	heard   map[int]uint64       // what Heard told at the last look
	found   map[key]place
	refused []Refused
}

// key is an attachment.
type key struct {
	containerID, ifName string
	inode               uint64 // of its netns
}

func keyOf(f podfile.File) key { return key{f.ContainerID, f.IfName, f.NetNSInode} }

// place is the link of an attachment. A veth's index stays as long as it does, and a pod has one veth for life; where it has not, nobody can
// attach to the old one, and it is looked for anew.
type place struct {
	ifindex int
	name    string
}

// Look attaches the program where it is wanted and is not, detaches it elsewhere, and counts; none wanted: it is at no link then. It goes
// on after an error with one link; the errors that it returns are of the program as a whole.
func (k *Keeper) Look(pods []Pod) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	there, err := k.Program.Links()
	if err != nil {
		return fmt.Errorf("list where the program is: %w", err)
	}
	first := k.at == nil
	if first { // what was answered before this agent's time is not its own to count
		k.at, k.told, k.found = map[int]podfile.File{}, there, map[key]place{}
		k.since, k.heard = map[int]uint64{}, map[int]uint64{}
	}
	wanted, refused := k.wanted(pods)
	var errs []error
	for i := range there {
		if _, ok := wanted[i]; !ok {
			errs = append(errs, k.detach(i))
		}
	}
	for _, i := range slices.Sorted(maps.Keys(wanted)) {
		f := wanted[i]
		_, was := there[i]
		// Others may have taken the program away where Links still tells of it: an agent that could not have the level, or whoever cleans links.
		if err := k.Program.Attach(i); err != nil {
			refused = append(refused, Refused{name(f), err.Error()})
			delete(k.found, keyOf(f))
			if errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
			if was {
				errs = append(errs, k.detach(i))
			}
			continue
		}
		if !was || first {
			k.Log.Info("hits of a pod are answered in the kernel", "pod", name(f), "ifindex", i)
		}
		k.at[i] = f
	}
	k.say(refused)
	errs = append(errs, k.count())
	k.listen()
	return errors.Join(errs...)
}

// detach takes the program away from a link, and counts the last of what it answered there. mu is held.
func (k *Keeper) detach(i int) error {
	answers, err := k.Program.Detach(i)
	if err != nil {
		return fmt.Errorf("detach from link %d: %w", i, err)
	}
	if f, ok := k.at[i]; ok {
		k.add(i, f, answers)
		k.Log.Info("hits of a pod are answered by the agent again", "pod", name(f), "ifindex", i)
	}
	for _, m := range []map[int]uint64{k.told, k.since, k.heard} {
		delete(m, i)
	}
	delete(k.at, i)
	return nil
}

// wanted finds the links that the program is to be at.
func (k *Keeper) wanted(pods []Pod) (map[int]podfile.File, []Refused) {
	out, found := map[int]podfile.File{}, map[key]place{}
	var refused []Refused
	for _, p := range pods {
		why := p.Why
		if why == "" {
			id := keyOf(p.File)
			at, ok := k.found[id]
			var err error
			if !ok {
				at.ifindex, at.name, err = k.Veth(p.File)
			}
			if err == nil && !k.Beside {
				err = k.alone(at)
			}
			if err == nil {
				found[id], out[at.ifindex] = at, p.File
				continue
			}
			why = err.Error()
		}
		refused = append(refused, Refused{name(p.File), why})
	}
	k.found = found
	return out, refused
}

// alone fails where other programs see what comes from a link or goes to it: they would not see what is answered, or the answer, and be
// wrong about it, whatever they are for.
func (k *Keeper) alone(at place) error {
	others, err := k.Program.Others(at.ifindex)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		return fmt.Errorf("%s has programs of others, which would not see its hits: %s", at.name, strings.Join(others, ", "))
	}
	return nil
}

// count tells of what was answered since the last time. mu is held.
func (k *Keeper) count() error {
	answered, err := k.Program.Links()
	if err != nil {
		return fmt.Errorf("read what was answered: %w", err)
	}
	for i, f := range k.at {
		k.add(i, f, answered[i])
	}
	return nil
}

// add counts what was answered at a link, of which all so far is n. mu is held.
func (k *Keeper) add(i int, f podfile.File, n uint64) {
	if fresh := n - min(n, k.told[i]); fresh > 0 {
		k.Answered(f, fresh)
		k.told[i], k.since[i] = n, k.since[i]+fresh
	}
}

// listen finds pods that the kernel answered and the agent did not hear since the last look. The kernel's answers hide from a pod's own
// table that all other questions are lost, as behind a program at the pod's link that drops what is for the agent. Most such pods just
// asked for nothing else; to ask from their netns costs one question.
func (k *Keeper) listen() {
	for i, f := range k.at {
		heard, known := k.heard[i]
		if k.heard[i] = k.Heard(f); known && k.since[i] > 0 && k.heard[i] == heard {
			k.Suspect(f)
		}
		k.since[i] = 0
	}
}

// Count tells of what was answered since the last time, before somebody reads the counts.
func (k *Keeper) Count() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.at == nil {
		return nil
	}
	return k.count()
}

// say logs refusals that are new. mu is held.
func (k *Keeper) say(refused []Refused) {
	slices.SortFunc(refused, func(a, b Refused) int { return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Why, b.Why)) })
	for _, r := range refused {
		if !slices.Contains(k.refused, r) {
			k.Log.Warn("hits of a pod are not answered in the kernel", "pod", r.Pod, "reason", r.Why)
		}
	}
	k.refused = refused
}

// State is where the program is.
type State struct {
	Pods    int
	Refused []Refused
}

// State returns it, as of the last look.
func (k *Keeper) State() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return State{Pods: len(k.at), Refused: slices.Clone(k.refused)}
}

func name(f podfile.File) string {
	if f.PodName == "" {
		return f.ContainerID
	}
	return f.PodNamespace + "/" + f.PodName
}
