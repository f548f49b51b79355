package pods

import (
	"cmp"
	"maps"
	"slices"

	"github.com/neardns/neardns/pkg/podfile"
)

// failedTrials has the pods' network interfaces whose last trial failed: it could not be run, or its result could not be carried out. For
// each it has the first error. The node's status shows the error of one of them until a trial of that interface does not fail or its pod
// file is gone. The agent logs a line when the shown error changes, and none for each failed trial.
type failedTrials struct {
	of    map[key]error // interface to the first error since its last trial that did not fail
	shown key           // the interface whose error fault last returned
}

// note records how the last trial of a pod's interface ended: err is nil if it did not fail.
func (t *failedTrials) note(k key, err error) {
	if err == nil {
		delete(t.of, k)
	} else if t.of[k] == nil {
		t.of[k] = err
	}
}

// fault returns the error of one interface whose pod file still exists; nil if there is no such error.
func (t *failedTrials) fault(files []podfile.File) error {
	if len(t.of) == 0 {
		return nil
	}
	there := map[key]bool{}
	for _, f := range files {
		there[keyOf(f)] = true
	}
	maps.DeleteFunc(t.of, func(k key, _ error) bool { return !there[k] })
	if t.of[t.shown] == nil && len(t.of) > 0 {
		t.shown = slices.MinFunc(slices.Collect(maps.Keys(t.of)), func(a, b key) int {
			return cmp.Or(cmp.Compare(a.containerID, b.containerID), cmp.Compare(a.ifName, b.ifName))
		})
	}
	return t.of[t.shown]
}
