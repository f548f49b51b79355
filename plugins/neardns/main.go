package main

import (
	"context"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"

	_ "github.com/neardns/neardns/plugins/neardns/uniproc" // sets GOMAXPROCS to 1: a CNI call does one thing after another
)

func main() {
	// Do not lock this goroutine to its thread. All threads are in the host's netns: code that enters another netns locks its
	// own thread, and then switches it back or lets it end. With a locked goroutine, each netlink exchange would switch
	// threads, and those switches would take longer than writing an ADD's rules.
	ctx, e := context.Background(), processEnv()
	if len(os.Args) > 1 {
		os.Exit(cli(os.Args[1:], os.Stdout, os.Stderr))
	}
	if os.Getenv("CNI_COMMAND") == "DEL" {
		// After a DEL, skel opens CNI_NETNS again to check that it is not the host's, and blocks forever if the path is a pipe.
		// This variable prevents that. del checks the path itself, beginning with its file type.
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
