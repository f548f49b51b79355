package hostsfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/pkg/testutil"
)

// The two states between which the writers go.
func states() [2][]string { return [2][]string{{"10.96.0.5"}, {"10.96.0.66", "fd00:10:96::66"}} }

// writer writes the file below args[0] until it is killed, and prints a dot for each write.
func writer(args []string) error {
	f := &file{root: args[0]}
	for i := 0; ; i++ {
		if _, _, err := f.apply(context.Background(), lines(states()[i%2]...)); err != nil {
			return err
		}
		fmt.Print(".")
	}
}

// copier does what OpenShift's script does: it makes the new text next to the file, and copies it over.
func copier(args []string) error {
	root := args[0]
	path, temp := filepath.Join(root, name), filepath.Join(root, "hosts.tmp")
	for i := 0; ; i++ {
		if err := os.WriteFile(temp, []byte(with(base, lines(states()[i%2]...))), 0o644); err != nil {
			return err
		}
		cp := exec.CommandContext(context.Background(), "cp", "-f", temp, path)
		cp.Stdout = os.Stdout // it outlives a killed copier, and the pipe lasts until it ends
		if err := cp.Run(); err != nil {
			return err
		}
		fmt.Print(".")
	}
}

// seen counts what a reader met.
type seen struct {
	reads, torn, foreign int64 // torn: a text that no program wrote; foreign: of these, another program's line lacks a byte
}

// readers read the file until stop is called.
func readers(t *testing.T, path string) (stop func() seen) {
	t.Helper()
	whole := map[string]bool{base: true}
	for _, s := range states() {
		whole[with(base, lines(s...))] = true
	}
	var sum seen
	var ended atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !ended.Load() {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Error(err)
				return
			}
			sum.reads++
			if !whole[string(text)] {
				sum.torn++
				if !bytes.HasPrefix(text, []byte(base)) {
					sum.foreign++
				}
			}
		}
	})
	return func() seen {
		ended.Store(true)
		wg.Wait()
		return sum
	}
}

// pass takes a random time: it reads the file fewer than most times.
func pass(path string, most int) {
	for range rand.N(most) {
		_, _ = os.ReadFile(path)
	}
}

