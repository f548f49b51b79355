package listener

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestNoDescriptors: the process has no descriptor left for a connection. Queries over UDP are answered meanwhile, and the connection is
// served once a descriptor is free.
func TestNoDescriptors(t *testing.T) {
	testutil.RequireRoot(t)
	if !testutil.InChild(t) { // the limit is the whole process's
		return
	}
	_, cfg := start(t, answer)
	wire := packed(t, question("a.example.org.", dns.TypeA))
	udp := dialUDP(t, addressOf(cfg))
	tcp, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	testutil.Must(t, err)
	f := os.NewFile(uintptr(tcp), "client")
	defer f.Close()
	lift := testutil.NoDescriptors(t)
	testutil.Must(t, unix.Connect(tcp, &unix.SockaddrInet4{Addr: cfg.Addresses[0].As4(), Port: int(cfg.Port)}))
	framed := append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...)
	if _, err := unix.Write(tcp, framed); err != nil {
		t.Fatal(err)
	}

	if _, err := udp.Write(wire); err != nil {
		t.Fatal(err)
	}
	if _, err := udp.Read(make([]byte, 512)); err != nil {
		t.Errorf("over UDP: %v", err)
	}

	lift()
	testutil.Must(t, unix.SetNonblock(tcp, true))
	conn, err := net.FileConn(f)
	testutil.Must(t, err)
	defer conn.Close()
	if _, err := io.ReadFull(conn, make([]byte, 2)); err != nil {
		t.Errorf("the connection that waited is not served: %v", err)
	}
	ask(t, "tcp", addressOf(cfg), question("b.example.org.", dns.TypeA))
}
