package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// A file that changes after the start has read it, and before it is watched, is read again.
func TestChangeDuringStart(t *testing.T) {
	conf := fmt.Sprintf(`apiVersion: neardns.io/v1alpha1
kind: EdgeConfig
listen: {dns: [127.0.0.1], port: %d, metrics: "off", health: "off"}
zones: [{name: shared.example, primary: "127.0.0.1:1"}]
geo: {database: /none/geo.mmdb}
stateDir: %s
`, testutil.FreePort(t), t.TempDir())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reads := 0
	e := env{stdout: io.Discard, stderr: io.Discard, lookupEnv: os.LookupEnv, hangups: func(context.Context) <-chan os.Signal { return nil },
		readFile: func(path string) ([]byte, error) {
			if !strings.HasSuffix(path, ".mmdb") {
				return []byte(conf), nil
			}
			if reads++; reads == 2 {
				stop()
			}
			return nil, os.ErrNotExist
		}}
	if err := serve(ctx, e, "/none/edge.yaml"); err != nil || reads != 2 {
		t.Errorf("%v; the database was read %d times, want 2", err, reads)
	}
}
