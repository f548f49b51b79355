package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/neardns/neardns/pkg/attached"
)

// passOn returns the previous plugin's result in the form that ADD must print, and the pod's addresses in it. If its CNI
// version is that of the configuration, as libcni ensures, the bytes are unchanged, so that no unknown key is lost.
func passOn(c *Conf, ifName string) ([]byte, []netip.Addr, error) {
	if c.PrevResult == nil {
		return nil, nil, types.NewError(types.ErrInvalidNetworkConfig,
			"no prevResult: neardns must be called as chained plugin: put it into the conflist after the plugin that makes the pod's interface", "")
	}
	bad := func(err error) ([]byte, []netip.Addr, error) {
		return nil, nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("prevResult cannot be read (%v): the plugin before neardns in the "+
			"conflist, or the runtime, is at fault", err), "")
	}
	var head struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(c.PrevResult, &head); err != nil {
		return bad(err)
	}
	out := []byte(c.PrevResult)
	if head.CNIVersion == "" {
		// The CNI library takes a result without a version for 0.1.0, but it is meant in the configuration's version.
		var err error
		if out, err = withKey(out, "cniVersion", c.CNIVersion); err != nil {
			return bad(err)
		}
		head.CNIVersion = c.CNIVersion
	}
	typed, err := create.Create(head.CNIVersion, out)
	if err != nil {
		return bad(err)
	}
	current, err := types100.NewResultFromResult(typed)
	if err != nil {
		return bad(err)
	}
	if head.CNIVersion != c.CNIVersion {
		if out, err = convert(typed, c.CNIVersion); err != nil {
			return bad(err)
		}
	}
	return out, attached.Addresses(current, ifName), nil
}

func convert(r types.Result, version string) ([]byte, error) {
	converted, err := r.GetAsVersion(version)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = converted.PrintTo(&b)
	return b.Bytes(), err
}

// withKey sets a key in a JSON object and leaves its other values unchanged.
func withKey(object []byte, key string, value any) ([]byte, error) {
	var keys map[string]json.RawMessage
	err := json.Unmarshal(object, &keys)
	if err == nil {
		keys[key], err = json.Marshal(value)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(keys)
}
