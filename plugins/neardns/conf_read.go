package main

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/strict"
)

// confReader reads one call's configuration.
type confReader struct {
	strict.Reader
	top map[string]strict.Value
}

func (r *confReader) fault(field, format string, args ...any) {
	r.Fault(strict.Value{Field: field}, format, args...)
}

func (r *confReader) logging(c *Conf) {
	c.LogFile = filepath.Join(c.StateDir, nodestate.PluginLogName)
	if r.top["logFile"].Text == noLogFile {
		c.LogFile = ""
	} else {
		r.path("logFile", &c.LogFile)
	}
	level := "info"
	r.oneOf("logLevel", &level, "debug", "info", "warn", "error")
	if c.LogLevel.UnmarshalText([]byte(level)) != nil {
		c.LogLevel = slog.LevelInfo // oneOf has reported the fault
	}
}

// redirects reads the keys redirects and localAddresses together, because each local address needs a redirect of its family.
func (r *confReader) redirects(c *Conf) {
	before := len(r.Faults())
	items := r.top["redirects"].Items()
	if len(items) == 0 {
		r.fault("redirects", `missing, empty or not a list: name the cluster DNS address of each family, like ["10.96.0.10"]`)
	}
	var redirects []steer.Redirect
	for _, v := range items {
		redirects = append(redirects, steer.ReadRedirect(&r.Reader, v, r.addr))
	}
	var locals []netip.Addr
	if v, ok := r.top["localAddresses"]; ok && v.Kind != strict.Null {
		for _, item := range r.ItemsOf(v, `a list, such as ["169.254.20.10"]`) {
			locals = append(locals, r.addr(item))
		}
	}
	if len(r.Faults()) > before {
		return
	}
	complete, err := steer.Complete(redirects)
	if err == nil {
		c.Redirects = complete
		c.Locals, err = steer.Locals(locals, complete)
	}
	if err != nil {
		// The message begins with its field.
		field, msg, _ := strings.Cut(err.Error(), ": ")
		r.fault(field, "%s", msg)
	}
}

func (r *confReader) addr(v strict.Value) netip.Addr {
	text, ok := r.TextOf(v, "an IP address, in quotes")
	if !ok {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		r.Fault(v, "%q is not an IP address: write it without port, prefix or name, like 10.96.0.10 or fd00:10:96::a", text)
	}
	return a
}

// text reads a string. If the key is absent, or its value is not a string (which is a fault), *into does not change.
func (r *confReader) text(key string, into *string) {
	if v, ok := r.top[key]; ok {
		if s, ok := r.Text(v); ok {
			*into = s
		}
	}
}

// oneOf reads a string as text does, and reports a fault if it is not one of allowed.
func (r *confReader) oneOf(key string, into *string, allowed ...string) {
	r.text(key, into)
	r.OneOf(strict.Value{Field: key}, *into, allowed...)
}

// path reads an absolute path. If the value is not one, path reports a fault and leaves the default in *into.
func (r *confReader) path(key string, into *string) {
	p := *into
	r.text(key, &p)
	if !filepath.IsAbs(p) || strings.ContainsRune(p, 0) {
		r.fault(key, "%q is not an absolute path: write it from the root, like %s", p, *into)
		return
	}
	*into = filepath.Clean(p)
}
