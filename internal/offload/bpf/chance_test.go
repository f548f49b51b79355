package bpf

import (
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

var (
	chances    = flag.Int("chance.frames", 20000, "how many frames TestChance makes")
	chanceSeed = flag.Uint64("chance.seed", 1, "where the frames of TestChance come from")
)

// TestChance runs the program on randomly changed frames; a fuzzer would not see which of the kernel's branches they reach. Each is
// answered as expected, or goes on as it came.
func TestChance(t *testing.T) {
	l := open(t, 64)
	answers := known(t, l)
	var frames [][]byte
	for key := range answers {
		name, _, err := dns.UnpackDomainName([]byte(key), 0)
		testutil.Must(t, err)
		for _, change := range []func(*dns.Msg){nil, withOPT(1232), withOPT(535), withOPT(534)} {
			b := ask(t, name, binary.BigEndian.Uint16([]byte(key)[len(key)-4:]), change)
			for sum := range none + 1 {
				frames = append(frames, packet(false, sum, b), packet(true, sum, b))
			}
		}
	}
	slices.SortFunc(frames, slices.Compare)
	by := rand.New(rand.NewPCG(*chanceSeed, 0))
	tried, answered := 0, 0
	for ; tried < *chances; tried++ {
		frame := slices.Clone(frames[by.IntN(len(frames))])
		for range by.IntN(4) {
			switch at := by.IntN(len(frame)); by.IntN(8) {
			case 0:
				frame = frame[:max(at, 34)]
			case 1:
				frame = append(frame, make([]byte, by.IntN(20))...)
			case 2:
				frame = slices.Insert(frame, at, byte(by.Uint32()))
			case 3:
				frame[at] ^= 1 << by.IntN(8)
			case 4:
				frame[at] = [...]byte{0, 1, 0x20, 41, 0x7f, 0x80, 0xc0, 0xff}[by.IntN(8)]
			case 5:
				other := frames[by.IntN(len(frames))]
				frame = append(frame[:at:at], other[min(at, len(other)):]...)
			default: // of the message, a letter's case
				if at = 54 + by.IntN(40); at < len(frame) && frame[at]|0x20 >= 'a' && frame[at]|0x20 <= 'z' {
					frame[at] ^= 0x20
				}
			}
		}
		if len(frame) < 34 {
			continue
		}
		fixSums(frame, byte(by.Uint32()))
		if expected(frame, answers) != nil {
			answered++
		}
		if err := tryFrame(l, answers, frame); err != nil {
			t.Fatalf("%v\nframe %x", err, frame)
		}
	}
	if answered < tried/20 || answered > tried-tried/20 {
		t.Errorf("of %d frames %d were to be answered", tried, answered)
	}
}
