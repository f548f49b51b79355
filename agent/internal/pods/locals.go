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

// Locals returns, sorted, the local addresses that pods still use as nameservers although the configuration does not have them. A pod's
// resolv.conf outlives the configuration that wrote it, so the switch must go on sending queries for these addresses to kube-dns. An
// address that one of redirects uses is not returned, because the switch cannot send its queries two ways.
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
// address. It runs before the switch is removed, because no server answers at local addresses afterwards. root is the path at which the
// host's root is mounted, "" on the host itself. Each error names a pod that still uses a local address: its file could not be changed,
// or the pod's own DNS settings name the address.
func (p *Pods) RestoreNameservers(root string) error {
	var errs []error
	for _, f := range p.List() {
		if len(f.Locals()) == 0 || surelyGone(f) {
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

// restore puts the cluster DNS addresses back into one pod's resolv.conf.
func restore(root string, d podfile.DNS) error {
	if d.Path == "" {
		return nil // the pod's resolv.conf was not changed
	}
	file, err := resolver.Read(root + d.Path)
	if errors.Is(err, fs.ErrNotExist) { // /var/run is a link to /run on a node; below a mount it leads nowhere
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
