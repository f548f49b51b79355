package main

import (
	"os"
	"path/filepath"
	"strings"
)

func (s *show) leftFiles() string {
	var left []string
	for _, dir := range []string{stateDir, persistDir} {
		err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() && e.Name() != "plugin.log" { // the log is kept for people who look into what happened
				left = append(left, strings.TrimPrefix(path, folder+"/"))
			}
			return nil
		})
		if err != nil {
			return err.Error()
		}
	}
	if _, err := os.Lstat(filepath.Join(cniBin, "neardns")); err == nil {
		left = append(left, "cni/bin/neardns")
	}
	if len(left) == 0 {
		return "none"
	}
	return strings.Join(left, ", ")
}

// leaveStanding keeps the node and reports how to look around in it.
func (s *show) leaveStanding() {
	s.step("KEEP: the node is left standing")
	s.node.Keep()
	s.kept = true
	p := s.early
	s.tell(`ask from a pod      nsenter --net=%s dig +noall +answer +stats @%s web.shop.svc.cluster.local
ask from the other  nsenter --net=%s dig +noall +answer +stats @%s web.shop.svc.cluster.local
the pod's rules     nsenter --net=%s nft list table inet neardns
the switch          nsenter --net=%s nft list table inet neardns
what the agent says nsenter --net=%s %s/neardns-agent status --config %s
its log             tail -f %s
its metrics         nsenter --net=%s curl -s http://127.0.0.1:9253/metrics
kill it             kill -9 %d
start it again      nsenter --net=%s %s/neardns-agent node --config %s --cni-cache %s
what kube-dns hears tail -f %s
take it all away    make demo-clean (the next make demo does so too)`,
		p.Path(), s.node.ClusterDNS()[0], s.legacy.Path(), localAddress, p.Path(), s.node.Host.Path(), s.node.Host.Path(), s.bin, nodeConfig, agentLog, s.node.Host.Path(),
		s.agent.PID(), s.node.Host.Path(), s.bin, nodeConfig, cniCache, s.kubeDNS.log)
}
