package bpf

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
)

// Counts returns the hits of all series, indexed by Answer.Series, since the kernel maps were made, which an earlier process may have done.
func (l *Level) Counts() ([]uint64, error) {
	out := make([]uint64, SeriesMost)
	var cpus []objectSeries
	for i := range out {
		if err := l.objects.Counts.Lookup(uint32(i), &cpus); err != nil {
			return nil, fmt.Errorf("read series %d: %w", i, err)
		}
		for _, c := range cpus {
			out[i] += c.Hits
		}
	}
	return out, nil
}

// Links reads the number of hits at each link since the program was attached to it, and how many of them are NXDOMAIN, by the link's index.
func (l *Level) Links() (map[int][2]uint64, error) {
	out := map[int][2]uint64{}
	var index uint32
	var at objectLink
	all := l.objects.Links.Iterate()
	for all.Next(&index, &at) {
		out[int(index)] = [2]uint64{at.Hits, at.Nxdomain}
	}
	if err := all.Err(); err != nil {
		return nil, fmt.Errorf("read links: %w", err)
	}
	return out, nil
}

// link reads a link's entry in the kernel map of links. there is false if the map has none; the link then has no hits.
func (l *Level) link(index int) (at objectLink, there bool, err error) {
	if err := l.objects.Links.Lookup(uint32(index), &at); errors.Is(err, ebpf.ErrKeyNotExist) {
		return at, false, nil
	} else if err != nil {
		return at, false, fmt.Errorf("read link %d: %w", index, err)
	}
	return at, true, nil
}

// Unanswered reports whether the program serves no hits at a link because the pod's sampled queries get no answer on the normal path. It is
// false if the pod has sent no query that could be a hit for 30 seconds.
func (l *Level) Unanswered(index int) (bool, error) {
	const good, stands = 8 * time.Second, 30 * time.Second // SAMPLE_GOOD and SAMPLE_STANDS of hits.bpf.c
	at, _, err := l.link(index)
	now := Now()
	return at.Sampled > at.Answered && now-time.Duration(at.Sampled) < stands && now-time.Duration(at.Answered) > good, err
}

// Keys of the kernel map of passes, after those of the reasons for which the program passes a query on (enum passed of hits.bpf.c).
const copyLimited, copyFull = 8, 9

// Uncopied returns how many queries without a valid answer were not mirrored since the kernel maps were made. limited counts those whose
// link had already had 16 queries mirrored in the same 67 ms, and full those for which the ring buffer had no room.
func (l *Level) Uncopied() (limited, full uint64, err error) {
	if limited, err = l.passed(copyLimited); err == nil {
		full, err = l.passed(copyFull)
	}
	return limited, full, err
}

// passed reads a value of the kernel map of passes, which has one for each CPU.
func (l *Level) passed(key uint32) (n uint64, err error) {
	var cpus []uint64
	if err := l.objects.Passes.Lookup(key, &cpus); err != nil {
		return 0, fmt.Errorf("read the counts of queries passed on: %w", err)
	}
	for _, c := range cpus {
		n += c
	}
	return n, nil
}
