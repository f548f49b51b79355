package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/internal/dns/forward/upstream"
	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
)

const askTimeout = 2 * time.Second

// inquiry is one server and what it is asked.
type inquiry struct {
	server nameserver.Address
	shown  string
	role   string
	name   string // whose address is asked for; "." asks for the root's servers
	tcp    bool   // as the agent asks
}

// ask asks every upstream, and every cluster DNS address as the host's own processes do, a real question, all at once.
func (l *Looker) ask(ctx context.Context, want plan.Plan, up upstream.Upstreams) (upstreams, fallbacks []Answer) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	cluster := "kubernetes.default.svc." + l.Conf.ClusterDomain + "."
	var list []inquiry
	for _, s := range up.Cluster {
		list = append(list, inquiry{s, s.String(), "cluster", cluster, true})
	}
	for _, s := range up.External {
		list = append(list, inquiry{s, s.String(), "external", ".", false})
	}
	for domain, servers := range up.Stub {
		for _, s := range servers {
			list = append(list, inquiry{s, s.String(), "stub domain " + domain, domain + ".", false})
		}
	}
	ours := len(list)
	for _, r := range want.Redirects {
		list = append(list, inquiry{nameserver.At(r.ClusterDNS), r.ClusterDNS.String(), "fallback", cluster, false})
	}
	answers := make([]Answer, len(list))
	var wg sync.WaitGroup
	for i, q := range list {
		wg.Go(func() {
			begun := time.Now()
			err := q.ask(ctx)
			own := q.server.Addr.Port() == 53 && slices.Contains(want.Addresses(), q.server.Addr.Addr())
			answers[i] = Answer{Server: q.shown, Role: q.role, Took: time.Since(begun), Err: text(err), Own: own}
		})
	}
	wg.Wait()
	slices.SortStableFunc(answers[:ours], func(a, b Answer) int { return strings.Compare(a.Role, b.Role) })
	return answers[:ours], answers[ours:]
}

// Answers asks a server for the addresses of a name, as this host's own processes do: nil if it answers, also that there are none.
func Answers(ctx context.Context, server netip.Addr, name string) error {
	return inquiry{server: nameserver.At(server), name: name}.ask(ctx)
}

// ask asks through the standard library's resolver, whose messages go to the one server. That a name is not there is an
// answer. Of a server that takes TLS only the connection is tried.
func (q inquiry) ask(ctx context.Context) error {
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		if q.tcp || q.server.TLS {
			network = "tcp"
		}
		var d net.Dialer
		return d.DialContext(ctx, network, q.server.Addr.String())
	}
	if q.server.TLS {
		conn, err := dial(ctx, "tcp", "")
		if err != nil {
			return err
		}
		return conn.Close()
	}
	resolver := net.Resolver{PreferGo: true, Dial: dial}
	var err error
	if q.name == "." {
		_, err = resolver.LookupNS(ctx, q.name)
	} else {
		_, err = resolver.LookupNetIP(ctx, "ip", q.name)
	}
	var dnsErr *net.DNSError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &dnsErr) && dnsErr.IsNotFound:
		return nil
	case ctx.Err() != nil || errors.As(err, &dnsErr) && dnsErr.IsTimeout:
		return fmt.Errorf("no answer within %v", askTimeout)
	case errors.As(err, &dnsErr):
		return errors.New(dnsErr.Err) // the rest of its text names the host's own resolver, who was not asked
	}
	return err
}

// resolvConf reads the files that name upstreams.
func (l *Looker) resolvConf(up upstream.Upstreams) []ResolvConf {
	var paths []string
	if up.By == upstream.ByNode {
		paths = append(paths, l.Conf.Upstreams.NodeFile)
	}
	for _, e := range l.Conf.Upstreams.External {
		if e.Path != "" {
			paths = append(paths, e.Path)
		}
	}
	var out []ResolvConf
	for _, path := range paths {
		r := ResolvConf{Path: path}
		data, err := l.ReadFile(path)
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

// network looks at the runtime's network: containerd and CRI-O take the first file of the folder, by name.
func (l *Looker) network(clusterDNS []netip.Addr) Network {
	n := Network{Folder: l.CNIConf, Plugin: filepath.Join(l.CNIBin, conflist.Type)}
	files, err := os.ReadDir(l.CNIConf) // sorted
	if err != nil {
		n.Err = err.Error() // also where it is only not mounted here
		return n
	}
	for _, f := range files {
		if !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(f.Name())) {
			continue
		}
		path := filepath.Join(l.CNIConf, f.Name())
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
	case errors.Is(err, fs.ErrNotExist) && !exists(l.CNIBin): // not mounted here
	case err != nil:
		n.PluginErr = err.Error()
	case info.Mode()&0o111 == 0:
		n.PluginErr = "it is not executable"
	}
	return n
}

// watch reads what the watch over the network said. A file that cannot be read is a fault of its own.
func (l *Looker) watch() Watch {
	w, ok, err := nodestate.ReadWatch(l.Conf.StateDir)
	if err != nil {
		return Watch{Present: true, Fault: err.Error()}
	}
	return Watch{Present: ok, Age: time.Since(w.Looked), Network: w.Network, Fault: w.Fault, Fighting: w.Fighting, Repairs: w.Repairs}
}

// missingRedirects lists the cluster DNS addresses that the entry in a list does not name.
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
			if _ = json.Unmarshal(raw, &r); r.ClusterDNS.IsValid() && p.Type == conflist.Type { // what it cannot read names none
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
