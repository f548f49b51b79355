package inspect

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/neardns/neardns/agent/internal/hostsfile"
	"github.com/neardns/neardns/pkg/nodestate"
)

// Hosts is what `neardns-agent hosts`, the role that keeps names of Services in the hosts file, said when it last looked.
type Hosts struct {
	Present  bool          `json:"present"` // there is one, or was
	Age      time.Duration `json:"-"`       // since it looked
	Looked   time.Time     `json:"looked"`
	Ended    bool          `json:"ended,omitempty"`    // in order; its lines stay
	Fault    string        `json:"fault,omitempty"`    // why the file may not have the lines
	Fighting bool          `json:"fighting,omitempty"` // another program keeps taking the lines out
	Repairs  int           `json:"repairs"`
	Services []HostsLine   `json:"services"`
}

// HostsLine is one Service of the list.
type HostsLine struct {
	nodestate.HostsService
	Standing hostsfile.Standing `json:"standing"`
}

// hosts reads what the role said. A file that cannot be read is a fault of its own.
func (l *Looker) hosts(now time.Time) Hosts {
	said, ok, err := nodestate.ReadHosts(l.Conf.StateDir)
	if err != nil {
		return Hosts{Present: true, Fault: err.Error()}
	}
	out := Hosts{Present: ok, Age: now.Sub(said.Looked), Looked: said.Looked, Ended: said.Ended, Fault: said.Fault, Fighting: said.Fighting,
		Repairs: said.Repairs}
	for _, s := range said.Services {
		out.Services = append(out.Services, HostsLine{s, hostsfile.StandingOf(s, said.Since, now)})
	}
	return out
}

// hostsSilence is after how long a role that looks every 30 s is not there any more.
const hostsSilence = 5 * time.Minute

// checkHosts judges the role `hosts`. Where it never ran there is nothing to judge: it is not part of the cache.
func checkHosts(p Picture, f *findings) {
	h := p.Hosts
	switch {
	case !h.Present:
		f.ok("no names of Services are kept in the hosts file here")
		return
	case h.Ended:
		f.add(Warn, "start it again (install/hosts), or take its lines away: `neardns-agent cleanup`",
			"`neardns-agent hosts` has ended; the lines stay in the hosts file as they were %s ago", h.Age.Round(time.Second))
	case h.Age > hostsSilence && h.Fault == "":
		f.add(Warn, "look at the pod of the DaemonSet neardns-hosts on this node", "`neardns-agent hosts` looked last %s ago", h.Age.Round(time.Minute))
	}
	if h.Fault != "" {
		f.add(Fail, "mend that; the role tries again by itself, and leaves the file as it is until then", "the hosts file: %s", h.Fault)
	}
	if h.Fighting {
		f.add(Warn, "find what writes the file, and have it keep lines that it does not know", "another program keeps taking the lines out of the hosts file; they "+
			"were put back %s", plural(h.Repairs, "time"))
	}
	for _, s := range h.Services {
		switch s.Standing {
		case hostsfile.Missing:
			f.add(Fail, "look whether that Service is there, and whether the node can ask kube-dns; or take it out of hosts.services", "%s has no line in the hosts file: %s",
				s.Name, cmp.Or(s.Failed, "kube-dns denies it"))
		case hostsfile.Foreign:
			f.add(Warn, "take that line out where ours is to count", "%s is named by a line that is not ours, which wins: %s", s.Name, strings.Join(s.Left, ", "))
		case hostsfile.Stale:
			f.add(Warn, "look at the way from this node to kube-dns", "%s has a line of long ago: %s", s.Name, s.Failed)
		case hostsfile.Current:
			f.ok("%s is %s", s.Name, strings.Join(s.Addresses, ", "))
		}
	}
	if f.silent() {
		f.ok("hosts.services names nothing to keep")
	}
}

// hostsTable says which names of Services stand in the hosts file.
func hostsTable(w io.Writer, h *Hosts) {
	if h == nil || !h.Present {
		return
	}
	if h.Fault != "" {
		fmt.Fprintf(w, "\nhosts file: %s\n", h.Fault)
	}
	fmt.Fprintln(w, "\nHOSTS FILE\tADDRESSES\tSTATE\tANSWERED\tREASON")
	for _, s := range h.Services {
		answered, reason := "", s.Failed
		if !s.Answered.IsZero() {
			answered = s.Answered.Format(time.RFC3339)
		}
		if len(s.Left) > 0 {
			reason = "another line has " + strings.Join(s.Left, ", ")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Name, strings.Join(s.Addresses, ","), s.Standing, answered, reason)
	}
}
