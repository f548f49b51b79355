package node

import (
	"time"

	"github.com/neardns/neardns/agent/internal/node/backoff"
)

// mending has mend look at one kind of thing and put it right, unless it was put right too often lately. What a reload asks
// for is always done and no repair.
func (n *Node) mending(kind string, mend func() (mended string, err error)) error {
	q := n.flapping[kind]
	if q == nil {
		q = &backoff.Flapping{}
		n.flapping[kind] = q
	}
	moving := n.isMoving()
	if !moving && !q.Due(time.Now()) {
		return q.Err()
	}
	mended, err := mend()
	n.Recorder.Kept(kind, err)
	if mended != "" && !moving {
		q.Repaired(time.Now())
		if _, lasts := q.Lasts(); lasts {
			time.AfterFunc(time.Until(q.Until()), n.kick.Send) // the next look
		}
	}
	if mended != "" {
		count, lasts := q.Lasts()
		n.repaired(kind, mended, lasts && count > backoff.Limit)
	}
	if count, ended := q.Ended(time.Now()); ended {
		n.Log.Info("nothing undoes repairs any more", "part", kind, "repairs", count)
	}
	if err != nil || moving {
		return err
	}
	return q.Err()
}

func (n *Node) isMoving() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.moving
}
