// Command neardns-iptables stands in the agent's image under the names iptables, iptables-save, iptables-restore and the same
// of ip6tables, and becomes the program of that name for the iptables that the host uses: iptables-nft or iptables-legacy.
//
// It must never guess again what it knows: what it finds holds for one call, since the next may come in another netns.
//
// Failure policy: as the program that it becomes; 127 where that is not there, as a shell has it.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/version"
)

const (
	program  = "neardns-iptables"
	notFound = 127
)

func main() {
	if name := filepath.Base(os.Args[0]); name == program && len(os.Args) == 2 && os.Args[1] == "--version" {
		_, _ = fmt.Fprintln(os.Stdout, program, version.String())
		return
	}
	variant, why := iptables.KubeletVariant()
	name, err := programFor(filepath.Base(os.Args[0]), variant)
	if err == nil {
		// The multi-call binaries go by the name that they are called by.
		err = unix.Exec(name, append([]string{filepath.Base(name)}, os.Args[1:]...), os.Environ())
	}
	_, _ = fmt.Fprintf(os.Stderr, "%s: %v (%s was chosen by %s)\n", filepath.Base(os.Args[0]), err, variant, why)
	os.Exit(notFound)
}

// folder holds both programs of Debian's package.
const folder = "/usr/sbin"

// programFor is the program behind a name: iptables-save is iptables-nft-save.
func programFor(name string, v iptables.Variant) (string, error) {
	family, verb, _ := strings.Cut(name, "-")
	if family != "iptables" && family != "ip6tables" || verb != "" && verb != "save" && verb != "restore" {
		return "", fmt.Errorf("call it as iptables, iptables-save, iptables-restore, or the same of ip6tables, not as %q", name)
	}
	out := filepath.Join(folder, family+"-"+v.Suffix())
	if verb != "" {
		out += "-" + verb
	}
	return out, nil
}
