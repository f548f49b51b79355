package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
)

// keyFolder is a folder with a TSIG key, usually a mounted Secret. It is read for each message, so that the key can be changed without
// a restart.
type keyFolder struct {
	read   func(string) ([]byte, error)
	folder string
	log    *slog.Logger

	mu     sync.Mutex // guards the fields below
	last   rfc2136.Key
	warned time.Time // when it was last logged that the folder has no valid key
}

// key returns the key in the folder. If it cannot be read or is invalid, key returns the last valid one, and an error if there was none. If
// no folder is configured, it returns the zero Key: messages are not signed.
func (k *keyFolder) key() (rfc2136.Key, error) {
	if k.folder == "" {
		return rfc2136.Key{}, nil
	}
	next := rfc2136.Key{Algorithm: "hmac-sha256"}
	var errs []error
	for _, file := range []struct {
		name string
		to   *string
	}{{"name", &next.Name}, {"secret", &next.Secret}, {"algorithm", &next.Algorithm}} {
		data, err := k.read(filepath.Join(k.folder, file.name))
		if err == nil {
			*file.to = strings.TrimSpace(string(data))
		} else if file.name != "algorithm" || !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	err := errors.Join(errs...)
	if err == nil {
		err = next.Validate()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case err == nil:
		k.last = next
	case k.last.Name == "":
		return rfc2136.Key{}, fmt.Errorf("no valid TSIG key in %s: %w", k.folder, err)
	case time.Since(k.warned) > time.Minute:
		k.warned = time.Now()
		k.log.Error("no valid TSIG key for a zone; the last valid one stays in use", "folder", k.folder, "err", err)
	}
	return k.last, nil
}
