package pods

import (
	"errors"
	"fmt"
	"slices"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/podfile"
)

// Veth finds the link in the host's netns by which a pod's queries leave the pod: those that are steered, and else those that are left
// alone or wait. It is an error if the pod has none, or is gone.
func (p *Pods) Veth(f podfile.File) (index int, name string, err error) {
	asked := slices.Concat(f.In(podfile.Steered), f.In(podfile.LeftAlone), f.In(podfile.Pending))
	if len(asked) == 0 {
		return 0, "", errors.New("it asks no cluster DNS address")
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
	for _, r := range asked { // it may have no way for one of the families
		if index, name, err = hostnet.Veth(int(ns.Fd()), int(host.Fd()), r.ClusterDNS); err == nil {
			break
		}
	}
	return index, name, err
}
