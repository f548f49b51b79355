package generator

import (
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// Histogram counts durations in buckets that are at most 1.6 % wide, from 1 ns up. The zero value is empty.
type Histogram struct {
	counts [(64 - fine) << fine]int64
	n      int64
}

// fine is how many bits of a duration tell buckets apart.
const fine = 6

// bucket numbers durations: below 2^fine one each, then 2^fine of each power of two.
func bucket(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < 1<<fine {
		return int(v)
	}
	shift := bits.Len64(v) - 1 - fine
	return min((shift+1)<<fine+int(v>>shift)-1<<fine, len(Histogram{}.counts)-1)
}

// highest is the longest duration of a bucket.
func highest(b int) time.Duration {
	if b < 1<<fine {
		return time.Duration(b)
	}
	shift := b>>fine - 1
	return time.Duration((uint64(b&(1<<fine-1)|1<<fine)+1)<<shift - 1)
}

// Note counts one duration; a negative one as 0.
func (h *Histogram) Note(d time.Duration) {
	h.counts[bucket(d)]++
	h.n++
}

// Count is how many durations were noted.
func (h *Histogram) Count() int { return int(h.n) }

// Merge adds another's counts.
func (h *Histogram) Merge(o *Histogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.n += o.n
}

// At is the duration that a share of all do not exceed (0.5 for the median); 0 of an empty histogram.
func (h *Histogram) At(share float64) time.Duration {
	want := int64(math.Ceil(share * float64(h.n)))
	var sum int64
	for i, n := range h.counts {
		if sum += n; n > 0 && sum >= want {
			return highest(i)
		}
	}
	return 0
}

// MarshalJSON writes the buckets that hold something, as pairs of number and count.
func (h Histogram) MarshalJSON() ([]byte, error) {
	pairs := [][2]int64{}
	for i, n := range h.counts {
		if n > 0 {
			pairs = append(pairs, [2]int64{int64(i), n})
		}
	}
	return json.Marshal(pairs)
}

// UnmarshalJSON reads them.
func (h *Histogram) UnmarshalJSON(data []byte) error {
	var pairs [][2]int64
	if err := json.Unmarshal(data, &pairs); err != nil {
		return fmt.Errorf("read a histogram: %w", err)
	}
	*h = Histogram{}
	for _, p := range pairs {
		if p[0] < 0 || p[0] >= int64(len(h.counts)) || p[1] < 0 {
			return fmt.Errorf("read a histogram: no bucket %d with %d", p[0], p[1])
		}
		h.counts[p[0]] += p[1]
		h.n += p[1]
	}
	return nil
}
