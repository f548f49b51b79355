package node

import (
	"time"

	"github.com/neardns/neardns/agent/internal/node/backoff"
)

// repairPart calls repair, which checks and repairs one part of the node (link, rules, firewall, prober). It skips the call during the
// backoff from a program that keeps undoing the repairs. During a reload, or after a takeover until the first successful round, it always
// calls repair, and does not count the changes as repairs.
func (n *Node) repairPart(kind string, repair func() (repaired string, err error)) error {
	q := n.conflicts[kind]
	if q == nil {
		q = &backoff.Conflict{}
		n.conflicts[kind] = q
	}
	n.mu.Lock()
	moving := n.reloading
	n.mu.Unlock()
	if !moving && !q.Due(time.Now()) {
		return q.Err()
	}
	repaired, err := repair()
	n.PartChecked(kind, err)
	if repaired != "" && !moving {
		q.Repaired(time.Now())
		if _, lasts := q.Lasts(); lasts {
			time.AfterFunc(time.Until(q.Until()), n.kick.Send) // starts the next check
		}
	}
	if repaired != "" {
		count, lasts := q.Lasts()
		n.noteRepair(kind, repaired, lasts && count > backoff.Limit)
	}
	if count, ended := q.Ended(time.Now()); ended {
		n.Log.Info("conflict over: no other program undoes the agent's repairs any more", "part", kind, "repairs", count)
	}
	if err != nil || moving {
		return err
	}
	return q.Err()
}
