package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type recordBuffer struct{ bytes.Buffer }

func (*recordBuffer) Close() error { return nil }

func TestStream(t *testing.T) {
	const whole = `{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Output":"compat: {\"table\":\"x\"}\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    compat: no record\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}
`
	var out bytes.Buffer
	var records recordBuffer
	s := newStream(&out)
	s.records = &records
	if err := s.copy(strings.NewReader(whole + "a line of the kernel's\n{\"Action\":\"end-of-tests\"}\n")); err != nil {
		t.Fatal(err)
	}
	s.abort("never")
	if d := cmp.Diff(whole+"a line of the kernel's\n", out.String()); d != "" {
		t.Errorf("passed on (-want +got):\n%s", d)
	}
	if !s.done || s.ended != 1 || records.String() != "compat: {\"table\":\"x\"}\n" {
		t.Errorf("done %v, %d packages, records %q", s.done, s.ended, records.String())
	}
}

// A guest that dies ends its package as failed, whatever it had begun to say.
func TestStreamAbort(t *testing.T) {
	var out bytes.Buffer
	s := newStream(&out)
	if err := s.copy(strings.NewReader(`{"Action":"start","Package":"p"}` + "\n" + `{"Action":"outp`)); err != nil {
		t.Fatal(err)
	}
	if s.done || s.ended != 0 {
		t.Errorf("done %v, %d packages", s.done, s.ended)
	}
	s.abort("too late")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := []string{`{"Action":"output","Package":"p","Output":"too late\n"}`, "", `{"Action":"fail","Package":"p"}`}
	if d := cmp.Diff(want, lines[len(lines)-3:]); d != "" {
		t.Errorf("the end (-want +got):\n%s", d)
	}
}

func TestFailures(t *testing.T) {
	const events = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p","Test":"TestA/x/y.z"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p","Test":"TestAB"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"fail","Package":"p"}
`
	var out bytes.Buffer
	f := failures{to: &out}
	for i := range events { // in the smallest of pieces
		if _, err := f.Write([]byte(events[i : i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff([]string{"TestA/x/y.z", "TestAB"}, f.leaves()); d != "" || out.String() != events {
		t.Errorf("(-want +got):\n%s%s", d, out.String())
	}
	if got, want := exactly("TestA/x/y.z"), `^TestA$/^x$/^y\.z$`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
