package bundle

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

const tsigKey = "NoTCJU+DMqFWywaPyxSijrDEA/DC3nK0xi3AMEZuPVk="

// Text that may contain a secret is removed, and text that a reader needs stays.
func TestSecrets(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"nothing": {"a: b\nredirects: [10.96.0.10]\n", "a: b\nredirects: [10.96.0.10]\n"},
		"ids stay": {"container 4f0c6f7d1b2a49e8a1a0c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1b0c9d8e7f6 uid 7c1f2b3a-0000-4000-8000-000000000001\n",
			"container 4f0c6f7d1b2a49e8a1a0c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1b0c9d8e7f6 uid 7c1f2b3a-0000-4000-8000-000000000001\n"},
		"paths and versions stay": {"/var/lib/cni/results/cbr0-abc-eth0 v0.0.0-20261122205916-0cdb6acf6bde coredns_dns_requests_total\n",
			"/var/lib/cni/results/cbr0-abc-eth0 v0.0.0-20261122205916-0cdb6acf6bde coredns_dns_requests_total\n"},
		"counters stay": {"Icmp6InDestUnreachs Icmp6OutGroupMembReductions TCPLossProbeRecovery2 KUBE-SVC-ERIFXISQEP7F7OF4 neardns_switch_packets_total\n",
			"Icmp6InDestUnreachs Icmp6OutGroupMembReductions TCPLossProbeRecovery2 KUBE-SVC-ERIFXISQEP7F7OF4 neardns_switch_packets_total\n"},
		"many lines":      {strings.Repeat("x "+tsigKey+"\n", 7), strings.Repeat("x (left out)\n", 7)},
		"yaml":            {"  secret: hunter2\n  next: 1\n", "  secret (left out)\n  next: 1\n"},
		"json":            {`{"type": "calico", "k8s_auth_token": "abc", "x": 1}` + "\n", `{"type": "calico", "k8s_auth_token (left out)` + "\n"},
		"json key":        {`{"name": "a", "key": "abc"}` + "\n", `{"name": "a", "key": (left out)` + "\n"},
		"corefile":        {"tsig {\n  secret example.org. " + tsigKey + "\n}\nforward . 10.96.0.10\n", "tsig {\n}\nforward . 10.96.0.10\n"},
		"block of a word": {"secret: |\n  one\n\n  two\nnext: 1\n", "secret: |\n\nnext: 1\n"},
		"folded":          {"secret: >-\n  one\nnext: 1\n", "secret: >-\nnext: 1\n"},
		"kept line feeds": {"secret: |+\n  one\nnext: 1\n", "secret: |+\nnext: 1\n"},
		"both indicators": {"secret: >2-  # why\n  one\nnext: 1\n", "secret: >2-  # why\nnext: 1\n"},
		"binary":          {"secret: !!binary |\n  one\nnext: 1\n", "secret: !!binary |\nnext: 1\n"},
		"no block":        {"secret: >hunter2 # x\n", "secret (left out)\n"},
		"list of a word":  {"tokens:\n  - one\n  - two\nnext: 1\n", "tokens:\nnext: 1\n"},
		"pem":             {"a\n-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\n-----END EC PRIVATE KEY-----\nb\n", "a\n(left out)\nb\n"},
		"pem without end": {"a\n-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\nb\n", "a\n(left out)\n"},
		"url":             {"server: https://joe:pw@10.0.0.1:6443/x\n", "server: https://(left out)@10.0.0.1:6443/x\n"},
		"by its looks":    {"hmac-sha256:k:" + tsigKey + " end\n", "hmac-sha256:k:(left out) end\n"},
		"jwt":             {"h eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJlMTIzNDU2Nzg5MA t\n", "h (left out) t\n"},
		"no line feed":    {"password=x", "password (left out)"},
	} {
		t.Run(name, func(t *testing.T) {
			got, out := withoutSecrets(c.in)
			testutil.Equal(t, "cleaned", c.want, got)
			testutil.Equal(t, fmt.Sprintf("nothing is left out, of %q", out), c.in == c.want, len(out) == 0)
		})
	}
}

