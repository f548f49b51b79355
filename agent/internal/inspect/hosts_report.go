package inspect

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/neardns/neardns/agent/internal/hostsfile"
	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/nodestate"
)

// Hosts is the last state that `neardns-agent hosts`, which keeps Service names in the hosts file, has stored.
type Hosts struct {
	Present bool `json:"present"` // the role has stored a state: it runs, or ran once
	nodestate.Hosts
	Services []HostsLine `json:"services"`
}

// HostsLine is the state of one Service in the hosts file.
type HostsLine struct {
	nodestate.HostsService
	Standing hostsfile.Standing `json:"standing"`
}

// hosts reads the stored state of the role `hosts`. If it cannot be read, the error is in Fault.
func (in *Inspector) hosts(now time.Time) Hosts {
	state, ok, err := nodestate.HostsFile(in.Conf.StateDir).Read()
	if err != nil {
		return Hosts{Present: true, Hosts: nodestate.Hosts{Looked: now, Fault: err.Error()}}
	}
	out := Hosts{Present: ok, Hosts: state}
	for _, s := range state.Services {
		out.Services = append(out.Services, HostsLine{s, hostsfile.StandingOf(s, state.Since, now)})
	}
	return out
}

// maxHostsAge is the age of the last state of the role `hosts` after which the role counts as ended. It writes a state about every 30 s.
const maxHostsAge = 5 * time.Minute

// checkHosts checks the role `hosts`. That the role never ran here is no problem, because the cache does not need it.
func checkHosts(f *facts, r *findings) string {
	h, age := f.hosts, f.now.Sub(f.hosts.Looked)
	switch {
	case !h.Present:
		return "no names of Services are kept in the hosts file here"
	case h.Ended:
		r.warn("start it again (install/hosts), or remove its lines: `neardns-agent cleanup`",
			"`neardns-agent hosts` has ended; the lines stay in the hosts file as they were %s ago", age.Round(time.Second))
	case age > maxHostsAge && h.Fault == "":
		r.warn("check the pod of the DaemonSet neardns-hosts on this node", "`neardns-agent hosts` last ran %s ago", age.Round(time.Minute))
	}
	if h.Fault != "" {
		r.fail("fix that; the role tries again by itself, and does not change the file until then", "the hosts file: %s", h.Fault)
	}
	if h.Fighting {
		r.warn("find what writes the file, and have it keep unknown lines",
			"another program keeps removing the lines from the hosts file; they were restored %s", cli.Plural(h.Repairs, "time"))
	}
	for _, s := range h.Services {
		switch s.Standing {
		case hostsfile.Missing:
			r.fail("check whether that Service exists and whether the node can query kube-dns; or remove it from hosts.services",
				"%s has no line in the hosts file: %s", s.Name, cmp.Or(s.Failed, "kube-dns denies it"))
		case hostsfile.Foreign:
			r.warn("remove that line if ours is to win", "another line of the file has names of %s, and wins: %s", s.Name,
				strings.Join(s.Left, ", "))
		case hostsfile.Stale:
			r.warn("check the path from this node to kube-dns", "%s has an old line: %s", s.Name, s.Failed)
		case hostsfile.Current:
			r.ok("%s is %s", s.Name, strings.Join(s.Addresses, ", "))
		}
	}
	if len(r.list) == 0 {
		return "hosts.services is empty"
	}
	return ""
}

// hostsTable writes the table of Service names in the hosts file.
func hostsTable(w io.Writer, h *Hosts) {
	if h == nil {
		return
	}
	if h.Fault != "" {
		fmt.Fprintf(w, "\nhosts file: %s\n", h.Fault)
	}
	row(w, "\nHOSTS FILE", "ADDRESSES", "STATE", "ANSWERED", "REASON")
	for _, s := range h.Services {
		reason := s.Failed
		if len(s.Left) > 0 {
			reason = "another line has " + strings.Join(s.Left, ", ")
		}
		row(w, s.Name, strings.Join(s.Addresses, ","), s.Standing, s.Answered, reason)
	}
}
