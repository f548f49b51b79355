// Package resourceerr recognises errors which mean that this machine or process is short of a resource. They are not the other side's
// fault, and pass by themselves.
package resourceerr

import (
	"errors"
	"syscall"
)

// Is reports whether err wraps a shortage of descriptors or memory (accept(2), socket(2)).
func Is(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// ForQuery reports whether err wraps a shortage of something that sending a query needs. That includes source ports: without one, Linux
// returns EADDRNOTAVAIL for TCP and EAGAIN for UDP.
func ForQuery(err error) bool {
	return Is(err) || errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAGAIN)
}
