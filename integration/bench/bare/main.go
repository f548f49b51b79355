// Command bare is the least program that steers a pod: it opens a netlink socket in the netns that it is given and makes
// the pod table in one transaction, or takes it away. It looks at nothing, keeps nothing and prints nothing. The benchmark
// holds the plugin's processes against its.
package main

import (
	"fmt"
	"os"
	"strings"

	"net/netip"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bare:", err)
		os.Exit(1)
	}
}

// run takes a verb, a netns and cluster DNS addresses.
func run(args []string) error {
	if len(args) < 3 {
		return fmt.Errorf("usage: bare apply|remove NETNS CLUSTERDNS[,CLUSTERDNS]")
	}
	var redirects []steer.Redirect
	for a := range strings.SplitSeq(args[2], ",") {
		addr, err := netip.ParseAddr(a)
		if err != nil {
			return err
		}
		redirects = append(redirects, steer.Redirect{ClusterDNS: addr})
	}
	redirects, err := steer.Complete(redirects)
	if err != nil {
		return err
	}
	ns, err := os.Open(args[1])
	if err != nil {
		return err
	}
	n, err := nft.Open(int(ns.Fd()))
	if err != nil {
		return err
	}
	if args[0] == "remove" {
		return n.Remove()
	}
	return n.Apply(steer.Pod{Redirects: redirects})
}
