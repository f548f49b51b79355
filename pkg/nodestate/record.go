package nodestate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/neardns/neardns/pkg/atomicfile"
)

// Record is a JSON file about the node that has one value.
type Record[T any] struct {
	Path    string
	what    string // what errors call the file's contents
	durable bool   // Write syncs the file to disk, so that it survives a power cut
}

// Read returns the value in the file. If there is no file, it returns the zero value, ok false and no error.
func (r Record[T]) Read() (v T, ok bool, err error) {
	var none T
	data, err := atomicfile.Read(r.Path, MaxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return none, false, nil
	}
	if err != nil {
		return none, false, fmt.Errorf("read %s: %w", r.what, err)
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return none, false, fmt.Errorf("%s %s: %w", r.what, r.Path, err)
	}
	return v, true, nil
}

// Write replaces the file. Other programs see its old or its new contents, never a part.
func (r Record[T]) Write(v T) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", r.what, err)
	}
	o := Options(0o644)
	o.Durable = r.durable
	if err := atomicfile.Write(r.Path, append(data, '\n'), o); err != nil {
		return fmt.Errorf("write %s: %w", r.what, err)
	}
	return nil
}

// Remove removes the file. It succeeds if there is none.
func (r Record[T]) Remove() error {
	if err := os.Remove(r.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", r.what, err)
	}
	return nil
}
