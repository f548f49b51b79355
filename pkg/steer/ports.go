package steer

// Ports of the control datagrams; they never leave the host's output hook.
const (
	PortRenewUDP    = 17
	PortRenewTCP    = 6
	PortWithdrawUDP = 117
	PortWithdrawTCP = 106
)

// Ports of the control packets that carry a client as their source, protocol and destination.
const (
	PortHold    = 201 // and the next ones, by step
	PortRelease = 301
)
