//go:build timing

package steering

import "time"

// iptablesLifetime is a lease's in iptables, which counts whole seconds.
const iptablesLifetime = time.Second

func defaultLease() string { return "" }
