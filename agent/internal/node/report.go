package node

import (
	"fmt"
	"time"
)

// noteFault records the fault of a part, or that it has none, and logs changes. It returns true if there is no fault.
func (n *Node) noteFault(part string, err error) bool {
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
		n.Log.Error("cannot be repaired; will retry", "part", part, "err", err)
	default:
		n.Log.Info("repaired after a fault", "part", part)
	}
	return err == nil
}

// noteRepair records and logs a repair. Before the server runs, and in a reload, it is a setup and no repair. With quietly it is not logged
// as a warning: of repairs that another program keeps undoing, only the first ones are.
func (n *Node) noteRepair(kind, what string, quietly bool) {
	n.mu.Lock()
	building := !n.serving || n.reloading
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

// summarize summarises differences by the first one, because one cause makes many.
func summarize(drift []string) string {
	switch len(drift) {
	case 0:
		return ""
	case 1:
		return drift[0]
	}
	return fmt.Sprintf("%s; and %d more differences", drift[0], len(drift)-1)
}
