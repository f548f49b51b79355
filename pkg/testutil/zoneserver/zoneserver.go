// Package zoneserver runs Debian's authoritative servers (BIND, Knot, PowerDNS) as processes with one zone that many clusters write by
// UPDATE. Each cluster has a TSIG key that is limited to what the cluster owns; the operator's key may write the whole zone, the edges'
// key may only transfer it. The configuration is the one that fleet/docs/shared-zones-servers.md shows (folder conf), with other folders
// and ports around it.
//
// A server listens on loopback or in a namespace of a test, and keeps its files in a folder of its own below the system's temporary one.
//
// Failure policy: whatever goes wrong ends the test through Fatalf with the server's output. Processes and folders are removed through
// Cleanup.
package zoneserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// Kind is a server's implementation.
type Kind string

// The servers that Debian has and that neardns is tried with.
const (
	BIND     Kind = "BIND"
	Knot     Kind = "Knot"
	PowerDNS Kind = "PowerDNS"
)

// Kinds returns the servers in the order of the documents' tables.
func Kinds() []Kind { return []Kind{BIND, Knot, PowerDNS} }

// programs that a kind needs, with Debian's packages; the Makefile's list ZONESERVERS has them, too.
var programs = map[Kind][][2]string{
	BIND:     {{"named", "bind9"}},
	Knot:     {{"knotd", "knot"}},
	PowerDNS: {{"pdns_server", "pdns-backend-sqlite3"}, {"pdnsutil", "pdns-server"}, {"sqlite3", "sqlite3"}},
}

// Require skips a test if a server of these kinds is not installed, or with -short. In CI, it fails the test if a server is not installed.
func Require(t testing.TB, kinds ...Kind) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs zone servers")
	}
	for _, kind := range kinds {
		err := Installed(kind)
		if err != nil && os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		if err != nil {
			testutil.Skip(t, err.Error())
		}
	}
}

// Installed returns an error that names a missing program of a kind and its Debian package, or nil if all are there.
func Installed(kind Kind) error {
	for _, p := range programs[kind] {
		if _, err := find(p[0]); err != nil {
			return fmt.Errorf("%s needs %s: install Debian's package %s", kind, p[0], p[1])
		}
	}
	return nil
}

// find returns a program's path. It also looks in folders that are not in an ordinary user's PATH.
func find(program string) (string, error) {
	path, err := exec.LookPath(program)
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if err == nil {
			break
		}
		path, err = exec.LookPath(filepath.Join(dir, program))
	}
	return path, err
}

// Server is a running server of one zone. Its methods that start and stop it must not be called at the same time.
type Server struct {
	kind    Kind
	t       testutil.TB
	config  Config
	view    view
	at      netip.AddrPort
	folder  string // all files
	process *testutil.Process
}

