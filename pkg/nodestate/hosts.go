package nodestate

import (
	"path/filepath"
	"time"
)

// Hosts is the result of the last pass of the role `hosts` (`neardns-agent hosts`). The role writes it, `status` and `doctor` show it;
// only `cleanup` goes by it, which does not begin while the role runs.
type Hosts struct {
	Since    time.Time      `json:"since"`           // the role began
	Looked   time.Time      `json:"looked"`          // it last looked
	Ended    bool           `json:"ended,omitempty"` // in order; the lines stay
	Fault    string         `json:"fault,omitempty"` // why the file may not have the lines
	Fighting bool           `json:"fighting"`        // another program keeps removing the lines, so repairs are less frequent
	Repairs  int            `json:"repairs"`         // how often lines were restored since the role began
	Services []HostsService `json:"services"`
}

// HostsService is one Service of the list.
type HostsService struct {
	Name      string    `json:"name"`              // namespace/name
	Addresses []string  `json:"addresses"`         // in the file; none: it has no line
	Answered  time.Time `json:"answered,omitzero"` // when its servers last answered, NXDOMAIN included; zero: not since the role began
	Failed    string    `json:"failed,omitempty"`  // why they do not answer now
	Left      []string  `json:"left,omitempty"`    // names that other programs' lines have
}

// HostsFile is the record in a state folder. Like all of stateDir, it need not survive a reboot.
func HostsFile(stateDir string) Record[Hosts] {
	return Record[Hosts]{Path: filepath.Join(stateDir, "hosts.json"), what: "what the role hosts did"}
}
