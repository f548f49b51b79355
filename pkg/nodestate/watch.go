package nodestate

import (
	"path/filepath"
	"time"
)

// watchName is the file in stateDir.
const watchName = "watch.json"

// Watch is what the watch over the network's configuration (`neardns-install watch`) saw when it last looked. The watch writes
// it, the agent shows it; nobody decides anything by it.
type Watch struct {
	Since    time.Time `json:"since"`             // the watch began
	Looked   time.Time `json:"looked"`            // it last looked
	Network  string    `json:"network,omitempty"` // the one that the runtime takes, by name
	OK       bool      `json:"ok"`                // plugin and entry were there, or have been put there
	Fault    string    `json:"fault,omitempty"`   // why not
	Repairs  int       `json:"repairs"`           // since it began, an unchanged entry had to be put back
	Restored int64     `json:"restored"`          // since it began, the host's rules were gone with no agent to mend them, and put back
	Fighting bool      `json:"fighting"`          // another program keeps taking it out, so the watch rests between its tries
}

func watchRecord() record[Watch] { return record[Watch]{what: "what the watch saw"} }

// WatchPath names the watch's file.
func WatchPath(stateDir string) string { return filepath.Join(stateDir, watchName) }

// ReadWatch reads what the watch saw. ok is false where no watch has written anything.
func ReadWatch(stateDir string) (w Watch, ok bool, err error) {
	return watchRecord().read(WatchPath(stateDir))
}

// WriteWatch stores what the watch saw. Like all of stateDir, it need not survive a reboot.
func WriteWatch(stateDir string, w Watch) error {
	return watchRecord().write(WatchPath(stateDir), w)
}

// RemoveWatch removes the file. It succeeds when there is none.
func RemoveWatch(stateDir string) error {
	return watchRecord().remove(WatchPath(stateDir))
}
