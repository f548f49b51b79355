package node

import (
	"fmt"
	"time"
)

// noteFault records and logs that a part of the agent's work has a fault or, with a nil err, that its fault is over. It reports whether err
// is nil.
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
		n.Log.Error("this part of the agent's work failed; will retry", "part", part, "err", err)
	default:
		n.Log.Info("this part of the agent's work succeeds again", "part", part)
	}
	return err == nil
}

// noteRepair records and logs that a part of the node differed from the plan and was repaired. While the server does not run, and during a
// reload or takeover, it only logs the change, as a setup. With quietly, it logs the repair at debug level: while another program keeps
// undoing repairs, only the first are warnings.
func (n *Node) noteRepair(kind, what string, quietly bool) {
	n.mu.Lock()
	building := !n.serving || n.reloading
	if !building {
		n.repairs[kind]++
		n.repair = time.Now().UTC().Format(time.RFC3339) + " " + kind + ": " + what
	}
	n.mu.Unlock()
	if building {
		n.Log.Info("set up a part of the node", "part", kind, "what", what)
		return
	}
	n.Recorder.Repair(kind)
	if quietly {
		n.Log.Debug("repaired a part of the node", "part", kind, "what", what)
		return
	}
	n.Log.Warn("repaired a part of the node", "part", kind, "what", what)
}

// summarize returns the first difference and the number of the others, because one cause usually makes many differences.
func summarize(drift []string) string {
	switch len(drift) {
	case 0:
		return ""
	case 1:
		return drift[0]
	}
	return fmt.Sprintf("%s; and %d more differences", drift[0], len(drift)-1)
}
