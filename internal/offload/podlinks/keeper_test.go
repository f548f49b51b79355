package podlinks

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// kernel is a Program for the tests.
type kernel struct {
	at      map[int]uint64 // number of answers at each link with the program
	others  map[int][]string
	refuses map[int]error
	err     error
	asked   []int        // links that Attach was called for
	gone    int          // a link that is gone
	cut     map[int]bool // links of pods whose queries are not answered
}

func (k *kernel) Attach(i int) error {
	k.asked = append(k.asked, i)
	if _, there := k.at[i]; !there {
		k.at[i] = 0
	}
	return k.refuses[i] // as if attaching the other direction failed
}

// counts are a link's: of the answers, every tenth is NXDOMAIN.
func (k *kernel) counts(i int) [2]uint64 { return [2]uint64{k.at[i], k.at[i] / 10} }

func (k *kernel) Detach(i int) ([2]uint64, error) {
	defer delete(k.at, i)
	return k.counts(i), nil
}

func (k *kernel) Unanswered(i int) (bool, error) { return k.cut[i], nil }

func (k *kernel) Links() (map[int][2]uint64, error) {
	out := map[int][2]uint64{}
	for i := range k.at {
		out[i] = k.counts(i)
	}
	return out, k.err
}

func (k *kernel) Others(i int) ([]string, error) {
	if i == k.gone {
		return nil, errors.New("no such device")
	}
	return k.others[i], nil
}

// world is a keeper over a kernel, with pods whose links are numbered by their names: pod7 has link 7.
type world struct {
	t       *testing.T
	kernel  *kernel
	keeper  *Keeper
	log     bytes.Buffer
	counted map[string][2]uint64
	looked  map[string]int // how often Veth was called for a pod
	moved   map[string]int // links of pods that are not numbered by their names any more
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, kernel: &kernel{at: map[int]uint64{}, others: map[int][]string{}, refuses: map[int]error{}}, counted: map[string][2]uint64{}, looked: map[string]int{}, moved: map[string]int{}}
	w.keeper = &Keeper{Refusals: func() slog.Level { return slog.LevelWarn }, Log: slog.New(slog.NewTextHandler(&w.log, nil)), Program: w.kernel,
		Veth: func(f podfile.File) (i int, name string, err error) {
			w.looked[f.PodName]++
			if i = w.moved[f.PodName]; i != 0 {
				return i, "veth", nil
			}
			if _, err = fmt.Sscanf(f.PodName, "pod%d", &i); err != nil {
				return 0, "", errors.New("no way")
			}
			return i, "veth", nil
		},
		Count: func(f podfile.File, n, nxdomain uint64) {
			was := w.counted[f.PodName]
			w.counted[f.PodName] = [2]uint64{was[0] + n, was[1] + nxdomain}
		},
	}
	return w
}

// look calls Reconcile with pods by name; with ": why" after the name, why is Pod.Why.
func (w *world) look(pods ...string) {
	w.t.Helper()
	var in []Pod
	for _, p := range pods {
		name, why, _ := strings.Cut(p, ": ")
		in = append(in, Pod{File: podfile.File{ContainerID: "c-" + name, IfName: "eth0", PodNamespace: "shop", PodName: name}, Why: why})
	}
	testutil.Must(w.t, w.keeper.Reconcile(in))
}

func (w *world) at() []int { return slices.Sorted(maps.Keys(w.kernel.at)) }

func TestLook(t *testing.T) {
	w := newWorld(t)
	w.kernel.at[9] = 5 // of an earlier agent; the pod is gone
	w.look("pod1", "pod2", "pod3: it is bypassed, kube-dns answers it", "host")
	testutil.Equal(t, "the program is at", []int{1, 2}, w.at())
	s := w.keeper.State()
	want := []Refused{{"shop/host", "no way"}, {"shop/pod3", "it is bypassed, kube-dns answers it"}}
	if s.Pods != 2 || !slices.Equal(s.Refused, want) {
		t.Errorf("state %+v", s)
	}
	w.look("pod1", "pod3", "host")
	testutil.Equal(t, "the program is at", []int{1, 3}, w.at())
	if w.looked["pod1"] != 1 || w.looked["host"] != 2 {
		t.Errorf("looked for links %v", w.looked)
	}
	testutil.Equal(t, "times logged", 1, strings.Count(w.log.String(), "pod=shop/host"))
	w.look()
	if len(w.at()) != 0 || w.keeper.State().Pods != 0 {
		t.Errorf("the program is at %v", w.at())
	}
}

// TestUnanswered: a pod whose own queries are not seen to be answered is listed with the reason, and the program stays at its link.
func TestUnanswered(t *testing.T) {
	w := newWorld(t)
	w.kernel.cut = map[int]bool{2: true}
	w.look("pod1", "pod2")
	want := []Refused{{"shop/pod2", whyUnanswered}}
	if s := w.keeper.State(); s.Pods != 1 || !slices.Equal(s.Refused, want) || !slices.Equal(w.at(), []int{1, 2}) {
		t.Errorf("at %d, state %+v", w.at(), s)
	}
	w.kernel.cut = nil
	w.look("pod1", "pod2")
	if s := w.keeper.State(); s.Pods != 2 || len(s.Refused) != 0 {
		t.Errorf("state %+v", s)
	}
}

