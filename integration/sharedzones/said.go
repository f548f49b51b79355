package main

import (
	"fmt"
	"strings"
)

// said is what the cluster publishes, for the judge.
func (c *cluster) said() (out []said) {
	for _, r := range c.records {
		out = append(out, said{c.id, c.stand.host(r.Label), r.Balanced, strings.ToLower(r.Geo), r.Addresses})
	}
	return out
}

// text is the cluster's file: the same objects as in a cluster.
func (c *cluster) text() string {
	zone := strings.TrimSuffix(c.stand.server.Zone(), ".")
	removal := "Report"
	if c.options.Removal {
		removal = "Remove"
	}
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: v1
kind: Secret
metadata: {name: key, namespace: neardns-zones}
stringData: {name: %q, algorithm: hmac-sha256, secret: %q}
---
apiVersion: neardns.io/v1alpha1
kind: DNSZone
metadata: {name: shared}
spec:
  zone: %s
  primary: %s
  tsig: {secretName: key}
  heartbeatSeconds: %d
  removal: %s
  messagesPerMinute: 60000
  publishers:
  - {namespaces: ["*"], hosts: [%[3]q, "*.%[3]s"], targets: [0.0.0.0/0, "::/0"]}
`, c.options.Key.Name, c.options.Key.Secret, zone, c.relay.addr(), c.options.Heartbeat, removal)
	for _, r := range c.records {
		ttl := r.TTL
		if ttl == 0 {
			ttl = 60
		}
		fmt.Fprintf(&b, "---\napiVersion: neardns.io/v1alpha1\nkind: DNSRecord\nmetadata: {name: %q, namespace: default}\nspec:\n  host: %q\n  ttl: %d\n  addresses: [",
			strings.ReplaceAll(r.Label, "*", "any"), r.Label+"."+zone, ttl)
		for i, a := range r.Addresses {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%q", a)
		}
		b.WriteString("]\n")
		if r.Balanced {
			fmt.Fprintf(&b, "  strategy: LoadBalanced\n  weight: %d\n", r.Weight)
		}
		if r.Geo != "" {
			fmt.Fprintf(&b, "  geo: %q\n  defaultGeo: %v\n", r.Geo, r.DefaultGeo)
		}
	}
	return b.String()
}
