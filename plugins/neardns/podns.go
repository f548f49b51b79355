package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/sandbox"
	"github.com/neardns/neardns/pkg/steer"
)

// podSettings is the decision about a pod's DNS settings, and what ADD must write because of it.
type podSettings struct {
	podfile.Annotations
	DNS podfile.DNS

	edit   *sandbox.File // the pod's resolv.conf, to be replaced with text; nil if it does not change
	text   []byte
	result bool // DNS.Settings are written into the CNI result
	// nameservers are those that the pod will or may have in its resolv.conf; empty if they are unknown.
	nameservers []string
}

// settingsFacts is what the decision about a pod's DNS settings depends on, besides the configuration and the call.
type settingsFacts struct {
	Sandbox    sandbox.File // the pod's resolv.conf, if the runtime has already created it
	SandboxErr error        // why Sandbox is not known; nil if it is
	Node       resolvconf.Node
	NodeErr    error       // the node's own resolv.conf cannot be read
	Locals     []localFact // which local addresses may be nameservers; empty if no wanted overlay names "local"
	// EditErr is the error of writing the pod's resolv.conf; nil if that succeeded or was not tried.
	EditErr error
}

// errNotSearched is the SandboxErr if this call did not need the pod's resolv.conf and did not search for it.
var errNotSearched = fmt.Errorf("not searched for: %w", fs.ErrNotExist)

// byCRI reports whether a CRI runtime makes this call; only CRI runtimes pass a pod namespace. They all ignore the key dns of the CNI
// result, and all keep one resolv.conf file for a sandbox.
func (in call) byCRI() bool { return in.Pod.Namespace != "" }

// applySettings decides the pod's DNS settings and writes them into its resolv.conf if that already exists. It runs before
// makePlan, because steering depends on the nameservers that the pod really has.
func (v *verb) applySettings(in call, ns *os.File) podSettings {
	wanted := v.conf.Rules.For(keyDNS, in.Pod.Namespace, v.conf.Annotations)
	f := v.collectSettingsFacts(in, wanted)
	if wanted.NamesLocal() {
		f.Locals = v.locals(in, wanted, ns)
	}
	s := planSettings(v.conf, in, wanted, f)
	if s.edit == nil {
		return s
	}
	if f.EditErr = s.edit.Write(s.text); f.EditErr != nil {
		s = planSettings(v.conf, in, wanted, f)
	}
	return s
}

// collectSettingsFacts reads the files that planSettings needs. If no overlay is wanted for the pod and the runtime passed the pod's
// DNS settings, it reads none.
func (v *verb) collectSettingsFacts(in call, wanted overlay.PodRules) settingsFacts {
	f := settingsFacts{SandboxErr: errNotSearched}
	f.Node.ClusterDNS, f.Node.ClusterDomain = steer.ClusterDNS(v.conf.Redirects), v.conf.ClusterDomain
	changes := wanted.Wants() && v.conf.ResolvConf != conflist.ResolvConfOff
	if in.byCRI() && !in.SharesHost && (changes || v.conf.DNS == nil) {
		f.Sandbox, f.SandboxErr = sandbox.Find(v.conf.ResolvConfPaths, in.ContainerID)
	}
	if changes && wanted.NeedsNode() {
		var text []byte
		if text, f.NodeErr = os.ReadFile(v.conf.HostResolvConf); f.NodeErr == nil {
			f.Node.Host, f.NodeErr = resolvconf.Parse(text).Host()
		}
	}
	return f
}

// planSettings decides a pod's DNS settings from its arguments alone: it reads and writes no file.
func planSettings(c *Conf, in call, wanted overlay.PodRules, f settingsFacts) podSettings {
	own, inFile := ownSettings(c, in, f)
	s := podSettings{
		Annotations: wanted.Annotations, DNS: podfile.DNS{State: podfile.AsGiven, Settings: own}, nameservers: own.Nameservers,
	}
	if inFile {
		s.DNS.Path = f.Sandbox.Path
	}
	switch {
	case !wanted.Wants():
		return s
	case c.ResolvConf == conflist.ResolvConfOff:
		s.DNS.Reason = "resolvConf is off in the configuration"
		return s
	case in.SharesHost:
		s.DNS.Reason = "the pod shares the host's network namespace"
		return s
	}
	var cannot []podfile.Ignored
	f.Node.Locals, cannot = namedLocals(f.Locals, own)
	all, applied, ignored := wanted.Apply(f.Node, f.NodeErr, in.Pod.Namespace, own)
	s.Ignored = slices.Concat(ignored, cannot)
	if all == nil {
		s.DNS.Reason = "none of the wanted settings can be applied"
		return s
	}
	s.DNS.Overlay = all
	fail := func(err error) {
		s.DNS.State, s.DNS.Method, s.DNS.Reason = podfile.Failed, podfile.MethodFile, err.Error()
	}
	switch {
	case f.EditErr != nil:
		fail(f.EditErr)
	case !in.byCRI():
		s.DNS.State, s.DNS.Method, s.result = podfile.HandedOn, podfile.MethodResult, true
		s.nameservers = nil // the runtime may add others
		s.DNS.Settings, s.DNS.Notes = applied.Settings, applied.Notes
	case inFile:
		changed, err := resolvconf.Parse(f.Sandbox.Text).With(applied.Settings)
		if err != nil {
			fail(err)
			break
		}
		s.DNS.State, s.DNS.Method = podfile.Overlaid, podfile.MethodFile
		s.DNS.Settings, s.DNS.Notes = applied.Settings, applied.Notes
		s.edit, s.text, s.nameservers = &f.Sandbox, changed.Bytes(), applied.Nameservers
	case !errors.Is(f.SandboxErr, fs.ErrNotExist):
		fail(f.SandboxErr)
	default:
		s.DNS.State = podfile.Waiting
		s.DNS.Reason = "the runtime makes the pod's resolv.conf after ADD: the agent changes it through NRI"
		// The pod may have its own nameservers first and the wanted ones later. If either list has a cluster DNS address, steer the
		// pod: a rule that never matches costs nothing.
		s.nameservers = slices.Concat(own.Nameservers, applied.Nameservers)
	}
	return s
}

// drifted returns an error that names the first difference between the pod's resolv.conf and d, the settings that ADD or the
// agent wrote into it. It returns nil if neither wrote any.
func drifted(d *podfile.DNS) error {
	if d == nil || d.State != podfile.Overlaid || d.Path == "" {
		return nil
	}
	f, err := sandbox.Read(d.Path)
	if err != nil {
		return fmt.Errorf("the pod's resolv.conf, which has an overlay, cannot be read: %w", err)
	}
	now, err := resolvconf.Parse(f.Text).Settings()
	if err != nil {
		return fmt.Errorf("%s: %w", d.Path, err)
	}
	want := d.Settings
	for _, p := range []struct {
		name      string
		have, due []string
	}{
		{"nameservers", now.Nameservers, want.Nameservers},
		{"search domains", now.Searches, want.Searches},
		{"options", now.Options, want.Options},
	} {
		if !slices.Equal(p.have, p.due) {
			return fmt.Errorf("%s has %s %q, the overlay wrote %q", d.Path, p.name, p.have, p.due)
		}
	}
	return nil
}
