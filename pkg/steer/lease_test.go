package steer_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestNoDescriptors(t *testing.T) {
	testutil.RequireRoot(t)   // kernel tier: the test is a process
	if !testutil.InChild(t) { // the limit is the whole process's
		return
	}
	r, _, err := os.Pipe() // the runtime has its own descriptor from here on
	testutil.Must(t, err)
	defer r.Close()
	lift := testutil.NoDescriptors(t)
	l, err := steer.OpenLease(steer.DrawSecret())
	lift()
	if l != nil || !errors.Is(err, unix.EMFILE) {
		t.Errorf("%v, %v", l, err)
	}
}
