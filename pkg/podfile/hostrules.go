package podfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
)

// hostRulesName is the file in stateDir. Like the rules it tells of, it is gone after a reboot.
const hostRulesName = "host-rules"

// HostRules says in which back end the host's rules stand, and for which of our addresses. Whoever made them writes it, so that
// plugin and agent work by the same, and so that an ADD need not ask iptables.
type HostRules struct {
	Backend   string       `json:"backend"` // "" where nobody has made any
	Addresses []netip.Addr `json:"addresses"`
}

// Cover tells whether the rules know all of the addresses.
func (h HostRules) Cover(addrs ...netip.Addr) bool {
	return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !slices.Contains(h.Addresses, a) })
}

// HostRulesPath names the file.
func HostRulesPath(stateDir string) string { return filepath.Join(stateDir, hostRulesName) }

// ReadHostRules reads the file. None is the zero value and no error.
func ReadHostRules(stateDir string) (HostRules, error) {
	path := HostRulesPath(stateDir)
	data, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) {
		return HostRules{}, nil
	}
	if err != nil {
		return HostRules{}, fmt.Errorf("read what the host's rules are: %w", err)
	}
	var h HostRules
	if err := json.Unmarshal(data, &h); err != nil {
		return HostRules{}, fmt.Errorf("what the host's rules are, %s: %w", path, err)
	}
	return h, nil
}

// WriteHostRules stores the file.
func WriteHostRules(stateDir string, h HostRules) error {
	data, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("encode what the host's rules are: %w", err)
	}
	if err := writeAtomic(HostRulesPath(stateDir), append(data, '\n'), 0o644, false); err != nil {
		return fmt.Errorf("write what the host's rules are: %w", err)
	}
	return nil
}

// RemoveHostRules removes the file. It succeeds when there is none.
func RemoveHostRules(stateDir string) error {
	if err := os.Remove(HostRulesPath(stateDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove what the host's rules are: %w", err)
	}
	return nil
}
