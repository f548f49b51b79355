package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	good := cell{Row: "at-once", Server: "BIND", Bar: "0 lost", Said: "50 clusters: lost 0"}
	bad := cell{Row: "at-once", Server: "Knot", Bar: "0 lost", Said: "50 clusters: lost 1"}
	good.wrong("round 1", nil, nil)
	bad.wrong("round 1", []string{"app.z. A 192.0.2.1"}, nil)
	bad.wrong("round 2", []string{"app.z. A 192.0.2.2"}, []string{"x"})
	r := result{Cells: []cell{good, bad}}
	if (result{Cells: []cell{good}}).good() == false || r.good() {
		t.Error("a missed bar does not count")
	}
	if bad.Figures["lost"] != 2 || bad.Figures["left over"] != 1 {
		t.Errorf("figures %v", bad.Figures)
	}
	var table bytes.Buffer
	r.table(&table)
	for _, want := range []string{
		"| at-once | 0 lost | BIND | 50 clusters: lost 0 | yes | 0 |\n",
		"| at-once | 0 lost | Knot | 50 clusters: lost 1 | NO | 0 |\n",
		"at-once, Knot: round 1: lost 1 [app.z. A 192.0.2.1], left over 0 []\n",
	} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, table.String())
		}
	}
	var file bytes.Buffer
	var back result
	if err := r.write(&file); err != nil || json.Unmarshal(file.Bytes(), &back) != nil || len(back.Cells) != 2 || back.Cells[1].Figures["lost"] != 2 {
		t.Errorf("%v: %s", err, file.String())
	}
}

func TestStatusLog(t *testing.T) {
	var l statusLog
	for _, part := range []string{`{"host":"a.","programmed":`, "false,\"reason\":\"Contended\"}\nnoise\n", `{"host":"a.","programmed":true}` + "\n", `{"zone":"z.","programmed":true}` + "\n"} {
		if _, err := l.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if s := l.of("a."); !s.Programmed || s.Reason != "" || l.count() != 3 || !l.of("z.").Programmed {
		t.Errorf("%+v, %d lines", s, l.count())
	}
}