// Start starts a server and waits until it answers for the zone. Cleanup ends it.
func Start(t testutil.TB, kind Kind, c Config) *Server {
	t.Helper()
	if err := Installed(kind); err != nil {
		t.Fatalf("%v", err)
	}
	if !c.Address.IsValid() {
		c.Address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	// Do not use the test's own folder: the path of a Unix socket has at most 107 bytes.
	folder, err := os.MkdirTemp("", "zoneserver-")
	if err != nil {
		t.Fatalf("make a folder for %s: %v", kind, err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	port := uint16(53)
	if c.In == nil {
		port = testutil.FreePort(t, c.Address.String())
	}
	s := &Server{kind: kind, t: t, config: c, view: c.view(), at: netip.AddrPortFrom(c.Address, port), folder: folder}
	s.view.Folder, s.view.Scripts, s.view.Pdnsutil = folder, folder, "pdnsutil --config-dir="+folder
	if err := s.configure(); err != nil {
		t.Fatalf("configure %s: %v", kind, err)
	}
	s.Run()
	return s
}

// Kind returns the server's implementation.
func (s *Server) Kind() Kind { return s.kind }

// Addr returns the address and port where the server listens over UDP and TCP.
func (s *Server) Addr() netip.AddrPort { return s.at }

// Zone returns the zone's absolute name.
func (s *Server) Zone() string { return dns.Fqdn(s.view.Zone) }

// Process returns the running server's process, for tests that stop it (SIGSTOP) or read its log.
func (s *Server) Process() *testutil.Process { return s.process }

// Key returns the key of a cluster.
func (s *Server) Key(cluster string) Key {
	return s.key(func(k Key) bool { return k.Cluster == cluster })
}

// Operator returns the key that may write the whole zone.
func (s *Server) Operator() Key {
	return s.key(func(k Key) bool { return k.Cluster == "" && !k.IsEdge })
}

// Edge returns the key that may transfer the zone and change nothing.
func (s *Server) Edge() Key { return s.key(func(k Key) bool { return k.IsEdge }) }

func (s *Server) key(fits func(Key) bool) Key {
	s.t.Helper()
	for _, k := range s.view.Keys {
		if fits(k) {
			k.Name = dns.Fqdn(k.Name)
			return k
		}
	}
	s.t.Fatalf("%s has no such key: name the cluster in Config.Clusters", s.kind)
	return Key{}
}

// Kill ends the server by SIGKILL.
func (s *Server) Kill() { s.process.Kill() }

// Terminate ends the server by SIGTERM, as its operator does.
func (s *Server) Terminate() {
	s.t.Helper()
	_ = s.process.Terminate(testutil.Patience()) // PowerDNS ends with a status of its own
}

// Run starts the server, again after Kill or Terminate, with the files that it left, and waits until it answers for the zone.
func (s *Server) Run() {
	s.t.Helper()
	s.dropEmptyJournals()
	cmd, err := s.command()
	if err != nil {
		s.t.Fatalf("start %s: %v", s.kind, err)
	}
	if s.config.In != nil {
		s.process = s.config.In.StartCmd(cmd)
	} else {
		s.process = testutil.StartHere(s.t, cmd)
	}
	testutil.Eventually(s.t, func() error {
		select {
		case <-s.process.Exited():
			s.t.Fatalf("%s ended: %v\n%s", s.kind, s.process.Wait(), s.process.Output())
		default:
		}
		if err := s.answers(); err != nil {
			return fmt.Errorf("%s does not answer: %w\n%s", s.kind, err, s.process.Output())
		}
		return nil
	})
}

// dropEmptyJournals removes BIND's journals without a whole header. One that is killed while it makes its journal leaves such a file, and
// then does not load the zone ("journal open failed: no more"); fleet/docs/shared-zones-servers.md names the remedy.
func (s *Server) dropEmptyJournals() {
	const header = 64 // bytes: JOURNAL_HEADER_SIZE of lib/dns/journal.c
	journals, _ := filepath.Glob(filepath.Join(s.folder, "*.jnl"))
	for _, path := range journals {
		if info, err := os.Stat(path); err == nil && info.Size() < header {
			_ = os.Remove(path) // else the server's log has the reason
		}
	}
}

// answers queries the zone's SOA, and returns an error if the server does not answer.
func (s *Server) answers() error {
	conn, err := s.Dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testutil.Attempt))
	if err := conn.WriteMsg(new(dns.Msg).SetQuestion(s.Zone(), dns.TypeSOA)); err != nil {
		return err
	}
	answer, err := conn.ReadMsg()
	if err == nil && (answer.Rcode != dns.RcodeSuccess || !answer.Authoritative || len(answer.Answer) == 0) {
		err = errors.New("no authoritative answer: " + dns.RcodeToString[answer.Rcode])
	}
	return err
}

// Dial opens a TCP connection to the server, from its own namespace. The caller closes it.
func (s *Server) Dial() (*dns.Conn, error) {
	var d net.Dialer
	var conn net.Conn
	var err error
	dial := func() { conn, err = d.DialContext(context.Background(), "tcp", s.at.String()) }
	if s.config.In != nil {
		s.config.In.Do(dial)
	} else {
		dial()
	}
	if err != nil {
		return nil, err
	}
	return &dns.Conn{Conn: conn}, nil
}

// Transfer reads the whole zone by AXFR with the operator's key, the SOA once.
func (s *Server) Transfer() ([]dns.RR, error) {
	conn, err := s.Dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	key := s.Operator()
	m := new(dns.Msg).SetAxfr(s.Zone())
	m.SetTsig(key.Name, dns.HmacSHA256, 300, time.Now().Unix())
	transfer := dns.Transfer{Conn: conn, TsigSecret: map[string]string{key.Name: key.Secret}, ReadTimeout: testutil.Patience()}
	envelopes, err := transfer.In(m, s.at.String())
	if err != nil {
		return nil, fmt.Errorf("transfer %s from %s: %w", s.Zone(), s.kind, err)
	}
	var out []dns.RR
	for e := range envelopes {
		if e.Error != nil {
			err = e.Error
		}
		out = append(out, e.RR...)
	}
	if err != nil {
		return nil, fmt.Errorf("transfer %s from %s: %w", s.Zone(), s.kind, err)
	}
	return out[:len(out)-1], nil
}

// Snapshot ends the server, keeps a copy of its files and starts it again. The returned function puts the copy back, as an operator
// does who restores a backup.
func (s *Server) Snapshot() (restore func()) {
	s.t.Helper()
	backup := filepath.Join(s.folder, "backup")
	swap := func(from, to string) {
		s.t.Helper()
		s.Terminate()
		if err := copyFiles(from, to); err != nil {
			s.t.Fatalf("copy the files of %s: %v", s.kind, err)
		}
		s.Run()
	}
	swap(s.folder, backup)
	return func() { s.t.Helper(); swap(backup, s.folder) }
}

// copyFiles replaces the contents of folder to by those of folder from, except the folder backup in each of them.
func copyFiles(from, to string) error {
	old, err := filepath.Glob(filepath.Join(to, "*"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if filepath.Base(path) != "backup" {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		source, target := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		switch {
		case e.Name() == "backup":
		case e.IsDir():
			err = os.CopyFS(target, os.DirFS(source))
		case e.Type().IsRegular():
			var data []byte
			if data, err = os.ReadFile(source); err == nil {
				if err = os.MkdirAll(to, 0o755); err == nil {
					err = os.WriteFile(target, data, 0o644)
				}
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// outer is the part of the configuration that the document leaves as Debian has it: where the server listens, and its folders.
func (s *Server) outer() Part {
	host, port := s.at.Addr(), s.at.Port()
	switch s.kind {
	case BIND:
		listen := "listen-on port %d { %s; };\n    listen-on-v6 { none; };"
		if host.Is6() {
			listen = "listen-on-v6 port %d { %s; };\n    listen-on { none; };"
		}
		return Part{"main.conf", fmt.Sprintf(`options {
    directory %q;
    pid-file none;
    session-keyfile %q;
    recursion no;
    `+listen+`
};
controls { };
include %q;
`, s.folder, filepath.Join(s.folder, "session.key"), port, host, filepath.Join(s.folder, "named.conf"))}
	case Knot:
		return Part{"main.conf", fmt.Sprintf("server:\n    listen: %s@%d\n    rundir: %s\ndatabase:\n    storage: %[3]s\nlog:\n  - target: stderr\n    any: info\ninclude: %s\n",
			host, port, s.folder, filepath.Join(s.folder, "knot.conf"))}
	default:
		return Part{"outer.conf", fmt.Sprintf("local-address=%s\nlocal-port=%d\nsocket-dir=%s\nwrite-pid=no\nguardian=no\ndaemon=no\nwebserver=no\nversion-string=anonymous\nsecurity-poll-suffix=\n",
			host, port, s.folder)}
	}
}

// configure writes all files, and runs the commands that PowerDNS needs once.
func (s *Server) configure() error {
	parts, err := s.view.parts(s.kind)
	if err != nil {
		return err
	}
	zone, err := s.view.render("zone")
	if err != nil {
		return err
	}
	outer := s.outer()
	parts = append(parts, outer, Part{s.view.Zone + ".zone", zone})
	var once string
	for i := range parts {
		if s.kind == PowerDNS && parts[i].Name == "pdns.conf" {
			parts[i].Text += outer.Text // PowerDNS would read a file of its own from include-dir
		}
		if strings.HasSuffix(parts[i].Name, ".sh") {
			once = parts[i].Text
		}
		if err := os.WriteFile(filepath.Join(s.folder, parts[i].Name), []byte(parts[i].Text), 0o644); err != nil {
			return err
		}
	}
	if once == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience())
	defer cancel()
	sh := exec.CommandContext(ctx, "sh", "-ec", once)
	sh.Dir = s.folder
	sh.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	if out, err := sh.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// command returns the command that runs the server in the foreground.
func (s *Server) command() (*exec.Cmd, error) {
	args := map[Kind][]string{
		BIND:     {"-g", "-c", filepath.Join(s.folder, "main.conf")},
		Knot:     {"-c", filepath.Join(s.folder, "main.conf")},
		PowerDNS: {"--config-dir=" + s.folder},
	}[s.kind]
	path, err := find(programs[s.kind][0][0])
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Dir = s.folder
	return cmd, nil
}
