// Package peers has the DNS servers that neardns is measured alongside, from Debian's packages: their configurations as a careful
// operator would write them for a cache on a node that forwards to kube-dns, and how they are called. The files in config are what
// they are started with, with a reason next to each line; Config fills in addresses and folders.
//
// It starts nothing, and writes only what Write is called for.
package peers

import (
	"embed"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed config
var configs embed.FS

// Peer is one server.
type Peer struct {
	Name    string // as people write it
	Package string // Debian's
	Program string // without its folder
	file    string
	args    []string // @dir@ and @file@ are filled in
}

// All are the peers, in the order of the report.
func All() []Peer {
	return []Peer{
		Unbound(),
		{"dnsmasq", "dnsmasq-base", "dnsmasq", "dnsmasq.conf", []string{"-C", "@file@"}},
		{"knot-resolver", "knot-resolver", "kresd", "kresd.conf", []string{"-n", "-c", "@file@", "@dir@"}},
		{"dnsdist", "dnsdist", "dnsdist", "dnsdist.conf", []string{"--supervised", "--disable-syslog", "-C", "@file@"}},
		{"pdns-recursor", "pdns-recursor", "pdns_recursor", "recursor.conf", []string{"--config-dir=@dir@"}},
	}
}

// Unbound is the first of them, which the table of faults has, too.
func Unbound() Peer {
	return Peer{"unbound", "unbound", "unbound", "unbound.conf", []string{"-d", "-p", "-c", "@file@"}}
}

// Place is where a peer serves: the two addresses that pods query, whom it queries, and a folder of its own.
type Place struct {
	Local, ClusterDNS, Upstream netip.Addr
	Dir                         string
}

// Config is the configuration of a peer at its place.
func (p Peer) Config(at Place) (string, error) {
	text, err := configs.ReadFile("config/" + p.file)
	if err != nil {
		return "", fmt.Errorf("configuration of %s: %w", p.Name, err)
	}
	return at.fill(string(text), ""), nil
}

// Command is how a peer is called with its configuration in a file.
func (p Peer) Command(at Place, file string) ([]string, error) {
	program, err := Find(p.Program)
	if err != nil {
		return nil, err
	}
	out := []string{program}
	for _, a := range p.args {
		out = append(out, at.fill(a, file))
	}
	return out, nil
}

// Write writes a peer's configuration, with more of the caller's at its end, into the place's folder, and returns the command of the peer.
func (p Peer) Write(at Place, more string) (args []string, err error) {
	text, err := p.Config(at)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(at.Dir, p.file)
	if err := os.WriteFile(file, []byte(text+more), 0o644); err != nil {
		return nil, fmt.Errorf("write the configuration of %s: %w", p.Name, err)
	}
	return p.Command(at, file)
}

// Find looks a program up where Debian has programs, also those that are not in a user's path.
func Find(program string) (string, error) {
	for _, name := range []string{program, "/usr/sbin/" + program} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no program %s here: `make bench-deps` installs it", program)
}

func (at Place) fill(text, file string) string {
	return strings.NewReplacer("@local@", at.Local.String(), "@clusterDNS@", at.ClusterDNS.String(),
		"@upstream@", at.Upstream.String(), "@dir@", at.Dir, "@file@", file).Replace(text)
}
