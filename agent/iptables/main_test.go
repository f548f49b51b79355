package main

import (
	"testing"

	"github.com/neardns/neardns/pkg/steer/iptables"
)

func TestProgramFor(t *testing.T) {
	for name, want := range map[string]string{
		"iptables":           "/usr/sbin/iptables-legacy",
		"iptables-save":      "/usr/sbin/iptables-legacy-save",
		"iptables-restore":   "/usr/sbin/iptables-legacy-restore",
		"ip6tables":          "/usr/sbin/ip6tables-legacy",
		"ip6tables-restore":  "/usr/sbin/ip6tables-legacy-restore",
		"iptables-nft":       "", // that is a program itself
		"iptables-translate": "",
		"neardns-iptables":   "",
	} {
		got, err := programFor(name, iptables.Legacy)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
	if got, err := programFor("iptables-save", iptables.NFT); got != "/usr/sbin/iptables-nft-save" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
