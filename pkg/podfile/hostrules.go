package podfile

import (
	"net/netip"
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

func hostRulesRecord() record[HostRules] { return record[HostRules]{what: "what the host's rules are"} }

// HostRulesPath names the file.
func HostRulesPath(stateDir string) string { return filepath.Join(stateDir, hostRulesName) }

// ReadHostRules reads the file. None is the zero value and no error.
func ReadHostRules(stateDir string) (HostRules, error) {
	v, _, err := hostRulesRecord().read(HostRulesPath(stateDir))
	return v, err
}

// WriteHostRules stores the file.
func WriteHostRules(stateDir string, h HostRules) error {
	return hostRulesRecord().write(HostRulesPath(stateDir), h)
}

// RemoveHostRules removes the file. It succeeds when there is none.
func RemoveHostRules(stateDir string) error {
	return hostRulesRecord().remove(HostRulesPath(stateDir))
}
