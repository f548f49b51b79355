package main

import (
	"context"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"

	_ "github.com/neardns/neardns/plugins/neardns/uniproc" // one processor: a call is one thing after another
)

func main() {
	// This goroutine is not locked to a thread. Every thread is in the host's netns, because code that enters another netns locks its
	// own thread and then returns or lets the thread end. If this goroutine were locked, each netlink exchange would start another
	// thread, and an ADD would spend more time on switching threads than on its rules.
	ctx, e := context.Background(), processEnv()
	if len(os.Args) > 1 {
		os.Exit(cli(os.Args[1:], os.Stdout, os.Stderr))
	}
	if os.Getenv("CNI_COMMAND") == "DEL" {
		// After a DEL, skel opens CNI_NETNS once more to check that it is not the host's, and blocks forever if the path is a pipe.
		// del checks the path itself, its file type first.
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
