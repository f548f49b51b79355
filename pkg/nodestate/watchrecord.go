package nodestate

import (
	"path/filepath"
	"time"
)

// Watch is the result of the last pass of `neardns-install watch`, which keeps the plugin and its conflist entry on the node. The watch
// writes it and the agent shows it; no program decides by it.
type Watch struct {
	Since    time.Time `json:"since"`             // when the watch started
	Looked   time.Time `json:"looked"`            // when its last pass ended
	Network  string    `json:"network,omitempty"` // name of the CNI network that the runtime uses
	OK       bool      `json:"ok"`                // the plugin and its conflist entry are in place, or were restored
	Fault    string    `json:"fault,omitempty"`   // why OK is false
	Repairs  int       `json:"repairs"`           // how often the watch had to restore the same entry since it started
	Restored int64     `json:"restored"`          // how often the watch restored the host's rules because no agent did
	Fighting bool      `json:"fighting"`          // another program keeps removing the entry, so the watch restores it less often
}

// WatchFile returns the record of the watch in a state folder. Its Read returns ok false if no watch has written a result.
func WatchFile(stateDir string) Record[Watch] {
	return Record[Watch]{Path: filepath.Join(stateDir, "watch.json"), what: "what the watch saw"}
}
