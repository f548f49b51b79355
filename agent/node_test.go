package main

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// Without CAP_NET_ADMIN, `node` ends with what to do, before it changes anything.
func TestCapabilityIsMissing(t *testing.T) {
	var err error
	testutil.WithoutCapabilities(t, func() { err = checkCapability() })
	if err == nil || !strings.HasPrefix(err.Error(), "operation not permitted: run it as root with CAP_NET_ADMIN") {
		t.Errorf("got %v", err)
	}
}
