package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/testutil"
)

// A guest gets the jobs one by one; its events of each are passed on when it requests the next.
func TestStream(t *testing.T) {
	const ask, end = `{"Action":"next-job"}` + "\n", `{"Action":"end-of-tests"}` + "\n"
	const p = `{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Output":"compat: {\"table\":\"x\"}\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    compat: no record\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}
a line of the kernel's
`
	const q = `{"Action":"start","Package":"q"}` + "\n"
	var out, records, reply bytes.Buffer
	share := &shares{rest: []job{{Package: "p", Run: "TestA"}, {Package: "q"}}, to: &out, records: &records}
	s := stream{shares: share, reply: &reply}
	for _, step := range []struct {
		says  string
		out   string
		ended int
	}{{ask + p, "", 0}, {ask, p, 1}, {q, p, 1}, {ask, p + q, 2}, {end, p + q, 2}} {
		testutil.Must(t, s.copy(strings.NewReader(step.says)))
		if d := cmp.Diff(step.out, out.String()); d != "" || share.ended != step.ended {
			t.Errorf("after %s: %d jobs ended, want %d; passed on (-want +got):\n%s", step.says, share.ended, step.ended, d)
		}
	}
	if d := cmp.Diff(`{"Package":"p","Run":"TestA"}`+"\n"+`{"Package":"q","Run":""}`+"\nnull\n", reply.String()); d != "" {
		t.Errorf("jobs (-want +got):\n%s", d)
	}
	if err := s.abort("never"); err != nil || !s.done || records.String() != "compat: {\"table\":\"x\"}\n" || out.String() != p+q {
		t.Errorf("%v, done %v, records %q, %s", err, s.done, records.String(), out.String())
	}
}

// A guest that dies ends its job as failed, whatever it had begun to say; another goes on with the rest.
func TestStreamAbort(t *testing.T) {
	var out, reply bytes.Buffer
	share := &shares{rest: []job{{Package: "p"}, {Package: "q"}}, to: &out}
	dies, lives := stream{shares: share, reply: &reply}, stream{shares: share, reply: &reply}
	const begun = `{"Action":"start","Package":"p"}` + "\n"
	testutil.Must(t, dies.copy(strings.NewReader(`{"Action":"next-job"}`+"\n"+begun+`{"Action":"outp`)))
	if err := dies.abort("too late"); err != nil || dies.done || share.ended != 1 {
		t.Errorf("%v, done %v, %d jobs", err, dies.done, share.ended)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := []string{strings.TrimSpace(begun), `{"Action":"outp`, `{"Action":"output","Package":"` + module + `/p","Output":"too late\n"}`, "", `{"Action":"fail","Package":"` + module + `/p"}`}
	if d := cmp.Diff(want, lines); d != "" {
		t.Errorf("the end (-want +got):\n%s", d)
	}
	if err := lives.copy(strings.NewReader(`{"Action":"next-job"}` + "\n" + `{"Action":"next-job"}` + "\n")); err != nil || share.ended != 2 {
		t.Errorf("%v, %d jobs", err, share.ended)
	}
}
