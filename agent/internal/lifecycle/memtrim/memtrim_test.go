package memtrim

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/testutil"
)

// one is an area as Linux 6.18 shows it, with fewer lines.
func one(head, anonymous, locked string) string {
	return head + "\nSize:               2048 kB\nRss:                1024 kB\nAnonymous:             " + anonymous +
		" kB\nSwap:                  0 kB\nLocked:                " + locked + " kB\nTHPeligible:           0\nVmFlags: rd ex mr mw me sd \n"
}

func TestAreas(t *testing.T) {
	const file = "/usr/bin/a program"
	code := "00401000-00601000 r-xp 00001000 fe:00 262197                             " + file
	want := []area{{0x401000, 0x601000, 1 << 20}}
	for name, c := range map[string]struct {
		smaps string
		want  []area
	}{
		"code":                         {one(code, "0", "0"), want},
		"constants":                    {one(strings.Replace(code, "r-xp", "r--p", 1), "0", "0"), want},
		"data":                         {one(strings.Replace(code, "r-xp", "rw-p", 1), "0", "0"), nil},
		"shared":                       {one(strings.Replace(code, "r-xp", "r--s", 1), "0", "0"), nil},
		"a tracer wrote into it":       {one(code, "4", "0"), nil},
		"locked":                       {one(code, "0", "2048"), nil},
		"a number that is none":        {one(code, "?", "0"), nil},
		"another file":                 {one(code+"s", "0", "0"), nil},
		"replaced since":               {one(code+" (deleted)", "0", "0"), nil},
		"no file":                      {one("c000000000-c000400000 rw-p 00000000 00:00 0 ", "0", "0"), nil},
		"the second of two":            {one(strings.Replace(code, "r-xp", "rw-p", 1), "0", "0") + one(code, "0", "0"), want},
		"not to its end":               {strings.TrimSuffix(one(code, "0", "0"), "VmFlags: rd ex mr mw me sd \n"), nil},
		"an end before its beginning":  {one(strings.Replace(code, "00601000", "00400000", 1), "0", "0"), nil},
		"what ended before says no":    {one(code, "4", "0") + one(code, "0", "0"), want},
		"what ended before says no, 2": {one(code, "0", "0") + one(code, "4", "0"), want},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Equal(t, "areas", c.want, areas(c.smaps, file), cmp.AllowUnexported(area{}))
		})
	}
}

// FuzzAreas: whatever the text is, an area has a beginning before its end.
func FuzzAreas(f *testing.F) {
	f.Add(one("00401000-00601000 r-xp 00001000 fe:00 262197    /bin/a", "0", "0"), "/bin/a")
	f.Add("-\n:\n", "")
	f.Fuzz(func(t *testing.T, smaps, file string) {
		for _, a := range areas(smaps, file) {
			if a.start >= a.end {
				t.Errorf("%+v", a)
			}
		}
	})
}

// TestSettle: the process goes on with what it has left, and that is less than before.
func TestSettle(t *testing.T) {
	before := rssFile(t)
	file, err := Settle()
	testutil.Must(t, err)
	after := rssFile(t)
	if file <= 0 || after >= before {
		t.Errorf("gave back %d bytes; %d bytes of files are resident, %d before", file, after, before)
	}
	if again, err := Settle(); err != nil || again <= 0 {
		t.Errorf("a second time: %d, %v", again, err)
	}
}

// rssFile is how many bytes of files are resident.
func rssFile(t *testing.T) int64 {
	t.Helper()
	_, rest, _ := strings.Cut(testutil.ReadFile(t, "/proc/self/status"), "RssFile:")
	n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	testutil.Must(t, err)
	return n << 10
}
