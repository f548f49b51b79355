package steer

// Destination ports of the datagrams that renew and withdraw leases. A rule in the host's output hook drops the datagrams.
const (
	PortRenewUDP    = 17
	PortRenewTCP    = 6
	PortWithdrawUDP = 117
	PortWithdrawTCP = 106
)

// Destination ports of the control packets for Hold and Release. Their source, protocol and destination address are the
// client's.
const (
	PortHold    = 201 // the first of HoldSteps ports, one for each step
	PortRelease = 301
)