// TestForeign: a link with another program's hook is logged once and checked at each Reconcile. If such a hook appears later, the kernel
// program is detached.
func TestForeign(t *testing.T) {
	w := newWorld(t)
	w.kernel.others[1] = []string{"cil_from_container"}
	w.kernel.refuses[2] = errors.New("no such device")
	for range 2 {
		w.look("pod1", "pod2", "pod3")
		testutil.Equal(t, "the program is at", []int{3}, w.at())
	}
	s := w.keeper.State()
	if s.Pods != 1 || len(s.Refused) != 2 || !strings.Contains(s.Refused[0].Why, "cil_from") || !strings.Contains(s.Refused[1].Why, "no such device") {
		t.Errorf("state %+v", s)
	}
	testutil.Equal(t, "times logged", 1, strings.Count(w.log.String(), "cil_from"))
	delete(w.kernel.others, 1)
	delete(w.kernel.refuses, 2)
	w.look("pod1", "pod2", "pod3")
	if s := w.keeper.State(); s.Pods != 3 || len(s.Refused) != 0 {
		t.Errorf("state %+v", s)
	}
	w.kernel.others[3] = []string{"tap"}
	w.look("pod1", "pod2", "pod3")
	testutil.Equal(t, "the program is at", []int{1, 2}, w.at())
}

// TestCounts: each answer is counted once, also those of a pod that is gone at the next Reconcile, and none from before this agent's start.
func TestCounts(t *testing.T) {
	w := newWorld(t)
	w.kernel.at[1] = 100
	w.kernel.at[8] = 50 // the pod went while no agent ran
	w.look("pod1", "pod2")
	testutil.Equal(t, "the program is at", []int{1, 2}, w.at())
	w.kernel.at[1], w.kernel.at[2] = 113, 15
	for range 2 {
		testutil.Must(t, w.keeper.CountNow())
	}
	w.kernel.at[2] = 27
	w.look("pod1")
	w.look("pod1")
	testutil.Equal(t, "counted", map[string][2]uint64{"pod1": {13, 1}, "pod2": {27, 2}}, w.counted)
	w.look("pod1", "pod2")
	w.kernel.at[2] = 1 // it counts from its attachment
	w.look("pod1", "pod2")
	testutil.Equal(t, "counted after its attachment", [2]uint64{28, 2}, w.counted["pod2"])
}

// TestErrors: Reconcile returns an error that is not about a single link, and changes nothing.
func TestErrors(t *testing.T) {
	w := newWorld(t)
	testutil.Check(t, w.keeper.CountNow(), "before the first look")
	w.look("pod1")
	w.kernel.err = errors.New("no maps")
	if err := w.keeper.Reconcile(nil); err == nil || !strings.Contains(err.Error(), "no maps") || len(w.at()) != 1 {
		t.Errorf("%v, at %v", err, w.at())
	}
}

// TestFilesGone: if the program's pins are gone, Reconcile returns the error, so that the caller loads the program again. A link that is
// gone is only a refusal.
func TestFilesGone(t *testing.T) {
	w := newWorld(t)
	file := podfile.File{ContainerID: "c", IfName: "eth0", PodNamespace: "shop", PodName: "pod1"}
	for _, tc := range []struct {
		err    error
		caller bool
	}{{errors.New("no such device"), false}, {fmt.Errorf("pin: %w", fs.ErrNotExist), true}} {
		w.kernel.refuses[1] = tc.err
		if err := w.keeper.Reconcile([]Pod{{File: file}}); errors.Is(err, tc.err) != tc.caller {
			t.Errorf("%v: the caller hears %v", tc.err, err)
		}
	}
}

// TestAttachedAnew: each Reconcile attaches the program to all links, because another process may have detached it. Answers from before the
// first Reconcile are not counted.
func TestAttachedAnew(t *testing.T) {
	w := newWorld(t)
	w.kernel.at[7] = 40
	w.look("pod7")
	w.look("pod7", "pod8")
	testutil.Equal(t, "attached at", []int{7, 7, 8}, w.kernel.asked)
	testutil.Equal(t, "pods counted", 0, len(w.counted))
	testutil.Equal(t, "times logged", 1, strings.Count(w.log.String(), "pod=shop/pod7"))
}

// TestReplaced: if a pod has got another link, the program is attached to the new link at the second Reconcile after that, and the answers
// at the old link are counted.
func TestReplaced(t *testing.T) {
	for what, gone := range map[string]func(w *world){
		"seen by who attaches":       func(w *world) { w.kernel.refuses[1] = errors.New("no such device") },
		"seen by who looks at links": func(w *world) { w.kernel.gone = 1 },
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.look("pod1")
			w.kernel.at[1], w.moved["pod1"] = 5, 2
			gone(w)
			w.look("pod1")
			if s := w.keeper.State(); s.Pods != 0 || len(s.Refused) != 1 || !strings.Contains(s.Refused[0].Why, "no such device") || len(w.at()) != 0 {
				t.Errorf("at %d, state %+v", w.at(), s)
			}
			w.look("pod1")
			if s := w.keeper.State(); s.Pods != 1 || len(s.Refused) != 0 || !slices.Equal(w.at(), []int{2}) || w.counted["pod1"][0] != 5 {
				t.Errorf("at %d, state %+v, counted %v", w.at(), s, w.counted)
			}
		})
	}
}
