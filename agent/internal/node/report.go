package node

import (
	"fmt"
	"time"
)

// note keeps what is wrong with a part and says it when it changes. It returns true if nothing is.
func (n *Node) note(part string, err error) bool {
	text := ""
	if err != nil {
		text = err.Error()
	}
	n.mu.Lock()
	before := n.faults[part]
	if text == "" {
		delete(n.faults, part)
	} else {
		n.faults[part] = text
	}
	if text != "" && text != before {
		n.fault = &Fault{Time: time.Now(), Part: part, What: text}
	}
	n.mu.Unlock()
	switch {
	case text == before:
	case text != "":
		n.Log.Error("not as it should be, will be tried again", "part", part, "err", err)
	default:
		n.Log.Info("right again", "part", part)
	}
	return err == nil
}

// repaired says what had to be mended. Before the server runs, and in a reload, that is building and no repair.
// quietly: of many repairs that another program undoes, only the first are said.
func (n *Node) repaired(kind, what string, quietly bool) {
	n.mu.Lock()
	building := !n.serving || n.moving
	if !building {
		n.repairs[kind]++
		n.repair = time.Now().UTC().Format(time.RFC3339) + " " + kind + ": " + what
	}
	n.mu.Unlock()
	if building {
		n.Log.Info("set up", "part", kind, "what", what)
		return
	}
	n.Recorder.Repair(kind)
	if quietly {
		n.Log.Debug("repaired", "part", kind, "what", what)
		return
	}
	n.Log.Warn("repaired", "part", kind, "what", what)
}

// inWords sums drift up: the first difference tells most, and one cause makes many.
func inWords(drift []string) string {
	switch len(drift) {
	case 0:
		return ""
	case 1:
		return drift[0]
	}
	return fmt.Sprintf("%s; and %d more differences", drift[0], len(drift)-1)
}
