package nodestate

import (
	"path/filepath"
	"time"
)

// watchName is the file in stateDir.
const watchName = "watch.json"

// Watch is the last result of `neardns-install watch`, which watches the network's configuration. The watch writes it and the agent shows
// it; no program decides by it.
type Watch struct {
	Since    time.Time `json:"since"`             // the watch began
	Looked   time.Time `json:"looked"`            // it last looked
	Network  string    `json:"network,omitempty"` // the name of the network that the runtime uses
	OK       bool      `json:"ok"`                // plugin and entry were there, or have been restored
	Fault    string    `json:"fault,omitempty"`   // why not
	Repairs  int       `json:"repairs"`           // how often an unchanged entry was restored since it began
	Restored int64     `json:"restored"`          // how often it restored the host's rules because no agent did
	Fighting bool      `json:"fighting"`          // another program keeps removing the entry, so repairs are less frequent
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
