package pods

import (
	"errors"
	"fmt"
	"slices"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/podfile"
)

// Veth returns the host's end of the veth by which a pod's queries leave it. It tries the pod's routes to steered cluster DNS addresses
// first, then to the others. It returns an error if the pod has no such veth or is gone.
func (p *Pods) Veth(f podfile.File) (index int, name string, err error) {
	redirects := slices.Concat(f.In(podfile.Steered), f.In(podfile.LeftAlone), f.In(podfile.Pending))
	if len(redirects) == 0 {
		return 0, "", errors.New("its state file has no cluster DNS address")
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
	for _, r := range redirects { // the pod may have no route for one of the families
		if index, name, err = hostnet.Veth(int(ns.Fd()), int(host.Fd()), r.ClusterDNS); err == nil {
			break
		}
	}
	return index, name, err
}
