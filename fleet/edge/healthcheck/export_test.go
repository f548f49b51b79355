package healthcheck

import (
	"context"
	"net/netip"
)

// Permit is Check.permit.
func Permit(c Check, ranges []netip.Prefix) error { return c.permit(ranges) }

// Probe makes one probe.
func Probe(ctx context.Context, c Check, o Options) error { return probe(ctx, c, o.Roots, o.Dial) }
