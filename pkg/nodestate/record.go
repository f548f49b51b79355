package nodestate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/neardns/neardns/pkg/atomicfile"
)

// record is one JSON file about the node. what names it in errors.
type record[T any] struct {
	what    string
	durable bool // must survive a power cut
}

// read returns the zero value, ok false and no error if there is no file.
func (r record[T]) read(path string) (v T, ok bool, err error) {
	var none T
	data, err := atomicfile.Read(path, MaxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return none, false, nil
	}
	if err != nil {
		return none, false, fmt.Errorf("read %s: %w", r.what, err)
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return none, false, fmt.Errorf("%s %s: %w", r.what, path, err)
	}
	return v, true, nil
}

func (r record[T]) write(path string, v T) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", r.what, err)
	}
	o := Options(0o644)
	o.Durable = r.durable
	if err := atomicfile.Write(path, append(data, '\n'), o); err != nil {
		return fmt.Errorf("write %s: %w", r.what, err)
	}
	return nil
}

// remove succeeds when there is no file.
func (r record[T]) remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", r.what, err)
	}
	return nil
}
