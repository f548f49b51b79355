package testutil

import "testing"

func TestMetric(t *testing.T) {
	const page = `# HELP a_total of something
# TYPE a_total counter
a_total{x="1",y="2"} 3
a_total{x="2",y="2"} 4.5
a_total_more 100
b{state="answered"} 2
b{state="refused"} 7
broken x
`
	for name, want := range map[string]float64{"a_total": 7.5, "a_total_more": 100, `b{state="answered"}`: 2, "b": 9} {
		if got, err := Metric(page, name); err != nil || got != want {
			t.Errorf("%s: %v, %v; want %v", name, got, err, want)
		}
	}
	for _, bad := range []string{"c", "broken"} {
		if _, err := Metric(page, bad); err == nil {
			t.Errorf("%s passes", bad)
		}
	}
}
