package nodestate

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// proofName is the file in persistDir. Its presence is what operators look for.
const proofName = "fallback-proven"

// Proof names the cluster DNS addresses whose fallback was seen to work on this node: without it a pod is never steered,
// since it could be steered into nothing. The agent writes it and the plugin reads it. The file outlives a reboot, the proof does not.
type Proof struct {
	ClusterDNS []netip.Addr `json:"clusterDNS"`
	Time       time.Time    `json:"time"`
	Backend    string       `json:"backend,omitempty"` // by whose rules it was proven; "" is nftables
	Boot       string       `json:"boot,omitempty"`    // the boot in which it was proven; "" if the kernel does not name boots
}

// bootID is the kernel's name of this boot, see random(4).
const bootID = "/proc/sys/kernel/random/boot_id"

// ThisBoot names this boot; "" where the kernel does not tell.
func ThisBoot() string {
	text, err := os.ReadFile(bootID)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// Outlived tells whether a proof is of an earlier boot, whose kube-proxy may be another.
func (p Proof) Outlived() bool { return p.Boot != "" && p.Boot != ThisBoot() }

// Covers tells whether the fallback to addr is proven.
func (p Proof) Covers(addr netip.Addr) bool { return slices.Contains(p.ClusterDNS, addr) }

func proofRecord() record[Proof] { return record[Proof]{what: "proof of the fallback", durable: true} }

// ProofPath names the proof file.
func ProofPath(persistDir string) string { return filepath.Join(persistDir, proofName) }

// ReadProof reads the proof. No proof is the zero value and no error; an unreadable one is an error and proves nothing.
func ReadProof(persistDir string) (Proof, error) {
	v, _, err := proofRecord().read(ProofPath(persistDir))
	return v, err
}

// WriteProof stores the proof so that it survives a power cut.
func WriteProof(persistDir string, p Proof) error {
	return proofRecord().write(ProofPath(persistDir), p)
}

// RemoveProof withdraws the proof. It succeeds when there is none.
func RemoveProof(persistDir string) error {
	return proofRecord().remove(ProofPath(persistDir))
}
