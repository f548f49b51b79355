package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	for line, want := range map[string]struct {
		code int
		text string
	}{
		"":                     {exitConfig, "placement [--namespace NAME]"},
		"help":                 {exitGood, "placement [--namespace NAME]"},
		"version":              {exitGood, "neardns-controller "},
		"--version":            {exitGood, "neardns-controller "},
		"dance":                {exitConfig, `there is no command "dance"`},
		"placement --dance":    {exitConfig, "flag provided but not defined: -dance"},
		"placement now":        {exitConfig, `unexpected argument "now"`},
		"placement -h":         {exitGood, "-kube-dns NAME"},
		"zones --cluster-id=X": {exitConfig, `--cluster-id: cluster id "X"`},
		"zones now":            {exitConfig, `unexpected argument "now"`},
		"zones -h":             {exitGood, "-namespace NAME"},
		"zones --namespace=neardns-zones --kubeconfig=/nowhere/config": {exitConfig, "/nowhere/config"}, // the manifest's
		"placement --kubeconfig=/nowhere/config":                       {exitConfig, "/nowhere/config"},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), strings.Fields(line), &out, &out); code != want.code || !strings.Contains(out.String(), want.text) {
			t.Errorf("%q exits with %d: %s", line, code, out.String())
		}
	}
}
