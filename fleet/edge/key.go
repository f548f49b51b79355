package main

import (
	"errors"
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

	mu   sync.Mutex // guards the fields below
	last rfc2136.Key
	said time.Time
}

// key returns the key in the folder. If it cannot be read or is invalid, key returns the last valid one, or, if there was none, one that
// cannot sign, so that no message leaves unsigned. If no folder is configured, it returns the zero Key: messages are not signed.
func (k *keyFolder) key() rfc2136.Key {
	if k.folder == "" {
		return rfc2136.Key{}
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
	if err == nil {
		k.last = next
	} else if time.Since(k.said) > time.Minute {
		k.said = time.Now()
		k.log.Error("no valid TSIG key for a zone; the last valid one stays in use, else it is not read", "folder", k.folder, "err", err)
	}
	return k.last
}
