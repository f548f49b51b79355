// Package environment owns black-box tests of what happens to a node's state while the agent runs: links, addresses, rules,
// firewalls, ports, disks and events that other programs change, fill or lose. Each is repaired or named, pods querying
// meanwhile; and `neardns-agent doctor` sees each while it lasts.
//
// It must never touch the machine's own namespaces, and imports no product code but pkg.
//
// Failure policy: times that the products promise are asserted with what a busy machine may add.
//
// Covered elsewhere: floods and loads (integration/faults), a second agent, flushes under kube-proxy's syncs and firewalls
// that reject (integration/steering), lost netlink events in the readers themselves (pkg/hostnet).
// Clocks: no network namespace has a CLOCK_REALTIME of its own, and a time namespace only shifts the monotonic clock once,
// before a process starts. Leases and deadlines use the monotonic clock, which does not jump; those who use it are tested
// on a virtual one (testing/synctest in agent/internal/node).
package environment
