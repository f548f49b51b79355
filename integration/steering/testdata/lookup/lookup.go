// Command lookup FAMILY NAME... prints what a Go program hears of each name from the resolver of its own, one line a name.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
)

func main() {
	network := map[string]string{"4": "ip4", "6": "ip6"}[os.Args[1]]
	if network == "" {
		network = "ip"
	}
	for _, name := range os.Args[2:] {
		line := name
		addrs, err := (&net.Resolver{PreferGo: true}).LookupNetIP(context.Background(), network, name)
		var failed *net.DNSError
		switch {
		case errors.As(err, &failed) && failed.IsNotFound:
			line += " error no address"
		case err != nil:
			line += " error try again"
		}
		for _, a := range addrs {
			line += " " + a.Unmap().String()
		}
		fmt.Fprintln(os.Stdout, line)
	}
}
