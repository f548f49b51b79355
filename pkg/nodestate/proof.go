package nodestate

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Proof has the cluster DNS addresses whose fallback is verified on this node. Without it no pod is steered, because its queries could go
// nowhere if the agent hangs. The agent writes it and the plugin reads it. The file outlives a reboot, but it is only valid in its own
// boot.
type Proof struct {
	ClusterDNS []netip.Addr `json:"clusterDNS"`
	Time       time.Time    `json:"time"`
	Backend    string       `json:"backend,omitempty"` // the back end whose rules were verified; "" is nftables
	Boot       string       `json:"boot,omitempty"`    // the boot in which it was verified; "" if the kernel has no boot ID
}

// bootID has the kernel's ID of this boot (random(4)).
const bootID = "/proc/sys/kernel/random/boot_id"

// ThisBoot returns the ID of this boot; "" if the kernel has none.
func ThisBoot() string {
	text, err := os.ReadFile(bootID)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// Outlived reports whether a proof is from an earlier boot, in which kube-proxy may have been another.
func (p Proof) Outlived() bool { return p.Boot != "" && p.Boot != ThisBoot() }

// Covers reports whether the fallback to addr is verified.
func (p Proof) Covers(addr netip.Addr) bool { return slices.Contains(p.ClusterDNS, addr) }

// ProofFile is the record in the folder that survives a reboot. Operators check whether it exists. A missing file is the zero value. If the
// file cannot be read, no fallback is verified.
func ProofFile(persistDir string) Record[Proof] {
	return Record[Proof]{Path: filepath.Join(persistDir, "fallback-proven"), what: "proof of the fallback", durable: true}
}
