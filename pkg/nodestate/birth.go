package nodestate

import "path/filepath"

// Birth records when a pod with an agent started.
type Birth struct {
	Boot string `json:"boot"` // ID of the boot; "" if the kernel has none
	Born int64  `json:"born"` // in nanoseconds since that boot (CLOCK_BOOTTIME)
}

// BirthFile returns the record in the folder of the agent's --pod-dir.
func BirthFile(podDir string) Record[Birth] {
	return Record[Birth]{Path: filepath.Join(podDir, "born"), what: "the pod's birth"}
}
