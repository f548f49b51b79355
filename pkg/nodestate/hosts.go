package nodestate

import (
	"path/filepath"
	"time"
)

// hostsName is the file in stateDir.
const hostsName = "hosts.json"

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

func hostsRecord() record[Hosts] { return record[Hosts]{what: "what the role hosts did"} }

// HostsPath names the role's file.
func HostsPath(stateDir string) string { return filepath.Join(stateDir, hostsName) }

// ReadHosts reads what the role did. ok is false where no such role has written anything.
func ReadHosts(stateDir string) (h Hosts, ok bool, err error) {
	return hostsRecord().read(HostsPath(stateDir))
}

// WriteHosts stores what the role did. Like all of stateDir, it need not survive a reboot.
func WriteHosts(stateDir string, h Hosts) error { return hostsRecord().write(HostsPath(stateDir), h) }

// RemoveHosts removes the file. It succeeds when there is none.
func RemoveHosts(stateDir string) error { return hostsRecord().remove(HostsPath(stateDir)) }
