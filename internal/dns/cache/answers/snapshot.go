package answers

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"time"

	"github.com/neardns/neardns/internal/dns/msg"
)

// A snapshot, all numbers in network order:
//
//	header   "neardnsC", version (2 bytes), wall clock in ms (8, not read by Restore), boot ID (16), time since boot in ms (8)
//	space    1, id (8)
//	entry    2, flags (1), class (1), queue (1), TTL (4), age in ms (8), size (2), message
//	end      0, entries (4), CRC-32C of all before it (4)
//
// An entry belongs to the last space before it. Its queue is 1 if Restore puts it into the main queue, else 0. Its message has a
// question section with one record, in lower case, and no OPT record.
const (
	snapshotMagic   = "neardnsC"
	snapshotVersion = 1
	headerBytes     = len(snapshotMagic) + 2 + 8 + 16 + 8
	entryBytes      = 1 + 1 + 1 + 4 + 8 + 2

	tagEnd   = 0
	tagSpace = 1
	tagEntry = 2
)

// ErrSnapshot means that the data is not a complete snapshot of this version. Nothing of it was restored.
var ErrSnapshot = errors.New("not a snapshot of the cache")

// Boot is a clock that cannot be set: the boot ID of the machine, and the time since that boot. The zero value means unknown.
type Boot struct {
	ID    [16]byte
	Since time.Duration // suspended time included, as CLOCK_BOOTTIME
}

