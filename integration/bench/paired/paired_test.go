package paired

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// The ranks are those of the tables in textbooks on the sign test.
func TestRank(t *testing.T) {
	for _, tc := range []struct {
		n, k       int
		confidence float64
	}{
		{1, 1, 0}, {5, 1, 0.9375}, {6, 1, 0.96875}, {8, 1, 0.9922}, {9, 2, 0.9609}, {12, 3, 0.9614}, {15, 4, 0.9648}, {21, 6, 0.9734}, {25, 8, 0.9567},
	} {
		if k, confidence := rank(tc.n); k != tc.k || math.Abs(confidence-tc.confidence) > 1e-4 {
			t.Errorf("%d values: rank %d, confidence %.4f; want %d, %.4f", tc.n, k, confidence, tc.k, tc.confidence)
		}
	}
}

func TestRatios(t *testing.T) {
	a := []float64{2, 4, 6, 8, 10, 12, 14, 16, 100, 0, 5}
	b := []float64{1, 2, 3, 4, 5, 6, 7, 8, 10, 1, math.NaN()}
	want := Estimate{Median: 2, Low: 2, High: 2, Confidence: 1 - 20.0/512, N: 9}
	testutil.Equal(t, "ratios", want, Ratios(a, b))
	if got := Ratios(nil, nil); got.N != 0 || !math.IsNaN(got.Median) {
		t.Errorf("of nothing: %+v", got)
	}
	testutil.Equal(t, "median of four", 2.5, Median([]float64{4, 1, 3, 2}).Median)
}

// The interval holds the true median as often as it promises, also of a distribution with a long tail.
func TestCoverage(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const runs = 20000
	for _, n := range []int{9, 12, 21} {
		held := 0
		var e Estimate
		for range runs {
			values := make([]float64, n)
			for i := range values {
				values[i] = math.Exp(3 * r.NormFloat64()) // median 1, a long tail
			}
			if e = Median(values); e.Low <= 1 && 1 <= e.High {
				held++
			}
		}
		if got := float64(held) / runs; math.Abs(got-e.Confidence) > 0.01 {
			t.Errorf("%d values: held in %.3f of the runs, %.3f was promised", n, got, e.Confidence)
		}
	}
}

func TestString(t *testing.T) {
	testutil.Equal(t, "text", "1.23 [0.50, 1234]", Estimate{Median: 1.234, Low: 0.5, High: 1234}.String())
}
