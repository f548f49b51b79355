module github.com/neardns/neardns/integration/cluster

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/miekg/dns v1.1.73
	github.com/neardns/neardns v0.0.0
	github.com/vishvananda/netlink v1.3.1
	github.com/vishvananda/netns v0.0.5
	golang.org/x/sys v0.49.0
	sigs.k8s.io/yaml v1.6.0
)

require (
	go.uber.org/goleak v1.3.0 // indirect
	go.yaml.in/yaml/v2 v2.4.4 // indirect
	golang.org/x/net v0.60.0 // indirect
)

replace github.com/neardns/neardns => ../..