// Snapshot writes the entries that another process can use, in about 7 ms for 50,000 entries. The store may be used meanwhile: each lock
// is held only to list its shard. boot is the current time; from it Restore computes how long ago that was, even if the wall clock was
// changed.
func (s *Store) Snapshot(w io.Writer, boot Boot) error {
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	out := bufio.NewWriterSize(io.MultiWriter(w, sum), 64<<10)
	now := s.Now()
	b := append(make([]byte, 0, headerBytes), snapshotMagic...)
	b = binary.BigEndian.AppendUint16(b, snapshotVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(time.Now().UnixMilli()))
	b = append(b, boot.ID[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(boot.Since.Milliseconds()))
	_, _ = out.Write(b) // a bufio.Writer keeps its error for Flush
	count := 0
	var entries []*Entry
	var main []bool
	for _, sp := range s.all() {
		b = append(b[:0], tagSpace)
		_, _ = out.Write(binary.BigEndian.AppendUint64(b, sp.id))
		for i := range sp.shards {
			for c := range classes {
				entries, main = sp.shards[i].entries(c, entries[:0], main[:0])
				for n, e := range entries {
					if sp.dead(e, now) {
						continue
					}
					queue := byte(0)
					if main[n] || e.uses.Load() > 0 {
						queue = 1
					}
					b = append(b[:0], tagEntry, e.flags, byte(e.class), queue)
					b = binary.BigEndian.AppendUint32(b, e.ttl)
					b = binary.BigEndian.AppendUint64(b, uint64(max(0, (int64(now)-e.stored)/int64(time.Millisecond))))
					b = binary.BigEndian.AppendUint16(b, e.size)
					_, _ = out.Write(b)
					_, _ = out.WriteString(e.blob[:e.size])
					count++
				}
			}
		}
	}
	_ = out.WriteByte(tagEnd)
	_, _ = out.Write(binary.BigEndian.AppendUint32(nil, uint32(count)))
	if err := out.Flush(); err != nil { // the sum is of what was flushed
		return fmt.Errorf("write snapshot: %w", err)
	}
	if _, err := w.Write(sum.Sum(nil)); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

// Restored is the result of a Restore.
type Restored struct {
	Entries int           // number of entries that were put into the store
	Stale   int           // how many of these are past their TTL
	Age     time.Duration // of the snapshot
	// Unknown: the snapshot is from another boot, or its age cannot be computed. Nothing was restored.
	Unknown bool
}

// Restore puts the entries of a snapshot into the store, aged by the time that has passed since, unless the store has a newer entry. If
// the snapshot is not complete, nothing is restored. Restore reads at most the store's limit plus 1 MiB.
//
// The time that has passed comes from the boot's clock, which cannot be set. A snapshot from another boot is not used: only the wall clock
// could tell how long the machine was off, and it may have stood still meanwhile.
func (s *Store) Restore(r io.Reader, boot Boot) (Restored, error) {
	in := &summed{r: bufio.NewReaderSize(io.LimitReader(r, s.limit.Load()+1<<20), 64<<10), sum: crc32.New(crc32.MakeTable(crc32.Castagnoli))}
	found, then, err := in.snapshot()
	if err != nil {
		return Restored{}, err
	}
	passed, known := elapsed(then, boot)
	done := Restored{Age: passed, Unknown: !known}
	if !known {
		return done, nil
	}
	now := s.Now()
	for _, f := range found {
		sp := s.Space(f.space)
		e := f.entry
		k := e.Key()
		e.hash, e.stored = k.Hash(s.seed), int64(now)-int64(f.age)-int64(passed)
		sh := sp.shard(e.hash)
		sh.mu.RLock()
		newer := sh.index[e.class][e.hash]
		sh.mu.RUnlock()
		if newer != nil && newer.stored >= e.stored {
			continue
		}
		sp.put(e, f.proven)
		done.Entries++
		if e.Left(now) <= 0 {
			done.Stale++
		}
	}
	return done, nil
}

// found is an entry of a snapshot that was read, but not yet put into a space.
type found struct {
	space  uint64
	entry  *Entry
	age    time.Duration
	proven bool
}

// summed reads a snapshot and computes its checksum.
type summed struct {
	r   *bufio.Reader
	sum hash.Hash32
	buf [msg.MaxSize]byte
}

// take reads n bytes. The slice is valid until the next call.
func (in *summed) take(n int) ([]byte, error) {
	if _, err := io.ReadFull(in.r, in.buf[:n]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("%w: it ends too early", ErrSnapshot)
		}
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	_, _ = in.sum.Write(in.buf[:n]) // a hash takes everything
	return in.buf[:n], nil
}

// snapshot reads a whole snapshot. It returns its entries, and the boot's clock when it was written.
func (in *summed) snapshot() (all []found, then Boot, err error) {
	b, err := in.take(headerBytes)
	if err != nil {
		return nil, Boot{}, err
	}
	if string(b[:len(snapshotMagic)]) != snapshotMagic {
		return nil, Boot{}, fmt.Errorf("%w: it begins with %q", ErrSnapshot, b[:len(snapshotMagic)])
	}
	b = b[len(snapshotMagic):]
	if v := binary.BigEndian.Uint16(b); v != snapshotVersion {
		return nil, Boot{}, fmt.Errorf("%w: it is of version %d, not %d", ErrSnapshot, v, snapshotVersion)
	}
	then = Boot{ID: [16]byte(b[10:26]), Since: time.Duration(binary.BigEndian.Uint64(b[26:])) * time.Millisecond}
	space, begun := uint64(0), false
	for {
		tag, err := in.take(1)
		if err != nil {
			return nil, Boot{}, err
		}
		switch tag[0] {
		case tagSpace:
			if b, err = in.take(8); err != nil {
				return nil, Boot{}, err
			}
			space, begun = binary.BigEndian.Uint64(b), true
		case tagEntry:
			f, err := in.entry()
			if err == nil && !begun {
				err = fmt.Errorf("%w: an entry comes before the first space", ErrSnapshot)
			}
			if err != nil {
				return nil, Boot{}, err
			}
			f.space = space
			all = append(all, f)
		case tagEnd:
			return all, then, in.end(len(all))
		default:
			return nil, Boot{}, fmt.Errorf("%w: unknown tag %d", ErrSnapshot, tag[0])
		}
	}
}

func (in *summed) entry() (found, error) {
	b, err := in.take(entryBytes)
	if err != nil {
		return found{}, err
	}
	e := &Entry{flags: b[0], class: Class(b[1]), ttl: binary.BigEndian.Uint32(b[3:])}
	f := found{entry: e, proven: b[2] == 1}
	age := binary.BigEndian.Uint64(b[7:])
	// At most a hundred years, so that no sum with it can overflow.
	if !msg.ValidFlags(e.flags) || e.class >= classes || b[2] > 1 || age > 100*365*24*3600*1000 {
		return found{}, fmt.Errorf("%w: an entry has invalid fields", ErrSnapshot)
	}
	f.age = time.Duration(age) * time.Millisecond
	if b, err = in.take(int(binary.BigEndian.Uint16(b[15:]))); err != nil {
		return found{}, err
	}
	if err := e.fill(b); err != nil {
		return found{}, fmt.Errorf("%w: an entry holds no answer", ErrSnapshot)
	}
	return f, nil
}

func (in *summed) end(entries int) error {
	b, err := in.take(4)
	if err != nil {
		return err
	}
	if n := binary.BigEndian.Uint32(b); n != uint32(entries) {
		return fmt.Errorf("%w: it has %d entries, but its end counts %d", ErrSnapshot, entries, n)
	}
	want := in.sum.Sum32()
	if b, err = in.take(4); err != nil {
		return err
	}
	if binary.BigEndian.Uint32(b) != want {
		return fmt.Errorf("%w: its checksum is wrong", ErrSnapshot)
	}
	return nil
}

// century is the maximum for times from a snapshot, so that no sum with them overflows.
const century = 100 * 365 * 24 * time.Hour

// elapsed returns how much time has passed from then to now. It returns false if that is unknown.
func elapsed(then, now Boot) (time.Duration, bool) {
	if then.ID != now.ID || then.ID == ([16]byte{}) {
		return 0, false
	}
	d := now.Since - then.Since
	return d, d >= 0 && d < century
}
