package front

import (
	"net"
	"testing"
	"time"
)

// TestWriteDeadline has an answer written on a connection whose last answer was long ago: that one's deadline is none of this one's.
func TestWriteDeadline(t *testing.T) {
	t.Parallel() // it waits for the second deadline
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s := &stream{TCPConn: conn}
	if err := s.SetWriteDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Write([]byte("answer")); n != 6 || err != nil {
		t.Errorf("%d bytes were written: %v", n, err)
	}

	// A client that does not read holds its writer for a time, not for ever.
	if err := s.SetWriteBuffer(4096); err != nil {
		t.Fatal(err)
	}
	big := make([]byte, 64<<20)
	begun := time.Now()
	if _, err := s.Write(big); err == nil || time.Since(begun) > 2*writeMost {
		t.Errorf("a client that does not read: %v after %s", err, time.Since(begun))
	}
}
