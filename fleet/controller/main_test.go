package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // wherever the test runs
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
		"placement --kubeconfig=/nowhere/config":                       {exitConfig, "read --kubeconfig: stat /nowhere/config"},
		"placement":                                                    {exitConfig, "or name a file with --kubeconfig"},
		"zones publish":                                                {exitConfig, "name a file with --file"},
		"zones publish --file=f":                                       {exitConfig, "name the cluster with --cluster-id"},
		"zones plan --file=f --cluster-id=A":                           {exitConfig, `cluster id "A" is not six to twelve`},
		"zones publish --file=f --cluster-id=aaaaaaaa --poll=1ms":      {exitConfig, "--poll: 1ms is less than 100ms"},
		"zones remove --file=f":                                        {exitConfig, "name one cluster to remove"},
		"zones remove aaaaaaaa --file=/nowhere/f --yes":                {exitFailed, "/nowhere/f"},
		"zones remove --file=f aaaaaaaa --yes now":                     {exitConfig, "name one cluster to remove"},
		"zones owners --file=f now":                                    {exitConfig, `unexpected argument "now"`},
		"zones check --file=/nowhere/zone.yaml":                        {exitFailed, "/nowhere/zone.yaml"},
		"zones get -h":                                                 {exitGood, "-zone NAME"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), nil, strings.Fields(line), &stdout, &stderr)
		said, silent := &stderr, &stdout
		if want.code == exitGood {
			said, silent = &stdout, &stderr
		}
		if code != want.code || !strings.Contains(said.String(), want.text) || silent.Len() > 0 {
			t.Errorf("%q exits with %d: standard output %q, standard error %q", line, code, stdout.String(), stderr.String())
		}
	}
}