// Lines that name what pods query go, in either form of the log; those about the agent stay.
func TestQueries(t *testing.T) {
	const stays = "time=1 level=INFO msg=\"lease granted\" addr=169.254.20.11\n{\"msg\":\"coredns\",\"text\":\"ready\"}\ntime=2 level=INFO msg=coredns text=ready\n"
	const goes = "time=1 level=INFO msg=query client=10.244.1.7 name=private.example. type=A\n{\"level\":\"INFO\",\"msg\":\"query\",\"name\":\"private.example.\"}\n" +
		"time=3 level=WARN msg=coredns text=\"2 private.example. A: i/o timeout\" plugin=errors\n{\"msg\":\"coredns\",\"text\":\"2 private.example. A\",\"plugin\":\"errors\"}\n" +
		`{"log":"{\"level\":\"INFO\",\"msg\":\"query\",\"name\":\"private.example.\"}\n","stream":"stderr"}` + "\n"
	got, out := withoutQueries(goes + stays)
	if got != stays || len(out) != 1 || !strings.HasPrefix(out[0], "5 of its lines") {
		t.Errorf("%q\n%s", out, got)
	}
	if got, out := withoutQueries(stays); got != stays || out != nil {
		t.Errorf("%q\n%s", out, got)
	}
}

// FuzzSecrets: whatever is around a key, it does not come through, and what is clean stays as it is.
func FuzzSecrets(f *testing.F) {
	for _, seed := range []string{"", "secret: ", "  - ", "\n\t", "-----BEGIN X-----\n", "https://u:", `{"token":`, "key="} {
		f.Add(seed, "\n")
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		text, _ := withoutSecrets(before + " " + tsigKey + " " + after)
		if strings.Contains(text, tsigKey) {
			t.Errorf("the key is still there:\n%s", text)
		}
		if again, _ := withoutSecrets(text); strings.Contains(again, tsigKey) || len(again) > len(text)+len(leftOut)*(1+strings.Count(text, "\n"))*4 {
			t.Errorf("a clean text grows from %d to %d bytes", len(text), len(again))
		}
	})
}

// An archive has what was added, and its manifest lists what is missing.
func TestWrite(t *testing.T) {
	b := New("v1", time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC))
	b.Put("config/node.yaml", []byte("a: 1\nsecret: hunter2\n"), nil)
	b.Put("config/keys", []byte(strings.Repeat("x "+tsigKey+" "+tsigKey+"\n", 7)), nil)
	b.PutLog("log/agent.log", []byte("msg=query name=private.example.\nmsg=serving\n"), nil)
	b.Put("big", []byte(strings.Repeat("0123456789\n", maxFile/10)), nil)
	b.Put("rules/nftables.txt", nil, errors.New("there is no program nft\nhere"))
	var packed bytes.Buffer
	testutil.Must(t, b.Write(&packed))
	if !bytes.HasPrefix(packed.Bytes(), []byte("\x1f\x8b")) {
		t.Error("the report is not compressed")
	}
	got := testutil.Untar(t, &packed, folder+"/")
	golden.Check(t, "manifest.txt", got[manifestName])
	want := map[string]string{"config/node.yaml": "a: 1\nsecret (left out)\n", "log/agent.log": "msg=serving\n", "config/keys": got["config/keys"], "big": got["big"], manifestName: got[manifestName]}
	testutil.Equal(t, "archive", want, got)
	if n := len(got["big"]); n > maxFile || n < maxFile-11 || !strings.HasPrefix(got["big"], "0123456789\n") {
		t.Errorf("%d bytes of the big one, beginning %.12q", n, got["big"])
	}
}

// A full disk is an error.
func TestWriteFails(t *testing.T) {
	b := New("v1", time.Unix(1, 0))
	b.Put("a", []byte("b"), nil)
	if err := b.Write(full{}); !errors.Is(err, errFull) {
		t.Errorf("error %v", err)
	}
}

var errFull = errors.New("no space")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }
