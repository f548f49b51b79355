package pods

import (
	"errors"
	"fmt"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/podfile"
)

// Veth finds the link in the host's netns by which a steered pod's questions leave the pod. It is an error where the pod has none, or is
// gone.
func (p *Pods) Veth(f podfile.File) (index int, name string, err error) {
	steered := f.In(podfile.Steered)
	if len(steered) == 0 {
		return 0, "", errors.New("it is not steered")
	}
	host, _, err := podfile.OpenNetNS(p.hostNS)
	if err != nil {
		return 0, "", fmt.Errorf("open the host's netns: %w", err)
	}
	defer host.Close()
	ns, err := enter(f)
	if err != nil {
		return 0, "", err
	}
	defer ns.Close()
	return hostnet.Veth(int(ns.Fd()), int(host.Fd()), steered[0].ClusterDNS)
}
