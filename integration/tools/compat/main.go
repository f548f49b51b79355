// Command compat takes what a run's tests recorded of the compatibility tables into integration/compat/results, and writes
// the tables of docs/reference/compatibility.md, docs/project/hosts.md and fleet/docs/placement.md again. It is what `make compat` runs, in
// the repository's folder.
//
//	compat [FILE...]           takes the records in the files (logs will do; bin/compat/records without any) and removes that one
//	compat -check [FILE...]    writes nothing; exits with 1 where the records show anything but what the tables say
//
// It exits with 1 also where a cell fails: the table then reports it.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/neardns/neardns/integration/compat"
)

const (
	records = "bin/compat/records"
	results = "integration/compat/results"
)

func main() {
	check := flag.Bool("check", false, "compare only")
	flag.Parse()
	if err := run(*check, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "compat:", err)
		os.Exit(1)
	}
}

func run(check bool, from []string) error {
	r := compat.Run{Day: time.Now().UTC().Format(time.DateOnly)}
	own := len(from) == 0
	if own {
		from = []string{records}
	}
	for _, name := range from {
		if err := read(&r, name); err != nil {
			return err
		}
	}
	names, err := compat.Names()
	if err != nil {
		return err
	}
	var faults []string
	for _, name := range names {
		more, err := table(&r, name, check)
		if err != nil {
			return err
		}
		faults = append(faults, more...)
	}
	if own && !check {
		if err := os.Remove(records); err != nil { // taken in; the next run begins again
			return err
		}
	}
	fmt.Printf("%d records\n", r.Len())
	if len(faults) > 0 {
		return fmt.Errorf("%s", strings.Join(faults, "\n  "))
	}
	return nil
}

func read(r *compat.Run, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("%w: run the tests first, such as make test-runtimes", err)
	}
	defer func() { _ = f.Close() }()
	return r.Read(f)
}

// table brings one table up to date, or compares it, and returns what is wrong with it.
func table(r *compat.Run, name string, check bool) (faults []string, err error) {
	t, err := compat.Load(name)
	if err != nil {
		return nil, err
	}
	ran, err := r.Results(t)
	if err != nil {
		return nil, err
	}
	known, err := compat.ReadResults(results, name)
	if err != nil {
		return nil, err
	}
	if check {
		return compat.Compare(t, known, ran), nil
	}
	known = compat.Merge(t, known, ran)
	for _, k := range known {
		if k.Result == compat.Fail {
			faults = append(faults, fmt.Sprintf("table %s: %q, %s: FAILS", name, k.Row, k.Column))
		}
	}
	if err := compat.WriteResults(results, name, known); err != nil {
		return nil, err
	}
	return faults, compat.Draw(t.Page, name, compat.Render(t, known))
}
