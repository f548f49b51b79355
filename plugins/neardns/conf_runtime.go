package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/neardns/neardns/pkg/strict"
)

// runtime reads the keys that libcni and the container runtime add. If it cannot read runtimeConfig or a key in it, it adds a note
// and goes on: a pod must not fail because of something that its owner cannot change. An unreadable list of valid attachments,
// which only GC gets, is a fault, so that GC removes nothing.
func (r *confReader) runtime(c *Conf) {
	note := func(what string, err error) {
		c.Notes = append(c.Notes, fmt.Sprintf("%s cannot be read: %v", what, err))
	}
	for key, into := range map[string]*string{"name": &c.Name, "cniVersion": &c.CNIVersion} {
		if v := r.top[key]; v.Kind == strict.String {
			*into = v.Text
		}
	}
	if v, ok := r.top["prevResult"]; ok && !v.IsNull() {
		c.PrevResult = v.Raw()
	}
	var given map[string]json.RawMessage
	if v, ok := r.top["runtimeConfig"]; ok {
		if err := json.Unmarshal(v.Raw(), &given); err != nil {
			note("runtimeConfig", err)
		}
	}
	if raw, ok := given["dns"]; ok {
		if err := json.Unmarshal(raw, &c.DNS); err != nil {
			c.DNS = nil
			note("runtimeConfig.dns", err)
		}
	}
	if raw, ok := given[keyAnnotations]; ok {
		if err := json.Unmarshal(raw, &c.Annotations); err != nil {
			note("the pod's annotations", err)
		}
	}
	for _, key := range []string{keyValid, keyValidOldTypo} {
		v, ok := r.top[key]
		if !ok || v.IsNull() {
			continue
		}
		var list []types.GCAttachment
		if err := json.Unmarshal(v.Raw(), &list); err != nil {
			r.fault(key, "not a list of attachments (%v): nothing is removed", err)
			continue
		}
		c.Valid, c.ValidKnown = append(c.Valid, list...), true
	}
}

// podArgs are the CNI_ARGS that we use.
type podArgs struct{ Name, Namespace, UID string }

// parseArgs reads the pod's name, namespace and UID from CNI_ARGS and ignores everything else. types.LoadArgs would fail on
// unknown keys and on values that contain "=" (Nomad sends JSON).
func parseArgs(s string) podArgs {
	var p podArgs
	for pair := range strings.SplitSeq(s, ";") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "K8S_POD_NAME":
			p.Name = value
		case "K8S_POD_NAMESPACE":
			p.Namespace = value
		case "K8S_POD_UID":
			p.UID = value
		}
	}
	return p
}

// String names the pod for people.
func (p podArgs) String() string {
	if p.Namespace == "" {
		return p.Name
	}
	return p.Namespace + "/" + p.Name
}