// killed runs a writer again and again next to a reader, and kills it with -9 at random moments.
func killed(t *testing.T, how string, kills int) (writes int, s seen) {
	t.Helper()
	root, path := newRoot(t, base)
	stop := readers(t, path)
	const life = 3000 // reads: about two writes with their waiting
	for range kills {
		cmd := helper(t, how, root)
		cmd.Stderr = nil
		out, err := cmd.StdoutPipe()
		testutil.Must(t, err)
		testutil.Must(t, cmd.Start())
		first := make([]byte, 1)
		if _, err := out.Read(first); err != nil { // it has begun
			t.Fatalf("the writer wrote nothing: %v", err)
		}
		writes++
		var killer sync.WaitGroup
		killer.Go(func() {
			pass(path, life)
			_ = cmd.Process.Kill()
		})
		rest := make([]byte, 1<<16)
		for n, err := 0, error(nil); err == nil; n, err = out.Read(rest) {
			writes += n
		}
		killer.Wait()
		_ = cmd.Wait()
	}
	s = stop()
	t.Logf("%s: %d writes, %d kills, %d reads: %d torn, %d of them without a byte of another's line", how, writes, kills, s.reads, s.torn, s.foreign)
	// The next write repairs what the killed writer left, and Remove restores the original text to the byte.
	f := &file{root: root}
	_, _, err := f.apply(t.Context(), lines("10.96.0.5"))
	if how == "writer" {
		testutil.Check(t, err)
		wantRemoved(t, root, true, "")
		testutil.WantFile(t, path, base)
		if left, _ := filepath.Glob(filepath.Join(root, "etc", ".*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
	return writes, s
}

// TestKilledWriter has writers killed amid their work next to a reader. NEARDNS_HOSTS_KILLS=1000 (make test-hosts) is the whole of it.
func TestKilledWriter(t *testing.T) {
	testutil.RequireRoot(t)
	kills, whole := 25, false
	if n, err := strconv.Atoi(os.Getenv("NEARDNS_HOSTS_KILLS")); err == nil {
		kills, whole = n, true
	}
	writes, s := killed(t, "writer", kills)
	compat.Say(t, "hosts", "the writer killed amid it", fmt.Sprintf("leaves the old or the new text, whole, each of %d times", kills))
	if s.torn > 0 {
		t.Errorf("%d of %d reads are torn", s.torn, s.reads)
	}
	if whole {
		// More writers, until there are enough writes and reads.
		for writes < 10_000 || s.reads < 1_000_000 {
			more, again := killed(t, "writer", 20)
			writes, s.reads, s.torn = writes+more, s.reads+again.reads, s.torn+again.torn
			if again.torn > 0 {
				t.Fatalf("%d of %d reads are torn", again.torn, again.reads)
			}
		}
		t.Logf("together: %d writes, %d reads, %d torn", writes, s.reads, s.torn)
	}
	// The copier's writes are not atomic: this shows that the reader would notice torn text.
	_, theirs := killed(t, "copier", max(10, kills/20))
	testutil.Eventually(t, func() error {
		if theirs.foreign == 0 {
			_, theirs = killed(t, "copier", max(10, kills/20))
		}
		return testutil.ErrorIf(theirs.foreign == 0, "cp over the file: none of %d reads is torn, so the reader sees nothing", theirs.reads)
	})
	compat.Say(t, "hosts", "a reader amid a write", fmt.Sprintf("meets the old or the new text: %d of %d reads are torn. By OpenShift's way, %d of %d are", s.torn, s.reads, theirs.foreign, theirs.reads))
}

// Another program's newer text is never lost, and ours is in it in the end.
func TestForeignWriter(t *testing.T) {
	compat.Say(t, "hosts", "how the file is mounted", "as its folder: both see what the other writes")
	compat.Say(t, "hosts", "another program's newer text", "stays")
	for _, how := range []string{"rename", "in place"} {
		t.Run(how, func(t *testing.T) {
			root, path := newRoot(t, base)
			f := &file{root: root}
			rounds := 60
			for i := range rounds {
				text := base + "192.0.2.1\tprinter-" + strconv.Itoa(i) + "\n"
				var wg sync.WaitGroup
				wg.Go(func() {
					pass(path, 300)
					if how == "rename" {
						testutil.Check(t, errors.Join(os.WriteFile(path+".theirs", []byte(text), 0o644), os.Rename(path+".theirs", path)))
						return
					}
					testutil.Check(t, os.WriteFile(path, []byte(text), 0o644))
				})
				_, _, _ = f.apply(t.Context(), lines(fmt.Sprintf("10.96.0.%d", i+1))) // it may give way for good
				wg.Wait()
				got, err := os.ReadFile(path)
				if err != nil || !strings.HasPrefix(string(got), text) {
					t.Fatalf("round %d: another's text is lost: %v\n%s", i, err, got)
				}
			}
			wantApplied(t, f, "", lines("10.96.0.5"))
			testutil.WantFile(t, path, with(base+"192.0.2.1\tprinter-"+strconv.Itoa(rounds-1)+"\n", lines("10.96.0.5")))
		})
	}
}

// Two writers write the same lines, and each of the two changes costs at most two writes.
func TestTwoWriters(t *testing.T) {
	root, path := newRoot(t, base)
	var wg sync.WaitGroup
	var writes atomic.Int64
	for _, state := range states() {
		for range 2 {
			wg.Go(func() {
				f := &file{root: root}
				for range 50 {
					written, _, err := f.apply(t.Context(), lines(state...))
					testutil.Check(t, err)
					if written {
						writes.Add(1)
					}
				}
			})
		}
		wg.Wait()
	}
	testutil.WantFile(t, path, with(base, lines(states()[1]...)))
	if n := writes.Load(); n < 2 || n > 4 {
		t.Errorf("%d writes for two changes", n)
	}
}
