// Package unixsock makes the unix sockets that an agent and its successor both have at one path. It is a leaf: it imports none
// of its siblings.
package unixsock

import (
	"errors"
	"fmt"
	"net"
	"os"
)

// Listen makes a socket that only root may use. network is "unix" or "unixpacket". It takes the place of whatever is at path
// in one step, so that who connects finds either this one or the one before. Closing it leaves the file: by then it may be
// another process's. path may have at most 103 bytes, four less than the kernel takes (unix(7)), since the socket is made
// beside it first.
func Listen(network, path string) (*net.UnixListener, error) {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: fresh, Net: network})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(fresh, 0o600), os.Rename(fresh, path)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
