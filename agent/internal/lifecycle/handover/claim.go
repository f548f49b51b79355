package handover

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/nodestate"
)

// Claim is an agent's description of itself, which it sends to the other agent in a handover.
type Claim struct {
	Instance string    `json:"instance"`
	PID      int       `json:"pid"`           // in the agent's own PID namespace
	Pod      string    `json:"pod,omitempty"` // name of the pod, because agents in different pods may have the same PID
	Version  string    `json:"version"`
	Since    time.Time `json:"since"` // when the agent started
	// Born is the time when the agent's pod started (the agent itself if it has no pod), in nanoseconds since boot (CLOCK_BOOTTIME, which
	// no clock step moves). Only the agent with the later Born may take over, unless TakeOver is set.
	Born int64 `json:"born"`
	// TakeOver means that the operator set --take-over. The agent may then take over even if it is older.
	TakeOver bool `json:"told,omitempty"`
}

func (c Claim) String() string {
	pod := ""
	if c.Pod != "" {
		pod = ", pod " + c.Pod
	}
	return fmt.Sprintf("process %d (version %s, since %s%s)", c.PID, c.Version, c.Since.UTC().Format(time.RFC3339), pod)
}

// CheckTakeover returns the reason why c may not take over from the active agent; nil if it may.
func (c Claim) CheckTakeover(active Claim) error {
	switch {
	case c.Instance == active.Instance:
		return errors.New("it is the same agent")
	case c.TakeOver, c.Born > active.Born:
		return nil
	}
	return fmt.Errorf("the active agent's pod is not older: it started %s later", time.Duration(active.Born-c.Born).Round(time.Millisecond))
}

func (c Claim) check() error {
	switch {
	case c.Instance == "" || len(c.Instance) > 64:
		return errors.New("instance: empty or longer than 64 bytes")
	case len(c.Version) > 256 || len(c.Pod) > 256:
		return errors.New("version, pod: longer than 256 bytes")
	case c.PID <= 0:
		return fmt.Errorf("pid: %d is none", c.PID)
	case c.Born <= 0:
		return fmt.Errorf("born: %d is no time", c.Born)
	}
	return nil
}

// Birth returns when the pod that owns the folder dir started, in nanoseconds since boot. The first call writes the current time into the
// folder, so that a container that restarts in an old pod does not count as newer. After a reboot the time is written again. If dir is
// empty, or on an error, Birth returns the current time (0 if the clock cannot be read).
func Birth(dir string) (int64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, fmt.Errorf("read clock: %w", err)
	}
	if dir == "" {
		return now.Nano(), nil
	}
	file, own := nodestate.BirthFile(dir), nodestate.Birth{Boot: nodestate.ThisBoot(), Born: now.Nano()}
	first, _, err := file.Read()
	var unreadable *fs.PathError
	switch {
	case own.Boot == "":
		return own.Born, errors.New("the kernel gives no ID of this boot")
	case errors.As(err, &unreadable): // it may name an earlier time
		return own.Born, err
	case first.Boot == own.Boot && first.Born > 0 && first.Born <= own.Born: // a file with malformed contents is replaced
		return first.Born, nil
	}
	return own.Born, file.Write(own)
}
