package listener

import (
	"io"
	"net"
	"os"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// unaccepted starts a server, whose process then has no descriptor left for the connection that client requests. udp is another client.
func unaccepted(t *testing.T) (cfg Config, client *os.File, udp net.Conn, lift func()) {
	t.Helper()
	_, cfg = start(t, answer)
	udp = dialUDP(t, addressOf(cfg))
	tcp, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	testutil.Must(t, err)
	client = os.NewFile(uintptr(tcp), "client")
	t.Cleanup(func() { client.Close() })
	lift = testutil.NoDescriptors(t)
	testutil.Must(t, unix.Connect(tcp, &unix.SockaddrInet4{Addr: cfg.Addresses[0].As4(), Port: int(cfg.Port)}))
	return cfg, client, udp, lift
}

// TestNoDescriptors: the process has no descriptor left for a connection. Queries over UDP are answered meanwhile, and the connection is
// served once a descriptor is free.
func TestNoDescriptors(t *testing.T) {
	testutil.RequireRoot(t)
	if !testutil.InChild(t) { // the limit is the whole process's
		return
	}
	cfg, client, udp, lift := unaccepted(t)
	wire := testutil.Packed(t, question("a.example.org.", dns.TypeA))
	_, err := client.Write(framed(wire))
	testutil.Must(t, err)
	write(t, udp, wire)
	if _, err := udp.Read(make([]byte, 512)); err != nil {
		t.Errorf("over UDP: %v", err)
	}

	lift()
	conn, err := net.FileConn(client)
	testutil.Must(t, err)
	defer conn.Close()
	if _, err := io.ReadFull(conn, make([]byte, 2)); err != nil {
		t.Errorf("the connection that waited is not served: %v", err)
	}
	testutil.Exchange(t, "tcp", addressOf(cfg), question("b.example.org.", dns.TypeA))
}
