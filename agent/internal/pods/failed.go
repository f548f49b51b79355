package pods

import (
	"cmp"
	"maps"
	"slices"

	"github.com/neardns/neardns/pkg/podfile"
)

// failedTrials has the pods' interfaces from which the agent could not send its last test query, with the first error of each. The
// node's status shows the error of one of them until its query is sent or the interface is gone. The log has a line when the shown error
// changes, and none for each repeated query.
type failedTrials struct {
	of    map[key]error
	shown key
}

// note records how the last trial of an attachment ended: err is nil if it could be run.
func (t *failedTrials) note(k key, err error) {
	if err == nil {
		delete(t.of, k)
	} else if t.of[k] == nil {
		t.of[k] = err
	}
}

// fault returns the error of one attachment that still has a file; nil if no trial fails.
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
