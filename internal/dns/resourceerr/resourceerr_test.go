package resourceerr

import (
	"context"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
)

func TestIs(t *testing.T) {
	for _, tc := range []struct {
		err       error
		is, toAsk bool
	}{
		{syscall.EMFILE, true, true}, {syscall.ENFILE, true, true}, {syscall.ENOBUFS, true, true}, {fmt.Errorf("x: %w", syscall.ENOMEM), true, true},
		{&net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}, true, true},
		{fmt.Errorf("x: %w", syscall.EADDRNOTAVAIL), false, true}, {&net.OpError{Op: "dial", Err: syscall.EAGAIN}, false, true},
		{syscall.EPERM, false, false}, {syscall.EINVAL, false, false}, {syscall.ECONNREFUSED, false, false}, {net.ErrClosed, false, false},
		{context.DeadlineExceeded, false, false}, {os.ErrDeadlineExceeded, false, false}, {nil, false, false},
	} {
		if got := Is(tc.err); got != tc.is {
			t.Errorf("Is(%v) is %t", tc.err, got)
		}
		if got := ForQuery(tc.err); got != tc.toAsk {
			t.Errorf("ForQuery(%v) is %t", tc.err, got)
		}
	}
}
