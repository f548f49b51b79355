//go:build !timing

package steering

import (
	"fmt"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// iptablesLifetime is a lease's in iptables, which counts whole seconds.
const iptablesLifetime = 4 * time.Second

// defaultLease has an agent's leases live as long as they may: by default one expires if a busy machine lets the agent wait for 650 ms, and
// an agent that lost several of them rests for up to a minute. The timing tier has the product's own default.
func defaultLease() string {
	return fmt.Sprintf("lease: {renew: %v, lifetime: %v}\n", min(200*time.Millisecond*testutil.Slowness(), time.Second), iptablesLifetime)
}
