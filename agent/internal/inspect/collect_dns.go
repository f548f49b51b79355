package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/internal/dns/forward/upstream"
	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
)

// queryServers sends every upstream, and every cluster DNS address as the host's own processes do, a real query, all at once.
func (in *Inspector) queryServers(ctx context.Context, want plan.Plan, up upstream.Upstreams) (upstreams, fallbacks []QueryResult) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	type target struct {
		server nameserver.Address
		role   string
		query  query
	}
	cluster := query{name: "kubernetes.default.svc." + in.Conf.ClusterDomain + ".", qtype: dns.TypeA}
	clusterTCP := cluster
	clusterTCP.tcp = true // as the agent does
	var list []target
	for _, s := range up.Cluster {
		list = append(list, target{s, "cluster", clusterTCP})
	}
	for _, s := range up.External {
		list = append(list, target{s, "external", query{name: ".", qtype: dns.TypeNS}})
	}
	for domain, servers := range up.Stub {
		for _, s := range servers {
			list = append(list, target{s, "stub domain " + domain, query{name: domain + ".", qtype: dns.TypeA}})
		}
	}
	ours := len(list)
	for _, r := range want.Redirects {
		list = append(list, target{nameserver.At(r.ClusterDNS), "fallback", cluster})
	}
	results := make([]QueryResult, len(list))
	var wg sync.WaitGroup
	for i, t := range list {
		wg.Go(func() {
			begun := time.Now()
			err := t.query.answers(ctx, t.server)
			own := t.server.Addr.Port() == 53 && slices.Contains(want.Addresses(), t.server.Addr.Addr())
			results[i] = QueryResult{Server: t.server.String(), Role: t.role, Took: time.Since(begun), Err: text(err), Own: own}
		})
	}
	wg.Wait()
	for i, r := range want.Redirects {
		results[ours+i].Server = r.ClusterDNS.String()
	}
	slices.SortStableFunc(results[:ours], func(a, b QueryResult) int { return strings.Compare(a.Role, b.Role) })
	return results[:ours], results[ours:]
}

// resolvConf reads the files with upstreams.
func (in *Inspector) resolvConf(up upstream.Upstreams) []ResolvConf {
	var paths []string
	if up.By == upstream.ByNode {
		paths = append(paths, in.Conf.Upstreams.NodeFile)
	}
	for _, e := range in.Conf.Upstreams.External {
		if e.Path != "" {
			paths = append(paths, e.Path)
		}
	}
	var out []ResolvConf
	for _, path := range paths {
		r := ResolvConf{Path: path}
		data, err := in.ReadFile(path)
		r.Err = text(err)
		for line := range strings.Lines(string(data)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" {
				if a, err := netip.ParseAddr(f[1]); err == nil {
					r.Servers = append(r.Servers, a)
				}
			}
		}
		if r.Err == "" && len(r.Servers) == 0 {
			r.Err = path + " names no server"
		}
		out = append(out, r)
	}
	return out
}

// network reads the runtime's network: containerd and CRI-O take the first file of the folder, by name.
func (in *Inspector) network(clusterDNS []netip.Addr) Network {
	n := Network{Folder: in.CNIConf, Plugin: filepath.Join(in.CNIBin, conflist.Type)}
	files, err := os.ReadDir(in.CNIConf) // sorted
	if err != nil {
		n.Err = err.Error() // also where it is only not mounted here
		return n
	}
	for _, f := range files {
		if !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(f.Name())) {
			continue
		}
		path := filepath.Join(in.CNIConf, f.Name())
		data, err := os.ReadFile(path)
		if err != nil {
			n.Err = err.Error()
			return n
		}
		list, err := conflist.Read(data)
		has := err == nil && list.Position() > 0
		switch {
		case n.Effective == "":
			n.Effective, n.Entry = path, has
			if has {
				n.Missing = missingRedirects(data, clusterDNS)
			}
		case has:
			n.Elsewhere = append(n.Elsewhere, path)
		}
	}
	switch info, err := os.Stat(n.Plugin); {
	case errors.Is(err, fs.ErrNotExist) && !exists(in.CNIBin): // not mounted here
	case err != nil:
		n.PluginErr = err.Error()
	case info.Mode()&0o111 == 0:
		n.PluginErr = "it is not executable"
	}
	return n
}

// watch reads the state of `neardns-install watch`. A file that cannot be read is a fault of its own.
func (in *Inspector) watch() Watch {
	w, ok, err := nodestate.ReadWatch(in.Conf.StateDir)
	if err != nil {
		return Watch{Present: true, Fault: err.Error()}
	}
	return Watch{Present: ok, Age: time.Since(w.Looked), Network: w.Network, Fault: w.Fault, Fighting: w.Fighting, Repairs: w.Repairs}
}

// missingRedirects lists the cluster DNS addresses that the entry in a network list does not have.
func missingRedirects(list []byte, clusterDNS []netip.Addr) []string {
	var doc struct {
		Plugins []struct {
			Type      string            `json:"type"`
			Redirects []json.RawMessage `json:"redirects"`
		} `json:"plugins"`
	}
	if json.Unmarshal(list, &doc) != nil {
		return nil // it was read as a list before
	}
	named := map[string]bool{}
	for _, p := range doc.Plugins {
		for _, raw := range p.Redirects {
			var r steer.Redirect
			if _ = json.Unmarshal(raw, &r); r.ClusterDNS.IsValid() && p.Type == conflist.Type { // an entry that cannot be read has none
				named[r.ClusterDNS.String()] = true
			}
		}
	}
	var out []string
	for _, a := range clusterDNS {
		if !named[a.String()] {
			out = append(out, a.String())
		}
	}
	return out
}
