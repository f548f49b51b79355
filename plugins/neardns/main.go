// The runtime would read the node's whole list of mounts to find a CPU limit; main sets the number anyway.
//
//go:debug containermaxprocs=0

package main

import (
	"context"
	"os"
	"runtime"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
)

func main() {
	// A call is one thing after another; with one processor the runtime wakes no threads that look for more to do.
	runtime.GOMAXPROCS(1)
	// Every thread is in the host's netns: whoever enters another one binds its thread, and goes back or lets it end. So this
	// goroutine is bound to none: each netlink exchange starts another one, and an ADD would spend more on passing from
	// thread to thread than on its rules.
	ctx, e := context.Background(), processEnv()
	if len(os.Args) > 1 {
		os.Exit(cli(os.Args[1:], os.Stdout, os.Stderr))
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
