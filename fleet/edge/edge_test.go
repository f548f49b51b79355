package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// A geo.database that cannot be read is a fault, but one that an edge starts with: its ranges and its region locate clients.
func TestEdgeWithoutGeoDatabase(t *testing.T) {
	folder := t.TempDir()
	path, database := filepath.Join(folder, "config.yaml"), filepath.Join(folder, "geo.mmdb")
	testutil.Must(t, os.WriteFile(path, []byte(`apiVersion: neardns.io/v1alpha1
kind: EdgeConfig
listen: {dns: [192.0.2.53]}
zones: [{name: shared.example, primary: 192.0.2.1}]
geo: {region: [IE], database: `+database+`}
`), 0o600))
	e := env{lookupEnv: os.LookupEnv, readFile: os.ReadFile}
	for what, prepare := range map[string]func() error{
		"missing": func() error { return os.RemoveAll(database) },
		"empty":   func() error { return os.WriteFile(database, nil, 0o600) },
		"garbage": func() error { return os.WriteFile(database, []byte("garbage"), 0o600) },
	} {
		testutil.Must(t, prepare())
		read, err := readConfig(e, path)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if read.geoFault == nil || !strings.Contains(read.geoFault.Error(), "geo.database") || read.locator == nil || len(read.locator.Own) != 1 || read.locator.Database != nil {
			t.Errorf("%s: %v, %+v", what, read.geoFault, read.locator)
		}
		if err := checkConfig(e, path); !errors.As(err, new(configError)) {
			t.Errorf("%s: the check says %v", what, err)
		}
	}
}
