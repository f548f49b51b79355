// Package paired sums up measurements of two subjects that were taken in turn, round by round. Each round gives one ratio,
// so whatever slows the machine for a while slows both parts of it; the median of the ratios and its interval assume
// nothing about how they are distributed.
//
// It is a leaf and computes only; nothing in it measures.
package paired

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Rounds is how many rounds a comparison takes by default. Least is the least number that a median is judged by:
// of fewer values no interval holds it with 95 %.
const (
	Rounds = 9
	Least  = 6
)

// Estimate is a median and the interval that holds the true one with the given confidence.
type Estimate struct {
	Median     float64 `json:"median"`
	Low        float64 `json:"low"`
	High       float64 `json:"high"`
	Confidence float64 `json:"confidence"` // at least 0.95 from six values on
	N          int     `json:"n"`
}

// Ratios divides a by b, pair by pair, and estimates the median ratio. A pair of which a part is missing (zero or less, or
// not a number) is left out, which N shows.
func Ratios(a, b []float64) Estimate {
	var ratios []float64
	for i := range min(len(a), len(b)) {
		if a[i] > 0 && b[i] > 0 {
			ratios = append(ratios, a[i]/b[i])
		}
	}
	return Median(ratios)
}

// Median estimates the median of values by their order: of n independent ones, the k-th smallest and the k-th largest hold
// it unless fewer than k fell on one side of it, which is a matter of coin flips alone.
func Median(values []float64) Estimate {
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	n := len(sorted)
	if n == 0 {
		nan := math.NaN()
		return Estimate{Median: nan, Low: nan, High: nan}
	}
	k, confidence := rank(n)
	return Estimate{Median: middle(sorted), Low: sorted[k-1], High: sorted[n-k], Confidence: confidence, N: n}
}

// rank is the largest k for which the k-th values from both ends hold the median with 95 % confidence, and that
// confidence. Under six values there is none, and k is 1.
func rank(n int) (k int, confidence float64) {
	const want = 0.95
	// Probability that at most k-1 of n values fall below the median, summed up term by term.
	term := math.Pow(0.5, float64(n))
	tail := term
	k, confidence = 1, 1-2*tail
	for {
		term *= float64(n-k+1) / float64(k)
		tail += term
		if 1-2*tail < want || 2*(k+1) > n+1 {
			return k, confidence
		}
		k++
		confidence = 1 - 2*tail
	}
}

func middle(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// Middle is the middle value; of an even number of values, the greater of the two in the middle. There must be at least one.
func Middle[T cmp.Ordered](values []T) T {
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}

// String is the median with its interval.
func (e Estimate) String() string {
	return fmt.Sprintf("%s [%s, %s]", number(e.Median), number(e.Low), number(e.High))
}

// number prints three significant digits, and never an exponent.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
