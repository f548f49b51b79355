package nodestate

import (
	"path/filepath"
	"time"
)

// Hosts is the state of the role `hosts` (`neardns-agent hosts`) after its last check of the hosts file. The role writes it; `status` and
// `doctor` show it. `cleanup` removes no lines while the record shows that the role runs.
type Hosts struct {
	Since    time.Time      `json:"since"`           // when the role started
	Looked   time.Time      `json:"looked"`          // when it last checked the file
	Ended    bool           `json:"ended,omitempty"` // the role ended on request; its lines stay in the hosts file
	Fault    string         `json:"fault,omitempty"` // why the last check failed; the file may lack the lines
	Fighting bool           `json:"fighting"`        // another program keeps changing the lines, so the role restores them less often
	Repairs  int            `json:"repairs"`         // how often the role has restored lines since it started
	Services []HostsService `json:"services"`
}

// HostsService is one of the Services that the role is configured for.
type HostsService struct {
	Name      string    `json:"name"`              // namespace/name
	Addresses []string  `json:"addresses"`         // addresses that the role last wrote to the hosts file; empty: no line for the Service
	Answered  time.Time `json:"answered,omitzero"` // when kube-dns last answered the role for this Service, even with NXDOMAIN; zero: never
	Failed    string    `json:"failed,omitempty"`  // why queries for the Service fail now
	Left      []string  `json:"left,omitempty"`    // the Service's names that are left out, because other programs' lines have them
}

// HostsFile returns the record of the role `hosts` in a state folder. It need not survive a reboot.
func HostsFile(stateDir string) Record[Hosts] {
	return Record[Hosts]{Path: filepath.Join(stateDir, "hosts.json"), what: "what the role hosts did"}
}
