package main

import (
	"context"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"

	_ "github.com/neardns/neardns/plugins/neardns/uniproc" // one processor: a call is one thing after another
)

func main() {
	// Every thread is in the host's netns: whoever enters another one binds its thread, and goes back or lets it end. So this
	// goroutine is bound to none: each netlink exchange starts another one, and an ADD would spend more on passing from
	// thread to thread than on its rules.
	ctx, e := context.Background(), processEnv()
	if len(os.Args) > 1 {
		os.Exit(cli(os.Args[1:], os.Stdout, os.Stderr))
	}
	if os.Getenv("CNI_COMMAND") == "DEL" {
		// Behind a DEL skel opens CNI_NETNS once more to see that it is not the host's, and a pipe in its place holds that up for
		// ever. DEL looks at it itself, by its type first.
		_ = os.Setenv("CNI_NETNS_OVERRIDE", "1")
	}
	err := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add:    func(args *skel.CmdArgs) error { return add(ctx, e, args) },
		Del:    func(args *skel.CmdArgs) error { return del(ctx, e, args) },
		Check:  func(args *skel.CmdArgs) error { return check(ctx, e, args) },
		GC:     func(args *skel.CmdArgs) error { return gc(ctx, e, args) },
		Status: func(args *skel.CmdArgs) error { return status(ctx, e, args) },
	}, version.VersionsStartingFrom("0.3.1"), about(os.Getenv("CNI_COMMAND")))
	if err != nil && os.Getenv("CNI_COMMAND") == "DEL" {
		err = delAnyway(ctx, e, os.Getenv, err)
	}
	if err != nil {
		_ = err.Print()
		os.Exit(1)
	}
}
