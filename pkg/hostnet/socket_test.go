package hostnet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nltest"
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
		"both":                {slices.Concat(first, second), 9, []string{"abcd", "efgh"}, nil},
		"stopped":             {slices.Concat(first, second), 1, []string{"abcd"}, nil},
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

// The parsers of routes and links never panic, whatever the kernel sends.
func FuzzReadAnswers(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, unix.SizeofRtMsg))
	f.Add(append(make([]byte, unix.SizeofRtMsg), 8, 0, unix.RTA_OIF, 0, 2, 0, 0, 0, 8, 0, unix.RTA_GATEWAY, 0, 10, 0, 0, 1))
	f.Add(append(make([]byte, unix.SizeofIfInfomsg), 8, 0, unix.IFLA_IFNAME, 0, 'e', 't', 'h', 0, 12, 0, unix.IFLA_LINKINFO, 0, 8, 0, unix.IFLA_INFO_KIND, 0, 'v', 'e', 't', 'h'))
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := readRoute(data); err == nil && r.gateway.IsValid() && r.gateway.BitLen() != 32 && r.gateway.BitLen() != 128 {
			t.Errorf("%+v", r)
		}
		_, _ = readLink(data)
	})
}

// If the listed objects change during the last part of a dump, only the message that ends the dump has the flag.
func TestInterrupted(t *testing.T) {
	done := netlink.Header{Type: netlink.Done, Flags: netlink.Multi}
	flagged := done
	flagged.Flags |= unix.NLM_F_DUMP_INTR
	for name, c := range map[string]struct {
		messages []netlink.Message
		want     bool
	}{
		"nothing":          {nil, false},
		"whole":            {[]netlink.Message{{}, {Header: done}}, false},
		"interrupted":      {[]netlink.Message{{}, {Header: flagged}}, true},
		"only its end":     {[]netlink.Message{{Header: flagged}}, true},
		"flag on a part":   {[]netlink.Message{{Header: netlink.Header{Flags: unix.NLM_F_DUMP_INTR}}}, false}, // request checks each part
		"an error message": {[]netlink.Message{{Header: netlink.Header{Type: netlink.Error, Flags: unix.NLM_F_DUMP_INTR}}}, false},
	} {
		testutil.Equal(t, name, c.want, interrupted(c.messages))
	}
}

// If the addresses change during a dump, request reads the list again, so the change does not fail a pod's start.
func TestRequestRepeatsInterrupted(t *testing.T) {
	part := netlink.Message{Header: netlink.Header{Type: unix.RTM_NEWADDR}, Data: []byte("part")}
	flagged := part
	flagged.Header.Flags |= unix.NLM_F_DUMP_INTR
	type answer struct {
		message netlink.Message
		err     error
	}
	good, atPart, atEnd, failed := answer{message: part}, answer{message: flagged}, answer{err: ErrInterrupted}, answer{err: unix.ENOBUFS}
	for name, c := range map[string]struct {
		answers []answer // the last one repeats
		asked   int
		err     error
	}{
		"whole":               {[]answer{good}, 1, nil},
		"interrupted at part": {[]answer{atPart, good}, 2, nil},
		"interrupted at end":  {[]answer{atEnd, atEnd, good}, 3, nil},
		"always interrupted":  {[]answer{atEnd}, attempts, unix.EINTR},
		"another error":       {[]answer{failed}, 1, unix.ENOBUFS},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			l := links{nltest.Dial(func(requests []netlink.Message) ([]netlink.Message, error) {
				a := c.answers[min(asked, len(c.answers)-1)]
				asked++
				a.message.Header.Sequence, a.message.Header.PID = requests[0].Header.Sequence, nltest.PID
				return []netlink.Message{a.message}, a.err
			})}
			got, err := l.request(unix.RTM_GETADDR, netlink.Dump, make([]byte, unix.SizeofIfAddrmsg))
			if asked != c.asked || !errors.Is(err, c.err) || err == nil && (len(got) != 1 || string(got[0]) != "part") {
				t.Errorf("%q, %v after %d requests; want %v after %d", got, err, asked, c.err, c.asked)
			}
		})
	}
}
