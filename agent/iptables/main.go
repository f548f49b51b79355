// Command neardns-iptables is installed in the agent's image under the names iptables, iptables-save, iptables-restore and the same with
// ip6tables. It executes the program of that name in the variant that the host uses: iptables-nft or iptables-legacy.
//
// It detects the variant at each call, because the next call may be in another netns.
//
// The exit code is that of the executed program, or 127 if no program could be executed.
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
		// The programs of a variant are one binary, which decides by argv[0] what it does.
		err = unix.Exec(name, append([]string{filepath.Base(name)}, os.Args[1:]...), os.Environ())
	}
	_, _ = fmt.Fprintf(os.Stderr, "%s: %v (%s was chosen by %s)\n", filepath.Base(os.Args[0]), err, variant, why)
	os.Exit(notFound)
}

// folder has both variants of iptables, from Debian's package.
const folder = "/usr/sbin"

// programFor returns the path of the program for a name and a variant, for example iptables-nft-save for iptables-save.
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
