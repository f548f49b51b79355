package zoneserver

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"net/netip"
	"strings"
	"text/template"

	"github.com/neardns/neardns/pkg/testutil"
)

// DefaultZone is the zone of documents and tests.
const DefaultZone = "shared.example."

// Config describes a server of one shared zone. The zero value is a server with no cluster's key.
type Config struct {
	Zone     string   // absolute; "": DefaultZone
	Clusters []string // IDs of the clusters; each cluster gets a key of its own
	// Hosts are the host names, relative to the zone, that each cluster may publish. Only Knot's rules need them; the other servers allow
	// any host.
	Hosts      []string
	Records    []string         // lines of the zone's file, relative to the zone, in addition to its SOA and NS
	Notify     []netip.AddrPort // secondaries that are informed of each change
	MaxRecords int              // BIND: records that one set may have; 0: as installed, 100
	// In is the namespace in which the server runs, at Address. nil means this process's namespace, with Address on loopback.
	In      *testutil.NetNS
	Address netip.Addr // not set: 127.0.0.1
}

// Key is a TSIG key, HMAC-SHA256.
type Key struct {
	Name    string // lower case; absolute, except in view
	Secret  string // base64
	Cluster string // ID of the cluster that owns the key; "": the operator's key or the edges'
	IsEdge  bool   // the edges' key, which may transfer the zone but change nothing
}

// Names of the two keys that belong to no cluster, as the first label below the zone.
const (
	operator = "operator"
	edge     = "edge"
)

// view has the values for the templates in the folder conf. Names in it have no final dot, because PowerDNS's commands want none.
type view struct {
	Zone       string
	Keys       []Key
	Hosts      []string
	Records    []string
	Notify     []netip.AddrPort
	MaxRecords int
	Folder     string // for the zone
	Scripts    string // for PowerDNS's script
	Pdnsutil   string
}

//go:embed conf
var conf embed.FS

var templates = template.Must(template.New("").ParseFS(conf, "conf/*.tmpl"))

// files lists the names of the configuration files about the shared zone for each kind of server, in the order in which
// fleet/docs/shared-zones-servers.md shows them.
var files = map[Kind][]string{
	BIND:     {"named.conf"},
	Knot:     {"knot.conf"},
	PowerDNS: {"pdns.conf", "shared-zone.lua", "pdns.sh"},
}

// Part is one file of a server's configuration. If its name ends in sh, it has the commands that the server needs once.
type Part struct{ Name, Text string }

// Example returns the files of the documented example, with two clusters, two hosts and an edge, and with Debian's file paths.
func Example(kind Kind) ([]Part, error) {
	c := Config{
		Clusters: []string{"k1x9m2qa", "7hw3zp0c"}, Hosts: []string{"app", "shop"}, Notify: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.10:53")},
	}
	v := c.view()
	v.Folder = map[Kind]string{BIND: "/var/lib/bind", Knot: "/var/lib/knot", PowerDNS: "/var/lib/powerdns"}[kind]
	v.Scripts, v.Pdnsutil = "/etc/powerdns", "pdnsutil"
	return v.parts(kind)
}

// ExampleZone returns the zone's file of the documented example.
func ExampleZone() (string, error) { return Config{}.view().render("zone") }

func (c Config) view() view {
	if c.Zone == "" {
		c.Zone = DefaultZone
	}
	v := view{Zone: strings.TrimSuffix(c.Zone, "."), Hosts: c.Hosts, Records: c.Records, Notify: c.Notify, MaxRecords: c.MaxRecords}
	for _, name := range []string{operator, edge} {
		v.Keys = append(v.Keys, key(name+"."+v.Zone, "", name == edge))
	}
	for _, id := range c.Clusters {
		v.Keys = append(v.Keys, key(id+"._neardns."+v.Zone, id, false))
	}
	return v
}

// key makes a key whose secret is derived from its name, because the document's example must not change from run to run.
func key(name, cluster string, isEdge bool) Key {
	secret := sha256.Sum256([]byte("not a secret: " + name))
	return Key{Name: name, Secret: base64.StdEncoding.EncodeToString(secret[:]), Cluster: cluster, IsEdge: isEdge}
}

func (v view) parts(kind Kind) ([]Part, error) {
	var out []Part
	for _, name := range files[kind] {
		text, err := v.render(name)
		if err != nil {
			return nil, err
		}
		out = append(out, Part{name, text})
	}
	return out, nil
}

func (v view) render(name string) (string, error) {
	var text strings.Builder
	if err := templates.ExecuteTemplate(&text, name+".tmpl", v); err != nil {
		return "", fmt.Errorf("render %s: %w", name, err)
	}
	return strings.TrimLeft(text.String(), "\n"), nil
}
