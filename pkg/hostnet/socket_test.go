package hostnet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/mdlayher/netlink"
	vishvananda "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// FuzzSplitMessages checks for any input that the messages are its parts in order, or that there is an error.
func FuzzSplitMessages(f *testing.F) {
	message := func(length uint32, data string) []byte {
		b := make([]byte, unix.SizeofNlMsghdr, 64)
		binary.NativeEndian.PutUint32(b, length)
		return append(b, data...)
	}
	f.Add([]byte{})
	f.Add(message(16, ""))
	f.Add(append(message(20, "abcd"), message(18, "xy")...))
	f.Add(message(17, "a\x00\x00\x00"))
	f.Add(message(15, ""))
	f.Add(message(1<<31, "abcd"))
	f.Fuzz(func(t *testing.T, data []byte) {
		messages, err := splitMessages(bytes.Clone(data))
		if err != nil {
			return
		}
		rest := data
		for i, m := range messages {
			if int(m.Header.Length) != unix.SizeofNlMsghdr+len(m.Data) || len(rest) < int(m.Header.Length) ||
				!bytes.Equal(rest[unix.SizeofNlMsghdr:m.Header.Length], m.Data) {
				t.Fatalf("message %d of % x: %+v", i, data, m)
			}
			rest = rest[min(len(rest), (int(m.Header.Length)+3)&^3):]
		}
		if len(rest) >= unix.SizeofNlMsghdr {
			t.Fatalf("% x left of % x", rest, data)
		}
	})
}

// The iterator reads one datagram, yields its messages in order, and stops when its caller does.
func TestReceiveIter(t *testing.T) {
	message := func(kind netlink.HeaderType, flags netlink.HeaderFlags, data string) []byte {
		m := netlink.Message{Header: netlink.Header{Length: uint32(unix.SizeofNlMsghdr + len(data)), Type: kind, Flags: flags}, Data: []byte(data)}
		b, err := m.MarshalBinary()
		testutil.Must(t, err)
		return b
	}
	first, second := message(20, netlink.Multi, "abcd"), message(21, netlink.Multi, "efgh")
	for name, c := range map[string]struct {
		datagram []byte
		most     int // messages that the caller takes
		want     []string
		err      error
	}{
		"both":    {slices.Concat(first, second), 9, []string{"abcd", "efgh"}, nil},
		"stopped": {slices.Concat(first, second), 1, []string{"abcd"}, nil},
		// if the listed objects change during the last part of a dump, only the message that ends the dump has the flag
		"interrupted at last": {slices.Concat(first, message(netlink.Done, netlink.Multi|unix.NLM_F_DUMP_INTR, "")), 9, nil, ErrInterrupted},
	} {
		t.Run(name, func(t *testing.T) {
			ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			testutil.Must(t, err)
			s := &socket{fd: ends[0]}
			defer func() { _ = errors.Join(s.Close(), unix.Close(ends[1])) }()
			for _, datagram := range [][]byte{c.datagram, message(22, 0, "next")} {
				testutil.Must(t, unix.Send(ends[1], datagram, 0))
			}
			var got []string
			for m, iterErr := range s.ReceiveIter() {
				if err = iterErr; err == nil {
					got = append(got, string(m.Data))
				}
				if len(got) == c.most {
					break
				}
			}
			if !slices.Equal(got, c.want) || !errors.Is(err, c.err) {
				t.Errorf("%q, %v; want %q, %v", got, err, c.want, c.err)
			}
			if rest, err := s.Receive(); err != nil || len(rest) != 1 || string(rest[0].Data) != "next" {
				t.Errorf("the next datagram: %+v, %v", rest, err)
			}
		})
	}
}

// Receive looks at the message that ends a dump alone; nfnetlink.Request checks each part.
func TestInterrupted(t *testing.T) {
	done := netlink.Header{Type: netlink.Done, Flags: netlink.Multi}
	for name, header := range map[string]netlink.Header{
		"whole": done, "flag on a part": {Flags: unix.NLM_F_DUMP_INTR}, "an error message": {Type: netlink.Error, Flags: unix.NLM_F_DUMP_INTR},
	} {
		testutil.Equal(t, name, false, interrupted([]netlink.Message{{Header: header}}))
	}
	done.Flags |= unix.NLM_F_DUMP_INTR
	testutil.Equal(t, "interrupted", true, interrupted([]netlink.Message{{}, {Header: done}}))
}

// If the addresses change during a dump, the list is read again, so the change does not fail a pod's start.
func TestReadsInterruptedListAgain(t *testing.T) {
	for name, c := range map[string]struct {
		failing, reads int
		err            error // of a read that fails
	}{
		"whole":                    {0, 1, nil},
		"twice interrupted":        {2, 3, vishvananda.ErrDumpInterrupted},
		"interrupted at each read": {99, 8, vishvananda.ErrDumpInterrupted},
		"another error":            {1, 1, unix.ENOBUFS},
	} {
		reads := 0
		list, err := Whole(func() ([]int, error) {
			if reads++; reads <= c.failing {
				return nil, c.err
			}
			return []int{reads}, nil
		})
		fails := c.failing >= c.reads
		if reads != c.reads || fails != (err != nil) || fails && !errors.Is(err, c.err) || !fails && !slices.Equal(list, []int{reads}) {
			t.Errorf("%s: %v, %v after %d reads; want %v after %d", name, list, err, reads, c.err, c.reads)
		}
	}
}
