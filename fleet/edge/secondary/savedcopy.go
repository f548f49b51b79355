package secondary

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/tick"
)

// lastLine is the last line of a zone's file. If it is missing, the file is incomplete and is not used.
const lastLine = "; the end of the zone"

// keep saves the zone after each change, and after each minute without a change updates the file's modification time, until ctx ends. Then
// it saves the zone once more.
func (c *Copy) keep(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			c.save()
			return
		case <-c.changed:
			c.save()
			tick.Pause(ctx, saveRest)
		case <-time.After(touchRest):
			c.save() // for the case that an earlier try failed
			c.touch()
		}
	}
}

// save writes the zone's file, unless it already has the served records or there are none.
func (c *Copy) save() {
	c.mu.Lock()
	has, current, skip := c.records, c.current, c.skip
	c.mu.Unlock()
	if has.soa == nil || skip {
		return
	}
	options := atomicfile.Options{Mode: 0o600, Durable: true, Folder: true}
	err := atomicfile.Stream(c.file, options, func(w io.Writer) error { return print(w, has.list()) })
	if err == nil && !current.IsZero() {
		err = os.Chtimes(c.file, time.Time{}, current)
	}
	if err != nil {
		c.log.Error("cannot save the zone to disk; will retry; a restart before that begins with what the file has, if there is one",
			"file", c.file, "err", err)
		return
	}
	c.mu.Lock()
	c.skip = c.skip || c.records.soa == has.soa
	c.mu.Unlock()
}

// touch sets the file's modification time to the time at which the primary last confirmed the records in the file. After a restart, the
// zone's age is computed from that time. If the file does not have the served records, touch does nothing.
func (c *Copy) touch() {
	c.mu.Lock()
	current, saved := c.current, c.skip
	c.mu.Unlock()
	if saved && !current.IsZero() {
		_ = os.Chtimes(c.file, time.Time{}, current) // the error only makes the zone look older after a restart
	}
}

// print writes records as a zone file (RFC 1035, section 5), with lastLine at the end.
func print(w io.Writer, list []dns.RR) error {
	b := bufio.NewWriter(w)
	for _, rr := range list {
		fmt.Fprintln(b, rr) // b keeps an error until Flush
	}
	fmt.Fprintln(b, lastLine)
	return b.Flush()
}

// load reads a zone's file. at is the file's modification time, at which its records were last current. If there is no file, load returns
// no records and no error.
func load(zone, file string) (list []dns.RR, at time.Time, err error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, at, nil
	}
	if err != nil {
		return nil, at, err
	}
	info, err := os.Stat(file)
	if err != nil {
		return nil, at, err
	}
	if list, err = parse(zone, string(data)); err != nil {
		return nil, at, err
	}
	if at = info.ModTime(); at.After(time.Now()) {
		at = time.Now() // the clock was set back since the file was written
	}
	return list, at, nil
}

// parse parses what print wrote.
func parse(zone, text string) (list []dns.RR, err error) {
	if !strings.HasSuffix(text, "\n"+lastLine+"\n") {
		return nil, errors.New("the file is cut short")
	}
	p := dns.NewZoneParser(strings.NewReader(text), zone, "")
	for rr, ok := p.Next(); ok; rr, ok = p.Next() {
		list = append(list, rr)
	}
	return list, p.Err()
}
