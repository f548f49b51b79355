package atomicfile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrAttributes means that the new file cannot get all extended attributes of the old one, so it must not replace the old one.
var ErrAttributes = errors.New("an extended attribute cannot be kept")

// copyAttributes copies the extended attributes of the file at path to f. It does nothing if path's filesystem has none.
func copyAttributes(f *os.File, path string) error {
	names, err := attributes(path)
	if err != nil {
		return fmt.Errorf("list extended attributes of %s: %w", path, err)
	}
	for _, name := range names {
		value, err := attribute(func(b []byte) (int, error) { return unix.Lgetxattr(path, name, b) })
		if errors.Is(err, unix.ENODATA) { // the attribute was removed meanwhile
			continue
		} else if err != nil {
			return fmt.Errorf("read attribute %s of %s: %w", name, path, err)
		}
		// f may have the same value already: SELinux labels a new file by its folder. Setting a label would need another permission.
		have, err := attribute(func(b []byte) (int, error) { return unix.Fgetxattr(int(f.Fd()), name, b) })
		if err == nil && bytes.Equal(have, value) {
			continue
		}
		if err := unix.Fsetxattr(int(f.Fd()), name, value, 0); err != nil {
			return fmt.Errorf("%w: %s of %s: %w", ErrAttributes, name, path, err)
		}
	}
	return nil
}

// attributes lists the names of a file's extended attributes; none if its filesystem does not support them.
func attributes(path string) ([]string, error) {
	list, err := attribute(func(b []byte) (int, error) { return unix.Llistxattr(path, b) })
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	return strings.FieldsFunc(string(list), func(r rune) bool { return r == 0 }), err
}

// attribute calls get with an empty buffer for the size, then with a buffer of that size. It starts over if the value grows in between
// (ERANGE).
func attribute(get func([]byte) (int, error)) ([]byte, error) {
	for {
		size, err := get(nil)
		if err != nil || size == 0 {
			return nil, err
		}
		b := make([]byte, size)
		n, err := get(b)
		if errors.Is(err, unix.ERANGE) {
			continue
		}
		return b[:max(n, 0)], err
	}
}
