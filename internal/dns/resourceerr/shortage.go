// Package resourceerr tells a want of what this machine or process has too little of from everything else that can go wrong: it is nobody
// else's fault, and it passes.
package resourceerr

import (
	"errors"
	"syscall"
)

// Is reports whether err is a want of descriptors or of memory (accept(2), socket(2)), at any depth.
func Is(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// ToAsk reports whether err is a want of what a question takes: also of a port to ask from, which is EADDRNOTAVAIL over TCP and EAGAIN over
// UDP (inet_autobind, Linux 2.6).
func ToAsk(err error) bool {
	return Is(err) || errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAGAIN)
}
