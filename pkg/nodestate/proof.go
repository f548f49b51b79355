package nodestate

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// proofName is the file in persistDir. Operators check whether it exists.
const proofName = "fallback-proven"

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

func proofRecord() record[Proof] { return record[Proof]{what: "proof of the fallback", durable: true} }

// ProofPath names the proof file.
func ProofPath(persistDir string) string { return filepath.Join(persistDir, proofName) }

// ReadProof reads the proof. A missing file is the zero value and no error; an unreadable one is an error, and no fallback is verified.
func ReadProof(persistDir string) (Proof, error) {
	v, _, err := proofRecord().read(ProofPath(persistDir))
	return v, err
}

// WriteProof stores the proof so that it survives a power cut.
func WriteProof(persistDir string, p Proof) error {
	return proofRecord().write(ProofPath(persistDir), p)
}

// RemoveProof removes the file. It succeeds if there is none.
func RemoveProof(persistDir string) error {
	return proofRecord().remove(ProofPath(persistDir))
}
