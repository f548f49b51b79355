package inspect

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
)

// network is what the doctor read of the runtime's CNI configuration.
type network struct {
	folder    string
	effective string   // path of the file that the runtime uses: the first one
	entry     bool     // effective has the plugin's entry
	elsewhere []string // other files with the plugin's entry
	missing   []string // cluster DNS addresses that the entry does not redirect
	plugin    string   // path of the plugin's binary
	pluginErr string   // why the binary cannot be run
	err       error
}

// Network is one file of the runtime's CNI configuration.
type Network struct {
	Path  string
	Entry bool // it has the plugin's entry
	text  []byte
}

// Networks reads the CNI configurations in a folder, sorted by name. containerd and CRI-O use the first one. It fails if the folder is not
// mounted here.
func Networks(folder string) (out []Network, err error) {
	files, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if f.IsDir() || !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(f.Name())) {
			continue
		}
		path := filepath.Join(folder, f.Name())
		text, err := atomicfile.Read(path, 1<<20) // refuses a pipe, which would block os.ReadFile
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since, or a link that leads nowhere
		} else if err != nil {
			return nil, err
		}
		list, err := conflist.Read(text)
		out = append(out, Network{path, err == nil && list.Position() > 0, text})
	}
	return out, nil
}

// network reads the runtime's CNI configuration, and whether the plugin's binary can be run.
func (in *Inspector) network(redirects []steer.Redirect) network {
	n := network{folder: in.CNIConf, plugin: filepath.Join(in.CNIBin, conflist.Type)}
	var files []Network
	if files, n.err = Networks(in.CNIConf); n.err != nil {
		return n
	}
	for i, f := range files {
		if i == 0 {
			n.effective, n.entry = f.Path, f.Entry
		} else if f.Entry {
			n.elsewhere = append(n.elsewhere, f.Path)
		}
	}
	if n.entry {
		n.missing = missingRedirects(files[0].text, redirects)
	}
	switch info, err := os.Stat(n.plugin); {
	case errors.Is(err, fs.ErrNotExist) && !exists(in.CNIBin): // the folder is not mounted here, so nothing is known
	case err != nil:
		n.pluginErr = err.Error()
	case info.Mode()&0o111 == 0:
		n.pluginErr = "it is not executable"
	}
	return n
}

// missingRedirects returns the cluster DNS addresses for which the plugin's entry has no redirect.
func missingRedirects(list []byte, redirects []steer.Redirect) (out []string) {
	var doc struct {
		Plugins []struct {
			Type      string           `json:"type"`
			Redirects []steer.Redirect `json:"redirects"`
		} `json:"plugins"`
	}
	_ = json.Unmarshal(list, &doc) // conflist.Read has parsed it before; a redirect that cannot be read counts as missing
	named := map[netip.Addr]bool{}
	for _, p := range doc.Plugins {
		for _, r := range p.Redirects {
			named[r.ClusterDNS] = named[r.ClusterDNS] || p.Type == conflist.Type
		}
	}
	for _, r := range redirects {
		if !named[r.ClusterDNS] {
			out = append(out, r.ClusterDNS.String())
		}
	}
	return out
}

// watch returns the last state of `neardns-install watch`, which keeps the plugin's entry in the CNI configuration; nil if it has left
// none. If the state cannot be read, the error is in Fault.
func (in *Inspector) watch() *nodestate.Watch {
	w, ok, err := nodestate.WatchFile(in.Conf.StateDir).Read()
	if err != nil {
		return &nodestate.Watch{Looked: time.Now(), Fault: err.Error()}
	} else if !ok {
		return nil
	}
	return &w
}

// maxWatchAge is the age of the watch's last state after which the watch counts as ended. By default, it writes a state every 30 s, and
// during a conflict at least every five minutes.
const maxWatchAge = 15 * time.Minute

func checkConflist(f *facts, r *findings) string {
	const install = "run `neardns-install install`"
	n := f.network
	watched := f.checkWatch(r)
	switch {
	case n.err != nil && watched:
		// The agent's container does not mount the folder, because other plugins keep credentials in it.
		return "`neardns-install watch` found plugin and entry in network " + f.watch.Network
	case n.err != nil:
		r.warn("run the doctor as root in the host's namespaces, or name the runtime's folder with --cni-conf", "could not be read: %s", n.err)
		return ""
	case n.effective == "":
		r.fail("wait for the primary CNI plugin to write its network, or name its folder with --cni-conf", "there is no network in %s", n.folder)
		return ""
	case !n.entry && len(n.elsewhere) > 0:
		r.fail("remove the other network or put the entry into the first one: "+install, "runtimes take %s, and the entry is only in %s",
			n.effective, strings.Join(n.elsewhere, ", "))
	case !n.entry:
		r.fail(install+"; new pods are not steered until then", "%s has no entry of type neardns", n.effective)
	case len(n.missing) > 0:
		r.warn(install+" with the agent's configuration", "the entry in %s does not redirect %s", n.effective, strings.Join(n.missing, ", "))
	default:
		r.ok("%s has the entry", n.effective)
	}
	if n.entry && n.pluginErr != "" {
		r.fail(install+": pods cannot start without it", "the plugin %s cannot be run: %s", n.plugin, n.pluginErr)
	}
	return ""
}

// checkWatch reports whether the installer's watch runs and has found or restored the plugin's entry.
func (f *facts) checkWatch(r *findings) (inPlace bool) {
	const log = "see the log of `neardns-install watch`"
	if f.watch == nil {
		return false
	}
	switch w, age := f.watch, f.now.Sub(f.watch.Looked); {
	case w.Fault != "":
		r.fail("fix that; the watch tries again by itself", "the watch cannot install plugin and entry, or its state cannot be read: %s", w.Fault)
	case w.Fighting:
		r.warn(log+", which names the file and its first plugin, and stop what writes it",
			"another program keeps removing the entry; the watch has restored it %s", cli.Plural(w.Repairs, "time"))
		return age <= maxWatchAge
	case age > maxWatchAge:
		r.warn("start `neardns-install watch` again; when the main network writes its file anew, new pods are not steered until then",
			"the watch last checked %s ago", age.Round(time.Minute))
	default:
		return true
	}
	return false
}
