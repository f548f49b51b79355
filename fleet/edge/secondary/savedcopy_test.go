package secondary

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestDiskBack: while the disk takes nothing, the file of before keeps its time, since a restart shows the zone's age by it; when there is
// room again, the zone is saved without a change.
func TestDiskBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder := filepath.Join(t.TempDir(), "state")
		file := filepath.Join(folder, "z.zone")
		p, s := &primary{now: version(1, "a")}, &served{}
		c := New(quiet, zone, file, p, s.serve)
		defer run(t, c)()
		sleep(3 * time.Second)
		before, err := os.Stat(file)
		testutil.Must(t, err)
		// A file in place of the folder makes each write fail, as on a full disk.
		testutil.Must(t, os.Rename(folder, folder+".away"))
		testutil.Must(t, os.WriteFile(folder, nil, 0o600))
		p.set(func(p *primary) { p.now = version(2, "b") })
		sleep(5 * time.Second)
		s.check(t, "on a full disk", version(2, "b"))
		testutil.Must(t, errors.Join(os.Remove(folder), os.Rename(folder+".away", folder)))
		if at, err := os.Stat(file); err != nil || !at.ModTime().Equal(before.ModTime()) {
			t.Errorf("%v, %v, want %v", at.ModTime(), err, before.ModTime())
		}
		c.touch()
		if at, err := os.Stat(file); err != nil || !at.ModTime().Equal(before.ModTime()) {
			t.Errorf("the file of before says %v, not %v", at.ModTime(), before.ModTime())
		}
		sleep(2 * touchRest)
		if data, err := os.ReadFile(file); err != nil || !strings.Contains(string(data), "b."+zone) {
			t.Errorf("not saved after the disk had room again: %v\n%s", err, data)
		}
	})
}

// TestFile: a restart serves what was kept, at its age; a file that is damaged is none.
func TestFile(t *testing.T) { synctest.Test(t, testFile) }

func testFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sub", "z.zone")
	p, s := &primary{now: append(version(1, "a"), rr(`t.`+zone+` 60 IN TXT "quote \" semicolon ; backslash \\ \007" "two"`), rr("u."+zone+" 60 IN TYPE65280 \\# 2 abcd"))}, &served{}
	c := New(quiet, zone, file, p, s.serve)
	stop := run(t, c)
	synctest.Wait() // the first look
	stop()          // saves
	old := time.Now().Add(-3 * time.Hour)
	testutil.Must(t, os.Chtimes(file, old, old))
	again := &served{}
	c = New(quiet, zone, file, &primary{fails: errors.New("away")}, again.serve)
	again.check(t, "after a restart", p.now)
	if age := time.Since(c.State().Current); age < 3*time.Hour || age > 3*time.Hour+time.Minute {
		t.Errorf("age %s, want three hours", age)
	}
	whole := testutil.ReadFile(t, file)
	for name, text := range map[string]string{"cut": whole[:len(whole)/2], "empty": "", "of another zone": strings.ReplaceAll(whole, zone, "other.example."),
		"not a zone": "hello\n" + lastLine + "\n", "an include": "$INCLUDE /etc/passwd\n" + whole} {
		testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
		bad := &served{}
		if c := New(quiet, zone, file, p, bad.serve); bad.n != 0 || c.State().Records != 0 {
			t.Errorf("%s: it was served", name)
		}
	}
	// A time that is yet to come, after a clock was set back, is no age.
	testutil.Must(t, os.WriteFile(file, []byte(whole), 0o600))
	testutil.Must(t, os.Chtimes(file, time.Time{}, time.Now().Add(48*time.Hour)))
	if c := New(quiet, zone, file, p, new(served).serve); time.Since(c.State().Current) < 0 || time.Since(c.State().Current) > time.Minute {
		t.Errorf("age %s of a file from the future", time.Since(c.State().Current))
	}
	// A folder that cannot be written keeps no client from being served.
	s = &served{}
	c = New(quiet, zone, filepath.Join("/proc/nowhere", "z.zone"), p, s.serve)
	stop = run(t, c)
	synctest.Wait() // the first look
	stop()
	s.check(t, "without a disk", p.now)
}

// FuzzParse: a file is refused, or its records are counted right.
func FuzzParse(f *testing.F) {
	var b strings.Builder
	testutil.Must(f, print(&b, version(1, "a")))
	f.Add(b.String())
	f.Fuzz(func(t *testing.T, text string) {
		list, err := parse(zone, text)
		if err != nil {
			return
		}
		r, err := index(zone, list)
		if err != nil {
			return
		}
		if n := len(r.list()); n != r.count {
			t.Fatalf("%d records, counted %d", n, r.count)
		}
	})
}
