package main

import (
	"context"

	"github.com/neardns/neardns/agent/internal/lifecycle"
	"github.com/neardns/neardns/agent/internal/node/plan"
)

// runCleanup takes everything away.
func runCleanup(ctx context.Context, e env, args []string) error {
	fs := flags("cleanup")
	path := configFlag(fs)
	cniConf := fs.String("cni-conf", "/etc/cni/net.d", "`FOLDER` of the network configurations; the plugin's entry is taken out of them")
	linkName := fs.String("link", "", "`NAME` of the link to remove, if it is another than the configuration's, such as nodelocaldns")
	hostRoot := hostRootFlag(fs)
	if err := parse(e, fs, args); err != nil {
		return err
	}
	conf, err := loadConfig(e, *path)
	if err != nil {
		return err
	}
	p, _, _ := plan.Read(conf, e.readFile, "cleanup") // what is at fault in it is of no interest here
	if *linkName != "" {
		p.Link.Name = *linkName
	}
	return lifecycle.Clean(ctx, surroundings(e), p, *cniConf, *hostRoot)
}
