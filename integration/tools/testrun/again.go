package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// mostAgain is how many failed tests may be tried again. More of them are no matter of a busy machine (see robbed).
const mostAgain = 3

// tryAgain runs each failed test o.again times more, by itself, on a machine that has become quiet. One that passes each time
// counts as passed and is named as unsteady in the sum. A race, a panic, a time limit or a leak is a fault however rare.
func tryAgain(ctx context.Context, o options, r *report, stolen float64) error {
	failed := r.again()
	if o.again == 0 || len(failed) > mayBeTried(stolen) {
		return nil
	}
	for _, t := range failed {
		args := []string{"test", "-count", strconv.Itoa(o.again), "-p", "1", "-timeout", o.timeout.String(), "-run", "^" + regexp.QuoteMeta(t.name) + "$"}
		if o.race {
			args = append(args, "-race")
		}
		r.printf("again %s %s, %d times by itself\n", short(t.pkg), t.name, o.again)
		text, err := goCommand(ctx, append(args, t.pkg)...).CombinedOutput()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			r.printf("FAIL  %s %s, again\n%s", short(t.pkg), t.name, tail(strings.SplitAfter(string(text), "\n")))
			continue
		}
		r.forgive(t, fmt.Sprintf("failed among the others, then passed %d of %d", o.again, o.again))
	}
	return nil
}

// again lists the failed tests, those without a parent, that may be tried again; all or none of a package.
func (r *report) again() []*test {
	var out []*test
	for _, t := range r.order {
		if t.result == "fail" && !strings.Contains(t.name, "/") && !slices.ContainsFunc(r.order, func(o *test) bool { return o.pkg == t.pkg && o.grave }) {
			out = append(out, t)
		}
	}
	return out
}

// forgive takes a test's failure back, and that of what is below it.
func (r *report) forgive(t *test, why string) {
	r.unsteady = append(r.unsteady, fmt.Sprintf("%s %s: %s", short(t.pkg), t.name, why))
	for _, o := range r.order {
		if o.pkg == t.pkg && o.result == "fail" && (o.name == t.name || strings.HasPrefix(o.name, t.name+"/")) {
			o.result = "pass"
		}
	}
}
