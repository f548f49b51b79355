package nodestate

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Proof records the cluster DNS addresses whose fallback is verified on this node. Queries to other addresses are not steered (except with
// `steer: always`), because they could get no answer if the agent hangs. The agent writes it and the plugin reads it. The file survives a
// reboot, but a record of an earlier boot does not count (Outlived).
type Proof struct {
	ClusterDNS []netip.Addr `json:"clusterDNS"`
	Time       time.Time    `json:"time"`
	Backend    string       `json:"backend,omitempty"` // back end (nftables or iptables) whose rules were verified; "" is nftables
	Boot       string       `json:"boot,omitempty"`    // ID of the boot in which it was verified; "" if the kernel has none
}

// bootID is the file with the kernel's ID of the current boot (random(4)).
const bootID = "/proc/sys/kernel/random/boot_id"

// ThisBoot returns the ID of the current boot; "" if the kernel has none.
func ThisBoot() string {
	text, err := os.ReadFile(bootID)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// Outlived reports whether the record is from an earlier boot. Another kube-proxy, on which the fallback depends, may run since then. A
// record without a boot ID never counts as outlived.
func (p Proof) Outlived() bool { return p.Boot != "" && p.Boot != ThisBoot() }

// Covers reports whether the record lists a cluster DNS address. It checks neither Backend nor Outlived.
func (p Proof) Covers(addr netip.Addr) bool { return slices.Contains(p.ClusterDNS, addr) }

// ProofFile returns the record of the fallback check in the folder that survives a reboot. Operators check whether the file exists. A
// missing file reads as the zero value. If the file cannot be read, no fallback counts as verified.
func ProofFile(persistDir string) Record[Proof] {
	return Record[Proof]{Path: filepath.Join(persistDir, "fallback-proven"), what: "proof of the fallback", durable: true}
}
