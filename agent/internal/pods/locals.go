package pods

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	resolver "github.com/neardns/neardns/pkg/sandbox"
	"github.com/neardns/neardns/pkg/steer"
)

// Locals returns the local addresses that pods name and the configuration does not, sorted. The switch must go on sending queries for
// them to kube-dns: a pod's resolv.conf outlives the configuration that wrote it. An address that a redirect uses by now can go one way
// only, and is not among them.
func (p *Pods) Locals(configured []steer.Local, redirects []steer.Redirect) []steer.Local {
	files, _ := p.read()
	taken := map[netip.Addr]bool{}
	for _, l := range configured {
		taken[l.Address] = true
	}
	for _, r := range redirects {
		taken[r.Steering], taken[r.ClusterDNS] = true, true
	}
	var out []steer.Local
	for _, f := range files {
		for _, l := range f.Locals() {
			if !taken[l.Address] {
				taken[l.Address] = true
				out = append(out, l)
			}
		}
	}
	slices.SortFunc(out, func(a, b steer.Local) int {
		return cmp.Or(a.Address.Compare(b.Address), a.ClusterDNS.Compare(b.ClusterDNS))
	})
	return out
}

// RestoreNameservers puts the cluster DNS address back into each resolv.conf in which the plugin or the agent replaced it by a local
// address. It runs before the switch goes, since no server answers there afterwards. root is where the host's root is mounted, "" for the
// host itself. A pod that names a local address by itself is an error, too: its containers have that address until they end.
func (p *Pods) RestoreNameservers(root string) error {
	var errs []error
	for _, f := range p.List() {
		if len(f.Locals()) == 0 || p.surelyGone([]podfile.File{f}) == nil {
			continue
		}
		if f.DNS == nil || f.DNS.Overlay == nil || len(f.DNS.Overlay.Instead) == 0 {
			errs = append(errs, fmt.Errorf("%s names %s in its own DNS settings: recreate the pod without that address",
				Name(f), f.Locals()[0].Address))
			continue
		}
		if err := restore(root, *f.DNS); err != nil {
			errs = append(errs, fmt.Errorf("%s: restore the nameserver in its resolv.conf: %w", Name(f), err))
		}
	}
	return errors.Join(errs...)
}

// restore changes one pod's resolv.conf.
func restore(root string, d podfile.DNS) error {
	if d.Path == "" {
		return nil // the pod's resolv.conf was not changed
	}
	file, err := resolver.Read(root + d.Path)
	if errors.Is(err, fs.ErrNotExist) { // /var/run is a link to /run on a node, and leads nowhere below a mount
		file, err = resolver.Read(root + strings.Replace(d.Path, "/var/run/", "/run/", 1))
	}
	if err != nil {
		return err
	}
	text := resolvconf.Parse(file.Text)
	now, _ := text.Settings() // a nameserver line without an address is ignored
	for clusterDNS, local := range d.Overlay.Instead {
		if at := slices.Index(now.Nameservers, local); at >= 0 {
			now.Nameservers[at] = clusterDNS
		}
	}
	back, err := text.With(now)
	if err != nil {
		return err
	}
	return file.Write(back.Bytes())
}
