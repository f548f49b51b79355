package iptables

import (
	"context"
	"time"
)

// LockWait is how long a run waits for iptables' lock.
const LockWait = lockWait * time.Second

// Within sets a shorter time limit for the runs of a back end's programs.
func (b *Iptables) Within(most time.Duration) { b.maxRun = most }

// Changes is Watch without its regular ticks.
func (b *Iptables) Changes(ctx context.Context) (<-chan struct{}, error) { return b.changes(ctx) }
