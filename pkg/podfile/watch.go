package podfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
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
	Fighting bool      `json:"fighting"`          // another program keeps taking it out, so the watch rests between its tries
}

// WatchPath names the watch's file.
func WatchPath(stateDir string) string { return filepath.Join(stateDir, watchName) }

// ReadWatch reads what the watch saw. ok is false where no watch has written anything.
func ReadWatch(stateDir string) (w Watch, ok bool, err error) {
	path := WatchPath(stateDir)
	data, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Watch{}, false, nil
	}
	if err != nil {
		return Watch{}, false, fmt.Errorf("read what the watch saw: %w", err)
	}
	if err := json.Unmarshal(data, &w); err != nil {
		return Watch{}, false, fmt.Errorf("what the watch saw %s: %w", path, err)
	}
	return w, true, nil
}

// WriteWatch stores what the watch saw. Like all of stateDir, it need not survive a reboot.
func WriteWatch(stateDir string, w Watch) error {
	data, err := json.Marshal(w)
	if err != nil {
		return fmt.Errorf("encode what the watch saw: %w", err)
	}
	if err := writeAtomic(WatchPath(stateDir), append(data, '\n'), 0o644, false); err != nil {
		return fmt.Errorf("write what the watch saw: %w", err)
	}
	return nil
}

// RemoveWatch removes the file. It succeeds when there is none.
func RemoveWatch(stateDir string) error {
	if err := os.Remove(WatchPath(stateDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove what the watch saw: %w", err)
	}
	return nil
}
