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
	"time"
)

// proofName is the file in persistDir. Its presence is what operators look for.
const proofName = "fallback-proven"

// Proof names the cluster DNS addresses whose fallback was seen to work on this node: without it a pod is never steered,
// since it could be steered into nothing. The agent writes it, the plugin reads it, and it outlives a reboot.
type Proof struct {
	ClusterDNS []netip.Addr `json:"clusterDNS"`
	Time       time.Time    `json:"time"`
	Backend    string       `json:"backend,omitempty"` // by whose rules it was proven; "" is nftables
}

// Covers tells whether the fallback to addr is proven.
func (p Proof) Covers(addr netip.Addr) bool { return slices.Contains(p.ClusterDNS, addr) }

// ProofPath names the proof file.
func ProofPath(persistDir string) string { return filepath.Join(persistDir, proofName) }

// ReadProof reads the proof. No proof is the zero value and no error; an unreadable one is an error and proves nothing.
func ReadProof(persistDir string) (Proof, error) {
	path := ProofPath(persistDir)
	data, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Proof{}, nil
	}
	if err != nil {
		return Proof{}, fmt.Errorf("read proof of the fallback: %w", err)
	}
	var p Proof
	if err := json.Unmarshal(data, &p); err != nil {
		return Proof{}, fmt.Errorf("proof of the fallback %s: %w", path, err)
	}
	return p, nil
}

// WriteProof stores the proof so that it survives a power cut.
func WriteProof(persistDir string, p Proof) error {
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode proof of the fallback: %w", err)
	}
	if err := writeAtomic(ProofPath(persistDir), append(data, '\n'), 0o644, true); err != nil {
		return fmt.Errorf("write proof of the fallback: %w", err)
	}
	return nil
}

// RemoveProof withdraws the proof. It succeeds when there is none.
func RemoveProof(persistDir string) error {
	if err := os.Remove(ProofPath(persistDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove proof of the fallback: %w", err)
	}
	return nil
}
