package podfile

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// tempPrefix marks files that are being written. It begins with a dot, so that nobody takes one for a pod file.
const tempPrefix = ".write-"

// writeAtomic makes path hold data, or leaves it as it was. durable also survives a power cut; state that a reboot removes
// anyway does not need it, and ADD is too frequent to pay for it.
func writeAtomic(path string, data []byte, mode fs.FileMode, durable bool) error {
	temp, err := writeTemp(path, data, mode, durable)
	if err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		os.Remove(temp)
		return err
	}
	if !durable {
		return nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// writeTemp writes a complete file beside path and returns its name. The folder is made where it is missing.
func writeTemp(path string, data []byte, mode fs.FileMode, durable bool) (name string, err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, tempPrefix+"*")
	if os.IsNotExist(err) {
		// The first ADD after a reboot comes here; afterwards the folder is there and costs nothing.
		if err = os.MkdirAll(dir, 0o755); err == nil {
			f, err = os.CreateTemp(dir, tempPrefix+"*")
		}
	}
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(data); err != nil {
		return "", err
	}
	if err = f.Chmod(mode); err != nil {
		return "", err
	}
	if durable {
		if err = f.Sync(); err != nil {
			return "", err
		}
	}
	return f.Name(), f.Close()
}

// readBounded reads a regular file of at most maxSize bytes.
func readBounded(path string) ([]byte, error) {
	// Not blocking: a pipe in the file's place must not hold up a pod's start.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxSize {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxSize)
	}
	return data, nil
}
