package loadbalance_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/neardns/neardns/fleet/edge/loadbalance"
)

func well(int) loadbalance.State { return loadbalance.Well }

// TestOf has one row for each rule of the order geo, health, weight.
func TestOf(t *testing.T) {
	type c = loadbalance.Candidate
	const w, s, a = loadbalance.Well, loadbalance.Sick, loadbalance.Absent
	kerry := []string{"ie-ky", "ie", "geo-eu"}
	for name, row := range map[string]struct {
		candidates []c
		states     []loadbalance.State
		place      []string
		want       int
		reason     loadbalance.Reason
	}{
		"nobody":                           {nil, nil, kerry, -1, loadbalance.Any},
		"nobody has what is asked for":     {[]c{{Geo: "ie", Weight: 1}}, []loadbalance.State{a}, kerry, -1, loadbalance.Any},
		"the narrowest code":               {[]c{{Geo: "geo-eu", Weight: 1}, {Geo: "ie", Weight: 1}, {Geo: "ie-ky", Weight: 1}}, []loadbalance.State{w, w, w}, kerry, 2, loadbalance.Geo},
		"the country before the continent": {[]c{{Geo: "geo-eu", Weight: 9}, {Geo: "ie", Weight: 1}}, []loadbalance.State{w, w}, kerry, 1, loadbalance.Geo},
		"the continent":                    {[]c{{Geo: "us", Weight: 9}, {Geo: "geo-eu", Weight: 1}}, []loadbalance.State{w, w}, kerry, 1, loadbalance.Geo},
		"a part of another country":        {[]c{{Geo: "us-ky", Weight: 9}, {Geo: "geo-eu", Weight: 1}}, []loadbalance.State{w, w}, kerry, 1, loadbalance.Geo},
		"no match: the default geo":        {[]c{{Geo: "us", Weight: 9}, {Geo: "de", Default: true, Weight: 1}}, []loadbalance.State{w, w}, []string{"jp"}, 1, loadbalance.Default},
		"no match and no default: any":     {[]c{{Geo: "us", Weight: 1}}, []loadbalance.State{w}, []string{"jp"}, 0, loadbalance.Any},
		"a client without a place":         {[]c{{Geo: "us", Weight: 1}}, []loadbalance.State{w}, nil, 0, loadbalance.Any},
		"no geo is nobody's code":          {[]c{{Geo: "", Weight: 9}, {Geo: "us", Default: true, Weight: 1}}, []loadbalance.State{w, w}, []string{""}, 1, loadbalance.Default},
		"sick: the next code":              {[]c{{Geo: "ie", Weight: 1}, {Geo: "geo-eu", Weight: 1}}, []loadbalance.State{s, w}, kerry, 1, loadbalance.Geo},
		"sick in all of the place: default": {[]c{{Geo: "ie", Weight: 1}, {Geo: "de", Default: true, Weight: 1}, {Geo: "us", Weight: 1}}, []loadbalance.State{s, w, w},
			kerry, 1, loadbalance.Default},
		"all sick: as if all were well":   {[]c{{Geo: "us", Weight: 1}, {Geo: "ie", Weight: 1}}, []loadbalance.State{s, s}, kerry, 1, loadbalance.Unhealthy},
		"absent is not sick":              {[]c{{Geo: "ie", Weight: 1}, {Geo: "us", Weight: 1}}, []loadbalance.State{a, s}, kerry, 1, loadbalance.Unhealthy},
		"a standby waits":                 {[]c{{Geo: "ie", Weight: 0}, {Geo: "ie", Weight: 1}}, []loadbalance.State{w, w}, kerry, 1, loadbalance.Geo},
		"a standby stands in, of its geo": {[]c{{Geo: "ie", Weight: 0}, {Geo: "ie", Weight: 1}, {Geo: "geo-eu", Weight: 9}}, []loadbalance.State{w, s, w}, kerry, 0, loadbalance.Geo},
		"all weights 0":                   {[]c{{Geo: "ie"}}, []loadbalance.State{w}, kerry, 0, loadbalance.Geo},
		"all weights 0, all sick":         {[]c{{Geo: "ie"}}, []loadbalance.State{s}, kerry, 0, loadbalance.Unhealthy},
		"the greatest weights":            {[]c{{Geo: "ie", Weight: math.MaxUint32}, {Geo: "us", Weight: math.MaxUint32}}, []loadbalance.State{w, w}, kerry, 0, loadbalance.Geo},
	} {
		for _, draw := range []uint64{0, 1, math.MaxUint64 / 2, math.MaxUint64} {
			got, reason := loadbalance.Of(row.candidates, row.place, func(i int) loadbalance.State { return row.states[i] }, draw)
			if got != row.want || reason != row.reason {
				t.Errorf("%s: draw %d chose %d (%s), want %d (%s)", name, draw, got, reason, row.want, row.reason)
			}
		}
	}
}

