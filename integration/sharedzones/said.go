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
	if c.gateway {
		b.WriteString("---\n" + policy + "---\n" + c.gatewayText())
		return b.String()
	}
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

// policy is the one DNSPolicy, the same in each cluster.
const policy = `apiVersion: neardns.io/v1alpha1
kind: DNSPolicy
metadata: {name: web, namespace: default}
spec: {targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: web}}
`

// gatewayText is a Gateway with a listener for each record's host, and the first record's addresses.
func (c *cluster) gatewayText() string {
	var listeners, addresses []string
	for i, r := range c.records {
		host := strings.TrimSuffix(c.stand.host(r.Label), ".")
		listeners = append(listeners, fmt.Sprintf("\n  - {name: listener%d, port: 443, protocol: HTTPS, hostname: %s}", i+1, host))
	}
	for _, a := range c.records[0].Addresses {
		addresses = append(addresses, fmt.Sprintf("{value: %q}", a))
	}
	return fmt.Sprintf(`apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: default}
spec:
  listeners:%s
status: {addresses: [%s]}
`, strings.Join(listeners, ""), strings.Join(addresses, ", "))
}
