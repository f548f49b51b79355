package main

import "testing"

func TestStolen(t *testing.T) {
	before := parseCPU("cpu  100 10 50 1000 5 0 40 0 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
	after := parseCPU("cpu  150 10 90 2000 9 0 50 100 0 0\n")
	if before != (cpu{ran: 200}) || after != (cpu{ran: 300, stolen: 100}) {
		t.Fatalf("%+v, %+v", before, after)
	}
	if share := after.since(before); share != 0.5 {
		t.Errorf("%v of the time was stolen, want 0.5", share)
	}
	if share := before.since(after); share != 0 {
		t.Errorf("%v for a count that goes back, want 0", share)
	}
	for _, odd := range []string{"", "cpu", "cpu 1 2 3 4 5 6 7 x 9", "intr 1 2 3 4 5 6 7 8 9"} {
		if parseCPU(odd) != (cpu{}) {
			t.Errorf("%q is read as %+v", odd, parseCPU(odd))
		}
	}
	if mayBeTried(0.1) != mostAgain || mayBeTried(0.11) != mostAgainRobbed {
		t.Error("more tests may be tried again where more than a tenth was stolen, and only there")
	}
}