// TestWeights draws 100,000 times with a fixed seed, and holds the parts to the weights by Pearson's chi-square test.
func TestWeights(t *testing.T) {
	// The values that chi-square exceeds once in 1,000 times (p = 0.001), by degrees of freedom.
	limits := []float64{0, 10.828, 13.816, 16.266, 18.467, 20.515, 22.458, 24.322, 26.124, 27.877}
	rng := rand.New(rand.NewPCG(15, 8))
	for _, weights := range [][]uint32{{1, 1}, {90, 10}, {100, 1, 0}, {0, 0, 0}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {math.MaxUint32, 1 << 31, 1 << 30}} {
		var candidates []loadbalance.Candidate
		var sum float64
		for _, w := range weights {
			candidates = append(candidates, loadbalance.Candidate{Geo: "ie", Weight: w})
			sum += float64(w)
		}
		const draws = 100_000
		got := make([]float64, len(weights))
		for range draws {
			i, _ := loadbalance.Of(candidates, []string{"ie"}, well, rng.Uint64())
			got[i]++
		}
		chi, freedom := 0.0, -1
		for i, w := range weights {
			want := draws * float64(w) / sum
			if sum == 0 {
				want = draws / float64(len(weights))
			}
			if want == 0 {
				if got[i] != 0 {
					t.Errorf("%v: the standby was chosen %.0f times", weights, got[i])
				}
				continue
			}
			chi += (got[i] - want) * (got[i] - want) / want
			freedom++
		}
		if chi > limits[freedom] {
			t.Errorf("%v: chosen %v times, chi-square %.2f with %d degrees of freedom, at most %.2f", weights, got, chi, freedom, limits[freedom])
		}
	}
}

// FuzzOf holds what any choice must be: a cluster that is there, and a healthy one if any is.
func FuzzOf(f *testing.F) {
	f.Add(uint64(0), []byte{0, 1, 2, 3})
	f.Add(uint64(math.MaxUint64), []byte{255, 255, 8, 9, 10, 64})
	f.Fuzz(func(t *testing.T, draw uint64, shape []byte) {
		geos := []string{"", "ie", "geo-eu", "us"}
		var candidates []loadbalance.Candidate
		var states []loadbalance.State
		for _, b := range shape {
			candidates = append(candidates, loadbalance.Candidate{Geo: geos[b&3], Default: b&4 != 0, Weight: uint32(b >> 5)})
			states = append(states, loadbalance.State(b>>3&3%3))
		}
		best := loadbalance.Absent
		for _, s := range states {
			best = max(best, s)
		}
		got, reason := loadbalance.Of(candidates, []string{"ie", "geo-eu"}, func(i int) loadbalance.State { return states[i] }, draw)
		switch {
		case best == loadbalance.Absent:
			if got != -1 {
				t.Fatalf("chose %d of none", got)
			}
		case got < 0 || states[got] != best:
			t.Fatalf("chose %d of %v, the best are %d", got, states, best)
		case (reason == loadbalance.Unhealthy) != (best == loadbalance.Sick):
			t.Fatalf("the reason is %s where the best are %d", reason, best)
		}
	})
}
