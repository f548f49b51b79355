module github.com/neardns/neardns/integration/cluster

go 1.26.0

require (
	github.com/neardns/neardns v0.0.0
	github.com/vishvananda/netlink v1.3.1
	github.com/vishvananda/netns v0.0.5
	golang.org/x/sys v0.49.0
)

replace github.com/neardns/neardns => ../..
