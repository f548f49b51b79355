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
	// Hosts may be published by each cluster, relative to the zone. Knot's rules need them; the other servers allow any host.
	Hosts      []string
	Records    []string         // lines of the zone's file, relative to the zone, besides its SOA and NS
	Notify     []netip.AddrPort // secondaries that are informed of each change
	MaxRecords int              // BIND: records that one set may have; 0: as installed, 100
	// In is the namespace that the server runs in, at Address; nil: this process's own, and then Address is on loopback.
	In      *testutil.NetNS
	Address netip.Addr // not set: 127.0.0.1
}

// Key is a TSIG key, HMAC-SHA256.
type Key struct {
	Name    string // absolute, lower case
	Secret  string // base64
	Cluster string // ID of the cluster that owns the key; "": the operator's key or the edges'
	IsEdge  bool   // the edges' key, which may transfer the zone but change nothing
}

// Names of the two keys that are no cluster's, as the first label below the zone.
const (
	operator = "operator"
	edge     = "edge"
)

// view is what the templates of the folder conf are filled with. Names in it have no final dot: PowerDNS's commands want none.
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

// Files are the parts of a server's configuration that deal with the shared zone, as fleet/docs/shared-zones-servers.md shows them: by
// name, in the order of the document.
var files = map[Kind][]string{
	BIND:     {"named.conf"},
	Knot:     {"knot.conf"},
	PowerDNS: {"pdns.conf", "shared-zone.lua", "pdns.sh"},
}

// Part is one file of a server's configuration, or with the ending sh the commands that it needs once.
type Part struct{ Name, Text string }

// Example gives the files of the documented example: two clusters, two hosts and an edge, where Debian keeps such files.
func Example(kind Kind) ([]Part, error) {
	c := Config{
		Clusters: []string{"k1x9m2qa", "7hw3zp0c"}, Hosts: []string{"app", "shop"}, Notify: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.10:53")},
	}
	v := c.view()
	v.Folder = map[Kind]string{BIND: "/var/lib/bind", Knot: "/var/lib/knot", PowerDNS: "/var/lib/powerdns"}[kind]
	v.Scripts, v.Pdnsutil = "/etc/powerdns", "pdnsutil"
	return v.parts(kind)
}

// ExampleZone is the zone's file of the documented example.
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

// key makes a key whose secret follows from its name: the document's example must not change from run to run.
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
