package nodestate

import (
	"path/filepath"
	"time"
)

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

// WatchFile is the record in a state folder. Read returns false if no watch has written anything.
func WatchFile(stateDir string) Record[Watch] {
	return Record[Watch]{Path: filepath.Join(stateDir, "watch.json"), what: "what the watch saw"}
}
